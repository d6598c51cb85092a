#include "tests/support/random_training.h"

#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/support/units.h"
#include "ir/text.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/cuda/cuda_catalog.h"
#include "tests/support/one_batch.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace plimsoll::testing {
namespace {

std::string text_of(Status failure) { return llvm::toString(std::move(failure)); }

// Returns values so small that nothing overflows in a few steps.
RandomValues values_for(const Graph& graph) {
  RandomValues values;
  values.add_for(graph);
  for (const State& state : graph.states) {
    TensorView tensor = values.tensors.at(graph.value(state.value).name).view();
    if (is_float(tensor.type.dtype))
      for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, 0.1 * tensor.get(i));
  }
  return values;
}

// The losses of two steps and the gradients of the first.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients;
};

bool same_bits(const Trained& a, const Trained& b) {
  const auto bits = [](const Tensor& tensor) {
    return llvm::StringRef(static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.type().bytes()));
  };
  return std::memcmp(a.losses.data(), b.losses.data(), a.losses.size() * sizeof(double)) == 0 &&
         a.gradients.size() == b.gradients.size() && llvm::all_of(a.gradients, [&](const auto& entry) {
           return bits(entry.second) == bits(b.gradients.at(entry.first));
         });
}

// Largest relative difference by rounding in another order: of a loss, and of a gradient over its norm, or over a
// hundredth of the norm of all gradients if terms cancel. Chunks are added in f32 in every precision; a few thousand
// such gradients differ by at most 4e-7.
constexpr double rounding_share = 1e-5;

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.type().elements(); ++i) sum += tensor.get(i) * tensor.get(i);
  return std::sqrt(sum);
}

double norm_of(const Trained& trained) {
  double norm = 0;
  for (const auto& [name, gradient] : trained.gradients) norm = std::hypot(norm, norm_of(gradient));
  return norm;
}

// Names what differs by more than rounding, or returns an empty string. A gradient that overflows must do so in both.
std::string rounding_broken(const Trained& got, const Trained& want) {
  for (size_t step = 0; step < want.losses.size(); ++step)
    if (!(std::fabs(got.losses[step] - want.losses[step]) <= rounding_share * std::fabs(want.losses[step])))
      return "the loss of step " + std::to_string(step) + " is " + std::to_string(got.losses[step]) +
             ", the plain plan's " + std::to_string(want.losses[step]);
  if (got.gradients.size() != want.gradients.size()) return "other gradients than the plain plan's";
  const double all = norm_of(want);
  if (!std::isfinite(all)) return std::isfinite(norm_of(got)) ? "no gradient overflows, and the plain plan's do" : "";
  for (const auto& [name, gradient] : want.gradients) {
    const Tensor& other = got.gradients.at(name);
    if (other.type() != gradient.type()) return "the gradient of " + name + " is " + to_string(other.type());
    double off = 0;
    for (int64_t i = 0; i < gradient.type().elements(); ++i) off = std::hypot(off, other.get(i) - gradient.get(i));
    if (!(off <= rounding_share * std::max(norm_of(gradient), all / 100)))
      return "the gradient of " + name + " is off by " + std::to_string(off) + " of " +
             std::to_string(norm_of(gradient)) + ", all gradients " + std::to_string(all);
  }
  return "";
}

Result<Trained> train(Plan plan, const RandomValues& values, bool late_copies = false) {
  ExecutorOptions options;
  options.poison = true;
  options.late_copies = late_copies;
  Result<std::unique_ptr<Session>> session = Session::create(std::move(plan), options);
  if (!session) return session.takeError();
  auto load = [&](llvm::StringRef name, const TensorView& into) {
    std::memcpy(into.data, values.tensors.at(name.str()).view().data, static_cast<size_t>(into.type.bytes()));
    return Status::success();
  };
  if (Status s = (*session)->initialise(load, 7)) return s;
  OneBatch data(values, (*session)->inputs());
  Trained trained;
  GradientSink sink = [&](llvm::StringRef name, const Tensor& gradient) {
    trained.gradients[name.str()] = gradient;
    return Status::success();
  };
  for (int step = 0; step < 2; ++step) {
    auto done = (*session)->step(data, step == 0 ? &sink : nullptr);
    if (!done) return done.takeError();
    trained.losses.push_back(done->loss);
  }
  return trained;
}

// Compiles one job with increasing budgets.
class PromiseTest {
 public:
  PromiseTest(uint64_t seed, const PromiseOptions& options, PromiseCounts& counts)
      : random_(static_cast<uint32_t>(seed)), options_(options), counts_(counts) {
    job_ = random_job(random_);
    DeviceCatalog known = llvm::cantFail(DeviceCatalog::builtin());
    bool on_gpu = !options.execute && seed % 4 == 3;
    device_ = llvm::cantFail(known.find(on_gpu ? "rtx4090" : "cpu"));
    device_.reserves = {{"for the test", static_cast<int64_t>(random_() % 3) * 12345}};
    device_.alignment_bytes = 64 << random_() % 3;
    if (on_gpu)
      device_.product_workspace_bytes = device_.convolution_workspace_bytes =
          16384;  // in proportion to these small graphs
    with_host_ = seed / 4 % 2 == 0;
    if (with_host_) {  // fast enough to be worth it for small tensors
      device_.to_host_gb_per_s = device_.from_host_gb_per_s = 12;
      device_.to_host_both_ways_gb_per_s = device_.from_host_both_ways_gb_per_s = 10;
      device_.launch_us = 0.01;
    }
    job_.request.offload = with_host_;
    const bool splits = options.split_every > 0 && seed / 8 % static_cast<uint64_t>(options.split_every) == 0;
    job_.request.split = splits ? 0 : 1;
    catalog_ = on_gpu ? std::unique_ptr<KernelCatalog>(new CudaCatalog(device_)) : std::make_unique<CpuCatalog>();
  }

  std::string run() {
    ++counts_.graphs;
    Result<Graph> graph = parse_graph(job_.text);
    if (!graph) return text_of(graph.takeError());
    values_ = values_for(*graph);
    Result<Plan> plain = compiled(0);
    if (!plain) return "plain: " + text_of(plain.takeError());
    if (options_.execute) {
      Result<Trained> expected = train(*plain, values_);
      if (!expected) return "plain: " + text_of(expected.takeError());
      expected_ = std::move(*expected);
    }
    plain_bytes_ = plain->promised_bytes();
    if (with_host_ && random_() % 2 == 0)
      job_.request.host_budget_bytes =
          1 + plain->loading_bytes() + static_cast<int64_t>(random_() % 1000) * plain->arenas.front().bytes / 1000;
    for (int64_t budget : budgets(*plain))
      if (std::string broken = under(budget); !broken.empty())
        return "budget " + std::to_string(budget) + ": " + broken;
    return kept(*plain, plain->promised_bytes());
  }

 private:
  Result<CompileResult> result_of(int64_t budget) {
    Result<Graph> graph = parse_graph(job_.text);
    if (!graph) return graph.takeError();
    TrainingRequest request = job_.request;
    request.budget_bytes = budget;
    request.effort = options_.effort;
    return compile_training(std::move(*graph), request, device_, *catalog_);
  }

  Result<Plan> compiled(int64_t budget) { return fitting_plan(result_of(budget)); }

  std::vector<int64_t> budgets(const Plan& plain) {
    const int64_t transient = plain.arenas.front().bytes - plain.arenas.front().persistent_bytes;
    const int64_t range = with_host_ ? plain.arenas.front().bytes * 2 / 3 : transient - transient / 2;
    std::vector<int64_t> all;
    for (int i = 0; i < options_.budgets; ++i)
      all.push_back(plain.promised_bytes() - range + static_cast<int64_t>(random_() % 1000) * range / 1000);
    std::sort(all.begin(), all.end());
    return all;
  }

  std::string under(int64_t budget) {
    ++counts_.budgets;
    Result<CompileResult> result = result_of(budget);
    if (!result) return text_of(result.takeError());
    if (result->fits) return kept(result->plan, budget);
    ++counts_.refused;
    const std::string refusal = shortfall(*result);
    for (const auto& [other, us] : met_)
      if (other <= budget) return "refused, and " + std::to_string(other) + " is not: " + refusal;
    const int64_t least = result->plan.promised_bytes();
    if (least <= budget) return "refused, and " + std::to_string(least) + " bytes are enough";
    return at_floor(refusal);
  }

  // Reads the size that a refusal names, as a user would type it.
  std::string at_floor(llvm::StringRef refusal) {
    auto [number, rest] = refusal.split("needs ").second.split(" (");
    Result<int64_t> typed = parse_bytes(number);
    if (!typed) return text_of(typed.takeError());
    Result<Plan> plan = compiled(*typed);
    if (!plan) return "what is needed is not enough: " + text_of(plan.takeError());
    return kept(*plan, *typed);
  }

  std::string kept(const Plan& plan, int64_t budget) {
    if (Status s = check_plan(plan)) return text_of(std::move(s));
    if (plan.promised_bytes() > budget) return "needs " + std::to_string(plan.promised_bytes());
    const bool on_host = plan.arenas.size() > 1;
    const int64_t host_budget = job_.request.host_budget_bytes;
    if (on_host && host_budget > 0 && plan.host_bytes() > host_budget)
      return "needs " + std::to_string(plan.host_bytes()) + " bytes of the host, of " + std::to_string(host_budget);
    const double us = plan.predicted_step_us;
    for (const auto& [other, other_us] : met_)
      if (other <= budget ? us > other_us * (1 + 1e-9) : other_us > us * (1 + 1e-9))
        return "takes " + std::to_string(us) + " us, and " + std::to_string(other_us) + " us within " +
               std::to_string(other) + " bytes";
    met_.push_back({budget, us});
    counts_.on_host += on_host;
    counts_.split += is_split(plan);
    counts_.repeating +=
        llvm::any_of(plan.slots, [](const Slot& slot) { return slot.category == Category::Recompute; });
    if (random_() % 8 == 0 && budget < plain_bytes_)
      if (std::string differs = same_again(plan, budget); !differs.empty()) return differs;
    return options_.execute ? same_training(plan) : "";
  }

  static bool is_split(const Plan& plan) { return plan.fit.chunks > 1; }

  std::string same_again(const Plan& plan, int64_t budget) {
    Result<Plan> again = compiled(budget);
    if (!again) return text_of(again.takeError());
    return llvm::cantFail(plan_to_bytes(plan)) == llvm::cantFail(plan_to_bytes(*again))
               ? ""
               : "another plan the second time";
  }

  std::string same_training(const Plan& plan) {
    ++counts_.executed;
    counts_.split_executed += is_split(plan);
    for (bool late_copies : {false, true}) {
      if (late_copies && plan.arenas.size() == 1) break;
      Result<Trained> got = train(plan, values_, late_copies);
      if (!got) return text_of(got.takeError());
      std::string broken;
      if (is_split(plan))
        broken = rounding_broken(*got, expected_);
      else if (!same_bits(*got, expected_))
        broken = "other losses or gradients than the plain plan's";
      if (!broken.empty()) return broken + (late_copies ? ", with copies made late" : "");
    }
    return "";
  }

  std::mt19937 random_;
  const PromiseOptions& options_;
  PromiseCounts& counts_;
  RandomJob job_;
  bool with_host_ = false;
  DeviceDescription device_;
  std::unique_ptr<KernelCatalog> catalog_;
  RandomValues values_;
  Trained expected_;
  std::vector<std::pair<int64_t, double>> met_;  // budgets, and the time of a step within them
  int64_t plain_bytes_ = 0;
};

}  // namespace

std::string broken_promise(uint64_t seed, const PromiseOptions& options, PromiseCounts& counts) {
  return PromiseTest(seed, options, counts).run();
}

}  // namespace plimsoll::testing
