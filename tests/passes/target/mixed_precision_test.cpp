#include "ir/text.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "passes/pass/pass_manager.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"
#include "tests/support/tensor_distance.h"

#include <doctest/doctest.h>
#include <cmath>
#include <cstring>

// Whole training steps in 16 bits: gradients near the f32 ones, and a loss scale that costs steps, never parameters.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[4,6], %labels: i64[4]) state(%w1: f32[6,8] parameter trained, %b1: f32[8] parameter trained, %w2: f32[3,8] parameter trained) {
  %h = linear(%x, %w1, %b1) {transpose_w=0} : f32[4,8]
  %g = gelu(%h) {approximate="none"} : f32[4,8]
  %y = linear(%g, %w2) {transpose_w=1} : f32[4,3]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)";

Graph forward() { return parsed(model); }

struct Training {
  RandomValues values;
  std::unique_ptr<Session> session;
  std::unique_ptr<OneBatch> data;

  explicit Training(TrainingRequest request) {
    values.add_for(forward());
    CpuCatalog catalog;
    Result<Plan> plan = fitting_plan(compile_training(forward(), request, cpu_device(), catalog));
    REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
    session = started(std::move(*plan), values);
    data = std::make_unique<OneBatch>(values, session->inputs());
  }

  Tensor state(llvm::StringRef name) {
    Tensor copy;
    llvm::cantFail(session->read_state(name, [&](const TensorView& view) {
      copy = Tensor(view.type, view.data);
      return Status::success();
    }));
    return copy;
  }

  void set_counter(llvm::StringRef name, double value) {
    for (const PlanState& each : session->plan().states)
      if (session->plan().slots[static_cast<size_t>(each.slot)].name == name)
        llvm::cantFail(session->executor().write(each.slot, [&](const TensorView& view) {
          view.set(0, value);
          return Status::success();
        }));
  }

  StepMetrics step() { return llvm::cantFail(session->step(*data)); }

  std::map<std::string, Tensor> gradients() {
    std::map<std::string, Tensor> found;
    GradientSink sink = [&](llvm::StringRef name, const Tensor& gradient) {
      found.emplace(name.str(), gradient);
      return Status::success();
    };
    llvm::cantFail(session->step(*data, &sink));
    return found;
  }

  // The bytes of everything a step may not lose.
  std::map<std::string, Tensor> learned() {
    std::map<std::string, Tensor> bytes;
    for (const PlanState& each : session->plan().states) {
      const std::string& name = session->plan().slots[static_cast<size_t>(each.slot)].name;
      bool kept = each.role == StateRole::Parameter || each.role == StateRole::Optimizer || name == "step";
      if (kept) bytes.emplace(name, state(name));
    }
    return bytes;
  }
};

TrainingRequest request_for(const char* precision, int64_t accumulate = 1) {
  TrainingRequest request;
  request.precision = precision;
  request.accumulate = accumulate;
  request.clip_grad_norm = 1;
  return request;
}

TEST_SUITE("unit") {
  TEST_CASE("gradients in bf16 and fp16 are f32 tensors near the f32 gradients") {
    const std::map<std::string, Tensor> exact = Training(request_for("fp32")).gradients();
    REQUIRE(exact.size() == 3);
    for (int64_t accumulate : {1, 2})
      for (const char* precision : {"bf16", "fp16"}) {
        CAPTURE(std::string(precision));
        CAPTURE(accumulate);
        Training training(request_for(precision, accumulate));
        // Accumulated gradients are sums over samples: 65536 times a gradient of 1 is more than f16 holds.
        if (llvm::StringRef(precision) == "fp16") training.set_counter("loss_scale", 4096);
        const std::map<std::string, Tensor> rounded = training.gradients();
        REQUIRE(rounded.size() == 3);
        for (const auto& [name, gradient] : exact) {
          CHECK(rounded.at(name).type() == gradient.type());
          CHECK(distance(rounded.at(name), gradient) < 2e-2);
          CHECK(distance(rounded.at(name), gradient) > 0);
        }
      }
  }

  TEST_CASE("the loss scale starts where the request says") {
    TrainingRequest request = request_for("fp16");
    request.first_loss_scale = 256;
    Training training(request);
    CHECK(training.state("loss_scale").get(0) == 256);
    CHECK(training.step().loss_scale == 256);
  }

  TEST_CASE("an overflow in fp16 costs a step and no parameter") {
    for (int64_t accumulate : {1, 2}) {
      CAPTURE(accumulate);
      Training training(request_for("fp16", accumulate));
      CHECK(training.state("loss_scale").get(0) == 65536);
      training.set_counter("loss_scale", 4096);
      CHECK(training.step().loss_scale == 4096);
      const std::map<std::string, Tensor> before = training.learned();
      REQUIRE(before.count("w1.exp_avg") == 1);
      training.set_counter("loss_scale", 0x1p40);
      const StepMetrics overflown = training.step();
      CHECK_FALSE(std::isfinite(overflown.grad_norm));
      CHECK(std::isfinite(overflown.loss));
      CHECK(overflown.loss_scale == 0x1p39);
      CHECK(overflown.skipped_steps == 1);
      CHECK(training.learned() == before);
      training.set_counter("loss_scale", 4096);
      const StepMetrics good = training.step();
      CHECK(std::isfinite(good.grad_norm));
      CHECK(good.skipped_steps == 1);
      CHECK(training.state("step").get(0) == 2);
      CHECK_FALSE(training.learned() == before);
    }
  }

  TEST_CASE("the loss scale doubles after 2000 steps without overflow and starts counting anew") {
    Training training(request_for("fp16"));
    training.set_counter("growth_tracker", 1998);
    CHECK(training.step().loss_scale == 65536);
    CHECK(training.step().loss_scale == 131072);
    CHECK(training.state("growth_tracker").get(0) == 0);
  }

  TEST_CASE("bf16 and fp32 plans hold no loss scale") {
    for (const char* precision : {"bf16", "fp32", "tf32", "exported"})
      CHECK_FALSE(Training(request_for(precision)).step().loss_scale.has_value());
  }

  TEST_CASE("the plan says what was cast, and why") {
    const Plan plan = Training(request_for("bf16")).session->plan();
    bool found = false;
    for (const Decision& decision : plan.decisions)
      found |= decision.pass == "insert-casts" && decision.subject == "linear" && decision.choice == "bf16" &&
               llvm::StringRef(decision.reason).contains("2 nodes: gains from 16-bit operands");
    CHECK(found);
    // No 16-bit weight gradient stands anywhere.
    for (const Slot& slot : plan.slots)
      if (slot.category == Category::Gradients) CHECK(slot.type.dtype == DType::F32);
  }

  TEST_CASE("casts to 16 bits stand in front of transposes that they alone read, and behind slices") {
    Graph graph = parsed(R"(
graph @moves(%x: f32[4,6], %y: f32[8,6]) state(%w: f32[4,4] parameter trained) {
  %e = exp(%x) : f32[4,6]
  %t = transpose(%e) {perm=[1,0]} : f32[6,4]
  %a = matmul(%t, %w) : f32[6,4]
  %f = exp(%y) : f32[8,6]
  %s = slice(%f) {starts=[0,0], sizes=[4,6], steps=[1,1]} : f32[4,6]
  %b = matmul(%w, %s) : f32[4,6]
  return a=%a, b=%b
}
)");
    llvm::cantFail(PassManager().run(graph, "insert-casts{to=bf16}"));
    const std::string text = to_text(graph);
    CHECK(llvm::StringRef(text).contains("%t = transpose(%e.bf16)"));
    CHECK(llvm::StringRef(text).contains("%s.bf16 = cast(%s)"));
    CHECK(graph.type(graph.find_value("t")).dtype == DType::BF16);
  }

  TEST_CASE("a rule for a module or a node overrules the records") {
    constexpr llvm::StringLiteral placed = R"(
graph @placed(%x: f32[4,6]) state(%w: f32[6,6] parameter trained) {
  %a = linear(%x, %w) {transpose_w=0} : f32[4,6] at=#0
  %b = linear(%a, %w) {transpose_w=0} : f32[4,6] at=#1
  %loss = reduce_mean(%b) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
  origin #0 node="/first" op="MatMul" module="model.h.0"
  origin #1 node="/second" op="MatMul" module="model.h.10"
}
)";
    auto dtypes = [&](const char* rules) {
      Result<Graph> graph = parse_graph(placed);
      REQUIRE_MESSAGE(bool(graph), llvm::toString(graph.takeError()));
      TrainingRequest request = request_for("bf16");
      request.precision_rules = rules;
      CpuCatalog catalog;
      Result<Plan> plan = fitting_plan(compile_training(std::move(*graph), request, cpu_device(), catalog));
      REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
      std::string found;
      for (const Instruction& instruction : plan->functions[0].instructions)
        if (instruction.op == "linear" && instruction.phase == Phase::Forward)
          found += dtype_name(plan->slots[static_cast<size_t>(instruction.results[0])].type.dtype).str() + " ";
      return found;
    };
    CHECK(dtypes("") == "bf16 bf16 ");
    CHECK(dtypes("module:model\\.h\\.0 = fp32") == "f32 bf16 ");  // the whole path, not h.10
    CHECK(dtypes("# all but one\nmodule:model.* = fp32\nnode:/first = bf16") == "bf16 f32 ");
  }

  TEST_CASE("a precision the model or the request does not allow is refused") {
    auto refusal = [](const char* precision, const char* rules, llvm::StringRef text) {
      TrainingRequest request = request_for(precision);
      request.precision_rules = rules;
      CpuCatalog catalog;
      Result<Plan> plan =
          fitting_plan(compile_training(llvm::cantFail(parse_graph(text)), request, cpu_device(), catalog));
      return take_diag(plan.takeError());
    };
    CHECK(refusal("fp4", "", model).fault() == Fault::Usage);
    CHECK(refusal("fp32", "op:exp = fp32", model).text() ==
          "precision rules need precision bf16, fp16 or fp8, not fp32");
    constexpr llvm::StringLiteral half = R"(
graph @half(%x: f16[4]) state(%w: f16[4] parameter trained) {
  %y = mul(%x, %w) : f16[4]
  %loss = reduce_mean(%y) {axes=[0], keep_dims=0} : f16[]
  return loss=%loss
}
)";
    const Diag diag = refusal("bf16", "", half);
    CHECK(diag.fault() == Fault::Model);
    CHECK(diag.text() ==
          "precision bf16: w was exported as f16[4]; export the model in float32, or train it in precision "
          "'exported'");
  }
}

}  // namespace
}  // namespace plimsoll
