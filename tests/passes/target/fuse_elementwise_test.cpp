#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/random_training.h"
#include "tests/support/small_training.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll::testing {
namespace {

constexpr int jobs = 24;

struct Run {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients;  // of the first step
};

llvm::StringRef bits_of(const void* data, size_t bytes) { return {static_cast<const char*>(data), bytes}; }

bool same_bits(const Run& a, const Run& b) {
  const auto losses = [](const Run& run) { return bits_of(run.losses.data(), run.losses.size() * sizeof(double)); };
  return losses(a) == losses(b) && a.gradients.size() == b.gradients.size() &&
         llvm::all_of(a.gradients, [&](const auto& entry) {
           const auto& [name, gradient] = entry;
           const size_t bytes = static_cast<size_t>(gradient.type().bytes());
           return bits_of(gradient.data(), bytes) == bits_of(b.gradients.at(name).data(), bytes);
         });
}

Plan compiled(const RandomJob& job, std::vector<std::string> skipped) {
  CompileHooks hooks;
  hooks.pipeline.skip = std::move(skipped);
  const CpuCatalog catalog;
  Result<CompileResult> result = compile_training(parsed(job.text), job.request, cpu_device(), catalog, hooks);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(result->plan);
}

Run trained(Plan plan, const RandomValues& values) {
  const std::unique_ptr<Session> session = started(std::move(plan), values);
  OneBatch data(values, session->inputs());
  Run run;
  GradientSink sink = [&](llvm::StringRef name, const Tensor& gradient) {
    run.gradients[name.str()] = gradient;
    return Status::success();
  };
  for (int step = 0; step < 3; ++step)
    run.losses.push_back(llvm::cantFail(session->step(data, step == 0 ? &sink : nullptr)).loss);
  return run;
}

size_t fused_ops(const Plan& plan) {
  size_t count = 0;
  for (const PlanFunction& function : plan.functions)
    count += static_cast<size_t>(llvm::count_if(
        function.instructions, [](const Instruction& instruction) { return instruction.op == "fused"; }));
  return count;
}

TEST_SUITE("unit") {
  TEST_CASE("fused elementwise ops change no bit of random training jobs") {
    size_t fused = 0;
    for (uint32_t seed = 0; seed < jobs; ++seed) {
      CAPTURE(seed);
      std::mt19937 random(seed);
      const RandomJob job = random_job(random);
      RandomValues values;
      values.add_for(parsed(job.text));
      Plan with = compiled(job, {}), without = compiled(job, {"fuse-elementwise"});
      CHECK(fused_ops(without) == 0);
      fused += fused_ops(with);
      CHECK(same_bits(trained(std::move(with), values), trained(std::move(without), values)));
    }
    CHECK(fused >= 2 * jobs);
  }
}

}  // namespace
}  // namespace plimsoll::testing
