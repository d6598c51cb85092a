#include "tests/support/random_ranks.h"

#include "ir/plan/check.h"
#include "ir/text.h"
#include "passes/compile.h"
#include "passes/partition/divide_batch.h"
#include "runtime/comm/thread_ranks.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/one_batch.h"
#include "tests/support/random_training.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

namespace plimsoll::testing {
namespace {

// Sums over ranks round in another order, which two steps magnify.
constexpr double rounding_share = 5e-3;

// What one rank has after two steps.
struct Outcome {
  Plan plan;  // of the rank's stage
  std::vector<double> losses;
  std::map<std::string, Tensor> states;
  std::string failure;
};

std::string text_of(Status failure) { return llvm::toString(std::move(failure)); }

// As the session of a rank reads them from a file of the whole batch.
RandomValues rows_of(const RandomValues& values, llvm::ArrayRef<InputSpec> inputs, int64_t part) {
  RandomValues own = values;
  for (const InputSpec& input : inputs)
    if (!input.whole) own.tensors.at(input.name) = filled_rows(values.tensors.at(input.name), input.type, part);
  return own;
}

Status train(const Plan& plan, const RandomValues& values, const ExecutorOptions& options, Outcome& outcome) {
  Result<std::unique_ptr<Session>> session = Session::create(plan, options);
  if (!session) return session.takeError();
  auto load = [&](llvm::StringRef name, const TensorView& into) {
    std::memcpy(into.data, values.tensors.at(name.str()).data(), static_cast<size_t>(into.type.bytes()));
    return Status::success();
  };
  if (Status s = (*session)->initialise(load, 7)) return s;
  const int64_t part = plan.mesh.coordinate((*session)->rank(), MeshAxis::Data);
  const RandomValues own = rows_of(values, (*session)->inputs(), part);
  OneBatch data(own, (*session)->inputs());
  for (int step = 0; step < 2; ++step) {
    Result<StepMetrics> metrics = (*session)->step(data);
    if (!metrics) return metrics.takeError();
    outcome.losses.push_back(metrics->loss);
  }
  outcome.plan = (*session)->plan();
  for (const PlanState& state : outcome.plan.states) {
    if (state.role == StateRole::Gradient) continue;  // of accumulation: cleared, and the rank's own before
    const std::string& name = outcome.plan.slots[static_cast<size_t>(state.slot)].name;
    if (Status s = (*session)->read_state(name, [&](const TensorView& view) {
          outcome.states[name] = Tensor(view.type, view.data);
          return Status::success();
        }))
      return s;
  }
  return Status::success();
}

std::vector<Outcome> train_on_ranks(const Plan& plan, const RandomValues& values, bool late) {
  auto ranks = make_thread_ranks(plan.mesh.ranks(), 60);
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&plan, &values, &outcomes, &rank, late] {
      Outcome& own = outcomes[static_cast<size_t>(rank->rank())];
      if (Status s = train(plan, values, {1, true, late, rank.get()}, own)) {
        own.failure = text_of(std::move(s));
        rank->abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// The state's elements from `first` on, against all of them.
std::string compare_state(llvm::StringRef name, const Tensor& own, const Tensor& want) {
  const int64_t count = want.type().elements();
  double off = 0, norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = own.get(i) - want.get(i);
    if (std::isnan(difference)) continue;
    off = std::hypot(off, difference);
    norm = std::hypot(norm, want.get(i));
  }
  // A handful of elements, or such as began at 0, may be all rounding.
  const double allowed = rounding_share * (norm + 0.1 * std::sqrt(static_cast<double>(count)));
  if (off <= allowed) return "";
  return "state " + name.str() + " is off by " + std::to_string(off) + " of " + std::to_string(norm);
}

class RanksTest {
 public:
  RanksTest(uint64_t seed, RankCounts& counts) : random_(static_cast<uint32_t>(seed)), counts_(counts) {
    job_ = random_job(random_);
    device_ = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("cpu"));
    with_host_ = seed % 2 == 0;
    if (with_host_) {  // fast enough to be worth it for small tensors
      device_.to_host_gb_per_s = device_.from_host_gb_per_s = 12;
      device_.to_host_both_ways_gb_per_s = device_.from_host_both_ways_gb_per_s = 10;
      device_.launch_us = 0.01;
    }
    TrainingRequest& request = job_.request;
    request.precision = "exported";
    request.optimizer.eps = 1e-2;  // tiny gradients decide the direction of an update otherwise
    request.offload = with_host_;
    splits_ = seed % 3 == 0;
    request.split = 1;
    request.effort = 0.01;
  }

  std::string run() {
    const Graph forward = llvm::cantFail(parse_graph(job_.text));
    TrainingRequest& request = job_.request;
    const TrainingRequest one_rank = request;
    draw_mesh(forward.type(forward.inputs[0]).shape[0]);
    if (request.mesh.ranks() == 1) return ++counts_.skipped, "";
    const bool is_uneven = forward.type(forward.inputs[0]).shape[0] % request.mesh[MeshAxis::Data] != 0;
    ++counts_.graphs;
    values_.add_for(forward);
    for (const State& state : forward.states) shrink(values_.tensors.at(forward.value(state.value).name));
    Result<CompileResult> plain = compiled(one_rank, 0);
    if (!plain) return "plain: " + text_of(plain.takeError());
    if (Status s = train(plain->plan, values_, {1, true}, want_)) return "plain: " + text_of(std::move(s));
    const std::string what =
        to_string(request.mesh) + ", zero " + std::to_string(request.zero) +
        (request.schedule ? ", " + schedule_names[static_cast<size_t>(*request.schedule)].str() : "") + ": ";
    if (splits_) request.split = 2;
    Result<CompileResult> divided = compiled(request, 0);
    if (!divided && splits_) {  // a rank's rows cannot be halved
      llvm::consumeError(divided.takeError());
      request.split = 1;
      divided = compiled(request, 0);
    }
    if (!divided) {
      const Diag reason = take_diag(divided.takeError());
      if (is_uneven && llvm::StringRef(reason.text()).contains("which do not divide by"))
        return ++counts_.batch_coupled, "";
      // No value alone divides the model, or its rows do not make micro-batches.
      const bool cannot = request.mesh[MeshAxis::Stage] > 1 && reason.fault() == Fault::Usage;
      if (!cannot) return what + reason.text();
      return ++counts_.undivided, "";
    }
    counts_.tensor += request.mesh[MeshAxis::Tensor] > 1;
    counts_.stage += request.mesh[MeshAxis::Stage] > 1;
    counts_.filled += is_uneven;
    if (std::string broken = check(divided->plan); !broken.empty()) return what + broken;
    const Arena& arena = divided->plan.arenas.front();
    const int64_t range = with_host_ ? arena.bytes / 2 : (arena.bytes - arena.persistent_bytes) / 2;
    for (int i = 0; i < 2; ++i) {
      const int64_t budget = divided->plan.promised_bytes() - 1 - static_cast<int64_t>(random_() % 1000) * range / 1000;
      Result<CompileResult> result = compiled(request, budget);
      if (!result) return what + text_of(result.takeError());
      if (!result->fits) {
        ++counts_.refused;
        continue;
      }
      if (std::string broken = check(result->plan); !broken.empty())
        return what + "budget " + std::to_string(budget) + ": " + broken;
    }
    return "";
  }

 private:
  // So small that nothing overflows in a few steps.
  static void shrink(Tensor& tensor) {
    if (is_float(tensor.type().dtype))
      for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, 0.1 * tensor.get(i));
  }

  int64_t pick(unsigned below) { return static_cast<int64_t>(random_() % below); }

  // Along the data axis as many ranks as have a row each, at most.
  void draw_mesh(int64_t batch) {
    TrainingRequest& request = job_.request;
    const auto divided = [&](int64_t ranks) {
      while (rows_of_rank(batch, ranks) * (ranks - 1) >= batch) --ranks;
      return ranks;
    };
    const int64_t axes = pick(8);
    if (axes < 3) {
      request.mesh[MeshAxis::Data] = divided(2 + pick(3));
    } else if (axes < 6) {
      request.mesh[axes < 4 ? MeshAxis::Tensor : MeshAxis::Stage] = 2 + pick(3);
    } else {
      const int64_t left_out = pick(3);
      for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor, MeshAxis::Stage})
        if (static_cast<int64_t>(axis) != left_out) request.mesh[axis] = axis == MeshAxis::Data ? divided(2) : 2;
    }
    if (request.mesh[MeshAxis::Data] > 1) request.zero = static_cast<int>(pick(4));
    if (request.mesh[MeshAxis::Stage] > 1) request.schedule = static_cast<PipelineSchedule>(pick(4));
  }

  Result<CompileResult> compiled(TrainingRequest request, int64_t budget) {
    request.budget_bytes = budget;
    return compile_training(llvm::cantFail(parse_graph(job_.text)), request, device_, CpuCatalog());
  }

  std::string check(const Plan& plan) {
    ++counts_.plans;
    counts_.on_host += plan.arenas.size() > 1;
    counts_.split += plan.fit.chunks > 1;
    counts_.repeating +=
        llvm::any_of(plan.slots, [](const Slot& slot) { return slot.category == Category::Recompute; });
    if (Status s = check_plan(plan)) return text_of(std::move(s));
    const std::vector<Outcome> outcomes = train_on_ranks(plan, values_, random_() % 2 == 0);
    std::string failure;  // of the rank that failed first, where others say that it has gone
    for (const Outcome& each : outcomes)
      if (failure.empty() || llvm::StringRef(failure).contains("another rank has gone"))
        failure = each.failure.empty() ? failure : each.failure;
    if (!failure.empty()) return failure;
    for (size_t rank = 0; rank < outcomes.size(); ++rank)
      if (std::string broken = compare(outcomes[rank], static_cast<int64_t>(rank)); !broken.empty())
        return "rank " + std::to_string(rank) + ": " + broken;
    for (const Outcome& each : outcomes)
      if (std::memcmp(each.losses.data(), outcomes[0].losses.data(), each.losses.size() * sizeof(double)) != 0)
        return "ranks have different losses";
    return "";
  }

  std::string compare(const Outcome& got, int64_t rank) const {
    const Plan& plan = got.plan;
    for (size_t step = 0; step < want_.losses.size(); ++step) {
      const double want = want_.losses[step], off = std::fabs(got.losses[step] - want);
      if (std::isfinite(want) && !(off <= rounding_share * std::max(std::fabs(want), 0.1)))
        return "the loss of step " + std::to_string(step) + " is " + std::to_string(got.losses[step]) +
               ", one rank's " + std::to_string(want);
      if (!std::isfinite(want)) return "";  // what comes of it is noise
    }
    for (const PlanState& state : plan.states) {
      const std::string& name = plan.slots[static_cast<size_t>(state.slot)].name;
      auto whole = want_.states.find(name);
      if (state.role != StateRole::Parameter || whole == want_.states.end()) continue;
      const Tensor& own = got.states.at(name);
      const Tensor want = piece_of(whole->second, state.divisions, plan.mesh, rank, own.type().shape);
      if (std::string broken = compare_state(name, own, want); !broken.empty()) return broken;
    }
    return "";
  }

  std::mt19937 random_;
  RankCounts& counts_;
  RandomJob job_;
  bool with_host_ = false, splits_ = false;
  DeviceDescription device_;
  RandomValues values_;
  Outcome want_;
};

}  // namespace

std::string differs_on_ranks(uint64_t seed, RankCounts& counts) { return RanksTest(seed, counts).run(); }

}  // namespace plimsoll::testing
