#include "passes/budget/budget_report.h"
#include "ir/support/units.h"
#include "tests/support/budget_jobs.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  TEST_CASE("refusals tell the peak, and the budget they name is enough") {
    std::mt19937 random(17);
    std::string text = random_model(random);
    Plan plain = cantFail(compiled(text, 0));
    auto message = [](Result<Plan> plan) {
      REQUIRE_FALSE(bool(plan));
      return take_diag(plan.takeError()).text();
    };
    CHECK(llvm::StringRef(message(compiled(text, plain.promised_bytes() - 1, false))).contains("at the peak ("));
    std::string refusal = message(compiled(text, plain.arenas[0].persistent_bytes + 64));
    llvm::StringRef named = llvm::StringRef(refusal).split("(").second.split(" bytes").first;
    int64_t enough = 0;
    REQUIRE_FALSE(named.getAsInteger(10, enough));
    CHECK(bool(compiled(text, enough)));
    CHECK(enough < plain.promised_bytes());
  }

  // One fused op makes %r, the difference from %t and the mean of its square; it writes both for backward.
  TEST_CASE("a refusal names the values that an op leaves beside the one at the peak") {
    TrainingRequest request;
    request.loss = "mse:r:t";
    request.budget_bytes = 2 << 20;
    Result<Plan> refused = compiled_for(small_device(), R"(
graph @wide(%x: f32[64,4096], %t: f32[64,4096]) state(%w: f32[64,4096] parameter trained) {
  %h = mul(%x, %w) : f32[64,4096]
  %r = tanh(%h) : f32[64,4096]
  return y=%r
})",
                                        request);
    REQUIRE_FALSE(bool(refused));
    const std::string text = take_diag(refused.takeError()).text();
    CAPTURE(text);
    CHECK(llvm::StringRef(text).contains("x 1 MiB, t 1 MiB, sub 1 MiB"));
    CHECK(llvm::StringRef(text).contains(" alone needs "));
  }

  TEST_CASE("a refusal tells of both memories, and host memory is a budget too") {
    std::mt19937 random(31);
    std::string text = random_model(random);
    TrainingRequest request;
    Plan plain = cantFail(compiled_for(device_with_host(), text, request));
    request.budget_bytes = plain.promised_bytes() * 3 / 5;
    Plan unlimited = cantFail(compiled_for(device_with_host(), text, request));
    REQUIRE(unlimited.arenas.size() == 2);

    request.host_budget_bytes = unlimited.loading_bytes() + unlimited.arenas[1].bytes / 8;
    const CompileResult refused = cantFail(result_for(device_with_host(), text, request));
    REQUIRE_FALSE(refused.fits);
    const Plan* smallest = &refused.plan;
    const std::string message = shortfall(refused);
    CAPTURE(message);
    CHECK(smallest->promised_bytes() > request.budget_bytes);
    const int64_t on_host = smallest->host_bytes();
    CHECK(on_host <= request.host_budget_bytes);
    CHECK(llvm::StringRef(message).contains(" and " + format_bytes(on_host) + " of host memory, the budget is " +
                                            format_bytes(request.budget_bytes) + " and " +
                                            format_bytes(request.host_budget_bytes) + " of host memory; at the peak"));
    CHECK_FALSE(llvm::StringRef(message.substr(message.find("at the peak")))
                    .contains(".host "));  // values on the host need no device bytes

    request.budget_bytes = round_up_readable(smallest->promised_bytes());
    Plan enough = cantFail(compiled_for(device_with_host(), text, request));
    CHECK(enough.promised_bytes() <= request.budget_bytes);
  }
}

}  // namespace
}  // namespace plimsoll
