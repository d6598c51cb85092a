#include "ir/fused_form.h"
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

// Sums that run in another order differ by rounding, which steps after the first carry on. Some jobs overflow.
bool are_close(double a, double b, double size) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= 1e-4 * (1e-2 + size);
}

bool same_within_rounding(const Run& a, const Run& b) {
  for (size_t i = 0; i < a.losses.size(); ++i)
    if (!are_close(a.losses[i], b.losses[i], std::abs(b.losses[i]))) return false;
  return llvm::all_of(a.gradients, [&](const auto& entry) {
    const auto& [name, gradient] = entry;
    const Tensor& other = b.gradients.at(name);
    double largest = 0;
    for (int64_t i = 0; i < other.type().elements(); ++i)
      if (std::isfinite(other.get(i))) largest = std::max(largest, std::abs(other.get(i)));
    for (int64_t i = 0; i < other.type().elements(); ++i)
      if (!are_close(gradient.get(i), other.get(i), largest)) return false;
    return true;
  });
}

struct FusedOps {
  size_t all = 0, reducing = 0, normalising = 0;
};

// The arithmetic of a batch norm, which random jobs have no other roots for.
bool normalises(const Graph& body) {
  for (NodeId id = body.first_node(); id != NodeId::None; id = body.next_node(id))
    if (body.node(id).op->name == "rsqrt") return true;
  return false;
}

FusedOps fused_ops(const Plan& plan) {
  FusedOps ops;
  for (const PlanFunction& function : plan.functions)
    for (const Instruction& instruction : function.instructions) {
      if (instruction.op != "fused") continue;
      ++ops.all;
      const FusedBody body = llvm::cantFail(fused_body(instruction.attrs.get_string("body")));
      ops.reducing += has_reductions(*body);
      ops.normalising += normalises(*body);
    }
  return ops;
}

TEST_SUITE("unit") {
  TEST_CASE(
      "fused ops change random training jobs by roundings of sums and of batch norms alone, and are the same twice") {
    size_t fused = 0, reducing = 0, normalising = 0;
    for (uint32_t seed = 0; seed < jobs; ++seed) {
      CAPTURE(seed);
      std::mt19937 random(seed);
      const RandomJob job = random_job(random);
      RandomValues values;
      values.add_for(parsed(job.text));
      const Plan with = compiled(job, {});
      Plan without = compiled(job, {"fuse-elementwise"});
      CHECK(fused_ops(without).all == 0);
      const FusedOps ops = fused_ops(with);
      fused += ops.all, reducing += ops.reducing, normalising += ops.normalising;
      const Run run = trained(with, values), plain = trained(std::move(without), values);
      CHECK(same_bits(run, trained(with, values)));
      const bool rounds = ops.reducing + ops.normalising > 0;
      CHECK((rounds ? same_within_rounding(run, plain) : same_bits(run, plain)));
    }
    CHECK(fused >= 2 * jobs);
    CHECK(reducing >= jobs / 4);
    CHECK(normalising > 0);
  }
}

}  // namespace
}  // namespace plimsoll::testing
