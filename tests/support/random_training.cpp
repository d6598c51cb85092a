#include "tests/support/random_training.h"

#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/text.h"
#include "ir/units.h"
#include "passes/compile.h"
#include "runtime/cuda/candidates.h"
#include "runtime/host/cpu_catalog.h"
#include "tests/support/one_batch.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace plimsoll::testing {
namespace {

std::string text_of(Status failure) { return llvm::toString(std::move(failure)); }

// Values of training: small enough that nothing overflows in a few steps.
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

// Losses of two steps and the gradients of the first, as bits.
Result<std::string> trained_bits(Plan plan, const RandomValues& values, bool late_copies = false) {
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
  std::map<std::string, std::string> gradients;
  GradientSink sink = [&](llvm::StringRef name, const Tensor& gradient) {
    gradients[name.str()].assign(static_cast<const char*>(gradient.data()), static_cast<size_t>(gradient.type().bytes()));
    return Status::success();
  };
  std::string bits;
  for (int step = 0; step < 2; ++step) {
    auto done = (*session)->step(data, step == 0 ? &sink : nullptr);
    if (!done) return done.takeError();
    bits.append(reinterpret_cast<const char*>(&done->loss), sizeof(done->loss));
  }
  for (const auto& [name, gradient] : gradients) bits += name + gradient;
  return bits;
}

// One job under one budget after the other, from the least on.
class PromiseTest {
 public:
  PromiseTest(uint64_t seed, const PromiseOptions& options, PromiseCounts& counts) : random_(static_cast<uint32_t>(seed)), options_(options), counts_(counts) {
    job_ = random_job(random_);
    DeviceCatalog known = llvm::cantFail(DeviceCatalog::builtin());
    bool on_gpu = !options.execute && seed % 4 == 3;
    device_ = llvm::cantFail(known.find(on_gpu ? "rtx4090" : "cpu"));
    device_.reserves = {{"for the test", static_cast<int64_t>(random_() % 3) * 12345}};
    device_.alignment_bytes = 64 << random_() % 3;
    if (on_gpu) device_.product_workspace_bytes = device_.convolution_workspace_bytes = 16384;  // in proportion to such graphs
    with_host_ = seed / 4 % 2 == 0;
    if (with_host_) {  // worth the way for small tensors already
      device_.to_host_gb_per_s = device_.from_host_gb_per_s = 12;
      device_.launch_us = 0.01;
    }
    job_.request.offload = with_host_;
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
      Result<std::string> bits = trained_bits(*plain, values_);
      if (!bits) return "plain: " + text_of(bits.takeError());
      expected_ = std::move(*bits);
    }
    plain_bytes_ = plain->promised_bytes();
    if (with_host_ && random_() % 2 == 0) job_.request.host_budget_bytes = 1 + static_cast<int64_t>(random_() % 1000) * plain->arenas.front().bytes / 1000;
    for (int64_t budget : budgets(*plain))
      if (std::string broken = under(budget); !broken.empty()) return "budget " + std::to_string(budget) + ": " + broken;
    return kept(*plain, plain->promised_bytes());
  }

 private:
  Result<Plan> compiled(int64_t budget, std::optional<Plan>* smallest = nullptr) {
    Result<Graph> graph = parse_graph(job_.text);
    if (!graph) return graph.takeError();
    TrainingRequest request = job_.request;
    request.budget_bytes = budget;
    request.effort = options_.effort;
    CompileHooks hooks;
    hooks.on_refused = [&](const Plan& plan) {
      if (smallest) *smallest = plan;
    };
    return compile_training(std::move(*graph), request, device_, *catalog_, hooks);
  }

  std::vector<int64_t> budgets(const Plan& plain) {
    const int64_t transient = plain.arenas.front().bytes - plain.arenas.front().persistent_bytes;
    const int64_t range = with_host_ ? plain.arenas.front().bytes * 2 / 3 : transient - transient / 2;
    std::vector<int64_t> all;
    for (int i = 0; i < options_.budgets; ++i) all.push_back(plain.promised_bytes() - range + static_cast<int64_t>(random_() % 1000) * range / 1000);
    std::sort(all.begin(), all.end());
    return all;
  }

  std::string under(int64_t budget) {
    ++counts_.budgets;
    std::optional<Plan> smallest;
    Result<Plan> plan = compiled(budget, &smallest);
    if (plan) return kept(*plan, budget);
    Diag refusal = take_diag(plan.takeError());
    ++counts_.refused;
    if (refusal.fault() != Fault::Budget || !smallest) return refusal.text();
    for (const auto& [other, us] : met_)
      if (other <= budget) return "refused, and " + std::to_string(other) + " is not: " + refusal.text();
    const int64_t least = smallest->promised_bytes();
    if (least <= budget) return "refused, and " + std::to_string(least) + " bytes are enough";
    return at_floor(refusal.text());
  }

  // The size that a refusal shows can be typed.
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
    if (on_host && host_budget > 0 && plan.arenas[1].bytes > host_budget)
      return "needs " + std::to_string(plan.arenas[1].bytes) + " bytes of the host, of " + std::to_string(host_budget);
    const double us = plan.predicted_step_us;
    for (const auto& [other, other_us] : met_)
      if (other <= budget ? us > other_us * (1 + 1e-9) : other_us > us * (1 + 1e-9))
        return "takes " + std::to_string(us) + " us, and " + std::to_string(other_us) + " us within " + std::to_string(other) + " bytes";
    met_.push_back({budget, us});
    counts_.on_host += on_host;
    counts_.repeating += llvm::any_of(plan.slots, [](const Slot& slot) { return slot.category == Category::Recompute; });
    if (random_() % 8 == 0 && budget < plain_bytes_)
      if (std::string differs = same_again(plan, budget); !differs.empty()) return differs;
    return options_.execute ? same_bits(plan) : "";
  }

  std::string same_again(const Plan& plan, int64_t budget) {
    Result<Plan> again = compiled(budget);
    if (!again) return text_of(again.takeError());
    return llvm::cantFail(plan_to_bytes(plan)) == llvm::cantFail(plan_to_bytes(*again)) ? "" : "another plan the second time";
  }

  std::string same_bits(const Plan& plan) {
    ++counts_.executed;
    for (bool late_copies : {false, true}) {
      if (late_copies && plan.arenas.size() == 1) break;
      Result<std::string> bits = trained_bits(plan, values_, late_copies);
      if (!bits) return text_of(bits.takeError());
      if (*bits != expected_) return std::string("other losses or gradients than the plain plan's") + (late_copies ? ", with copies made late" : "");
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
  std::string expected_;
  std::vector<std::pair<int64_t, double>> met_;  // budgets and what a step takes within them
  int64_t plain_bytes_ = 0;
};

}  // namespace

std::string broken_promise(uint64_t seed, const PromiseOptions& options, PromiseCounts& counts) { return PromiseTest(seed, options, counts).run(); }

}  // namespace plimsoll::testing
