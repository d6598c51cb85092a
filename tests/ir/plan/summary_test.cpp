#include "ir/plan/summary.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// What the report says of a plan's time.

namespace plimsoll {
namespace {

using namespace testing;

Plan plan_within(const Graph& forward, int64_t budget_bytes) {
  const CpuCatalog catalog;
  TrainingRequest request;
  request.budget_bytes = budget_bytes;
  Result<CompileResult> result = compile_training(forward, request, cpu_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  REQUIRE(result->fits);
  return std::move(result->plan);
}

TEST_SUITE("unit") {
  TEST_CASE("model FLOPs are those of matmuls forward and backward, however much is made again") {
    const Graph forward = parsed(R"(
graph @two_layers(%x: f32[512,64]) state(%w: f32[64,256] parameter trained, %v: f32[256,64] parameter trained) {
  %h = linear(%x, %w) : f32[512,256]
  %g = gelu(%h) {approximate="tanh"} : f32[512,256]
  %y = linear(%g, %v) : f32[512,64]
  %loss = reduce_mean(%y) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)");
    const Plan plain = plan_within(forward, 0);
    const TimeSummary time = summarize_time(plain);
    // Two products forward; backward the gradients of both matrices and of %g.
    CHECK(time.model_flops == doctest::Approx(5 * 2.0 * 512 * 64 * 256));
    CHECK(model_flops_utilisation(plain) ==
          doctest::Approx(time.model_flops / (plain.device.matmul_tflops_for(DType::F32) * 1e6) / time.step_us));

    const Plan smaller = plan_within(forward, plain.promised_bytes() - (64 << 10));
    REQUIRE(smaller.fit.rematerialised > 0);
    CHECK(summarize_time(smaller).model_flops == time.model_flops);

    // By the data sheet the device is twice as fast, of which half as much is used.
    Plan on_sheet = plain;
    on_sheet.device.peak_tflops = {{DType::F32, 2 * plain.device.matmul_tflops_for(DType::F32)}};
    CHECK(model_flops_utilisation(on_sheet) == doctest::Approx(model_flops_utilisation(plain) / 2));
  }
}

}  // namespace
}  // namespace plimsoll
