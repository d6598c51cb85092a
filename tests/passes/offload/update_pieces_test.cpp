#include "tests/support/budget_jobs.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  // The weights have 256 KiB, as much as the moments and the gradient have each. AdamW's update of all of them would
  // hold 1 MiB, SGD's 768 KiB, and nothing else holds more than 260 KiB. Lion's moving means come whole.
  TEST_CASE("a large update comes from the host piece by piece, and changes no bit") {
    const std::string text = R"(
graph @table(%i: i64[16], %t: f32[16,64]) state(%w: f32[1024,64] parameter trained) {
  %r = gather(%w, %i) {axis=0} : f32[16,64]
  return r=%r
})";
    TrainingRequest request;
    request.loss = "mse:r:t";
    for (OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Sgd, OptimizerKind::Lion})
      for (int64_t accumulate : {1, 3}) {
        CAPTURE(optimizer_name(kind).str());
        CAPTURE(accumulate);
        request.optimizer.kind = kind;
        request.optimizer.momentum = kind == OptimizerKind::Sgd ? 0.9 : 0;
        request.accumulate = accumulate;
        request.budget_bytes = 0;
        const Trace expected = train(cantFail(compiled_for(device_with_host(), text, request)), text);
        request.budget_bytes = 1;
        const Plan least = cantFail(result_for(device_with_host(), text, request)).plan;
        if (kind != OptimizerKind::Lion) CHECK(least.promised_bytes() < 600 << 10);
        request.budget_bytes = least.promised_bytes();
        const Plan plan = cantFail(compiled_for(device_with_host(), text, request));
        CHECK(plan.functions.back().updates.size() > 8);
        CHECK(train(plan, text) == expected);
        CHECK(train(plan, text, true) == expected);
      }
  }

  // Pieces of 32,768 elements or more, since each has whole KiB of the moments' scales.
  TEST_CASE("an update of moments in 8 bits and of weights without masters comes piece by piece, too") {
    const std::string text = R"(
graph @table(%i: i64[16], %t: f32[16,64]) state(%w: f32[4000,66] parameter trained) {
  %r = gather(%w, %i) {axis=0} : f32[16,66]
  %s = slice(%r) {sizes=[16,64], starts=[0,0], steps=[1,1]} : f32[16,64]
  return r=%s
})";
    TrainingRequest request;
    request.loss = "mse:r:t";
    request.moments = Moments::EightBit;
    for (const MasterWeights masters : {MasterWeights::On, MasterWeights::Off}) {
      request.master_weights = masters;
      request.precision = masters == MasterWeights::Off ? "bf16" : "exported";
      request.budget_bytes = 0;
      const Trace expected = train(cantFail(compiled_for(device_with_host(), text, request)), text);
      request.budget_bytes = 1;
      const Plan least = cantFail(result_for(device_with_host(), text, request)).plan;
      request.budget_bytes = least.promised_bytes();
      const Plan plan = cantFail(compiled_for(device_with_host(), text, request));
      CHECK(plan.functions.back().updates.size() > 12);
      CHECK(train(plan, text) == expected);
      CHECK(train(plan, text, true) == expected);
    }
  }

  // Each of the nine updates of 256 KiB of weights would hold 1 MiB. The softmaxes make the program long enough for
  // three pieces of each, which hold 342 KiB beside the gradient of 256 KiB.
  TEST_CASE("many large updates come in a few pieces each") {
    std::string states, body, sum = "%r0";
    for (int i = 0; i < 9; ++i) {
      const std::string number = std::to_string(i);
      states += (i == 0 ? "%w" : ", %w") + number + ": f32[1024,64] parameter trained";
      body += "  %r" + number + " = gather(%w" + number + ", %i) {axis=0} : f32[16,64]\n";
      if (i == 0) continue;
      body += "  %s" + number + " = add(" + sum + ", %r" + number + ") : f32[16,64]\n";
      sum = "%s" + number;
    }
    for (int i = 0; i < 60; ++i) {
      const std::string next = "%soft" + std::to_string(i);
      body += "  " + next + " = softmax(" + sum + ") {axis=1} : f32[16,64]\n";
      sum = next;
    }
    const std::string text =
        "graph @tables(%i: i64[16], %t: f32[16,64]) state(" + states + ") {\n" + body + "  return r=" + sum + "\n}";
    TrainingRequest request;
    request.loss = "mse:r:t";
    const Trace expected = train(cantFail(compiled_for(device_with_host(), text, request)), text);
    request.budget_bytes = 1;
    const Plan least = cantFail(result_for(device_with_host(), text, request)).plan;
    CHECK(least.promised_bytes() < 850 << 10);
    request.budget_bytes = least.promised_bytes();
    const Plan plan = cantFail(compiled_for(device_with_host(), text, request));
    CHECK(plan.functions.back().updates.size() >= 3 * 27);
    CHECK(train(plan, text) == expected);
  }

  // Eight gradients of 64 KiB each. Clipping reads all of them before the first update does.
  TEST_CASE("the norm of accumulated gradients does not need all of them at once") {
    std::string states, body, sum = "%r0";
    for (int i = 0; i < 8; ++i) {
      const std::string number = std::to_string(i);
      states += (i == 0 ? "%w" : ", %w") + number + ": f32[256,64] parameter trained";
      body += "  %r" + number + " = gather(%w" + number + ", %i) {axis=0} : f32[16,64]\n";
      if (i == 0) continue;
      body += "  %s" + number + " = add(" + sum + ", %r" + number + ") : f32[16,64]\n";
      sum = "%s" + number;
    }
    const std::string text =
        "graph @tables(%i: i64[16], %t: f32[16,64]) state(" + states + ") {\n" + body + "  return r=" + sum + "\n}";
    TrainingRequest request;
    request.loss = "mse:r:t";
    request.accumulate = 2;
    request.clip_grad_norm = 1;
    const Trace expected = train(cantFail(compiled_for(device_with_host(), text, request)), text);
    request.budget_bytes = 1;
    const Plan least = cantFail(result_for(device_with_host(), text, request)).plan;
    CHECK(least.promised_bytes() < 8 * (64 << 10));
    request.budget_bytes = least.promised_bytes();
    CHECK(train(cantFail(compiled_for(device_with_host(), text, request)), text) == expected);
  }
}

}  // namespace
}  // namespace plimsoll
