#include "ir/text.h"
#include "runtime/first_values.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/tensor_distance.h"

#include <doctest/doctest.h>

#include <numeric>
#include <random>

// Whole training steps whose linear products have 8-bit operands.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[32,48], %labels: i64[32]) state(%w1: f32[48,64] parameter trained, %b1: f32[64] parameter trained, %w2: f32[80,64] parameter trained, %head: f32[16,80] parameter trained) {
  %h = linear(%x, %w1, %b1) {transpose_w=0} : f32[32,64] at=#0
  %g = gelu(%h) {approximate="none"} : f32[32,64]
  %k = linear(%g, %w2) {transpose_w=1} : f32[32,80] at=#1
  %r = relu(%k) : f32[32,80]
  %y = linear(%r, %head) {transpose_w=1} : f32[32,16]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[32], f32[]
  return loss=%loss
  origin #0 node="/first" op="MatMul" module="model.h.0"
  origin #1 node="/second" op="MatMul" module="model.h.1"
}
)";

TrainingRequest request_for(const char* precision) {
  TrainingRequest request;
  request.precision = precision;
  return request;
}

Plan must_compile(const TrainingRequest& request, const char* device = nullptr) {
  Result<Plan> plan = compiled(model, request, device);
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

int64_t count(const Plan& plan, llvm::StringRef op) {
  int64_t found = 0;
  for (const PlanFunction& function : plan.functions)
    found += llvm::count_if(function.instructions, [&](const Instruction& each) { return each.op == op; });
  return found;
}

// Weights as layers have them at first, so that scores are of order 1.
RandomValues values_for(llvm::StringRef graph) {
  RandomValues values;
  values.add_for(parsed(graph));
  for (auto& [name, tensor] : values.tensors)
    if (tensor.type().rank() == 2 && name != "x")
      for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, 0.15 * tensor.get(i));
  return values;
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients;
};

Trained train(Plan plan, int steps, llvm::StringRef graph = model) {
  const RandomValues values = values_for(graph);
  std::unique_ptr<Session> session = started(std::move(plan), values);
  OneBatch data(values, session->inputs());
  Trained trained;
  GradientSink sink = [&](llvm::StringRef name, const Tensor& gradient) {
    trained.gradients.emplace(name.str(), gradient);
    return Status::success();
  };
  for (int step = 0; step < steps; ++step)
    trained.losses.push_back(llvm::cantFail(session->step(data, step == 0 ? &sink : nullptr)).loss);
  return trained;
}

// The losses of the first rank of a mesh that shares the batch.
std::vector<double> losses_on(const char* mesh, int zero) {
  TrainingRequest request = request_for("fp8");
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  request.zero = zero;
  const CpuCatalog catalog;
  Result<Derived> derived = derive_program(forward_of(parsed(model), request), {}, request, cpu_device(), catalog, {});
  REQUIRE_MESSAGE(bool(derived), llvm::toString(derived.takeError()));
  const RandomValues values = values_for(model);
  RankTrainer trainer(std::move(derived->draft.program), request.mesh, values);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    const std::vector<double> all = trainer.step(1);
    losses.push_back(std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()));
  }
  return losses;
}

// Layers of random sizes behind one another: weights that lie either way, some frozen or shared by two layers, some
// sizes that are no multiple of 16, activations, gates and residual connections.
std::string random_model(uint32_t seed) {
  std::mt19937 engine(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); };
  const int64_t width = 16 * (1 + below(4)), rows = 16 * (1 + below(3));
  const auto type = [](int64_t r, int64_t c) { return "f32[" + std::to_string(r) + "," + std::to_string(c) + "]"; };
  std::string states, nodes, h = "x";
  int64_t weights = 0;
  const auto layer = [&](const std::string& in, int64_t inputs, int64_t outputs) {
    const std::string w = "w" + std::to_string(weights), y = "y" + std::to_string(weights++);
    const bool turned = below(2) == 0;
    states += "%" + w + ": " + (turned ? type(outputs, inputs) : type(inputs, outputs)) + " parameter" +
              (below(4) > 0 ? " trained, " : ", ");
    nodes += "  %" + y + " = linear(%" + in + ", %" + w + ") {transpose_w=" + (turned ? "1" : "0") +
             "} : " + type(rows, outputs) + "\n";
    return y;
  };
  const auto unary = [&](const char* op, const std::string& in, int64_t columns) {
    const std::string y = in + "." + op;
    nodes += "  %" + y + " = " + op + "(%" + in + ") : " + type(rows, columns) + "\n";
    return y;
  };
  const auto binary = [&](const char* op, const std::string& a, const std::string& b, int64_t columns) {
    const std::string y = a + "." + op + "." + b;
    nodes += "  %" + y + " = " + op + "(%" + a + ", %" + b + ") : " + type(rows, columns) + "\n";
    return y;
  };
  h = layer(h, width, width);
  for (int64_t block = 0; block < 2 + below(3); ++block) {
    const int64_t inner = below(5) == 0 ? 24 : 16 * (1 + below(5));
    std::string a = unary(below(2) == 0 ? "silu" : "relu", layer(h, width, inner), inner);
    if (below(2) == 0) a = binary("mul", a, layer(h, width, inner), inner);
    h = binary("add", h, layer(a, inner, width), width);
  }
  nodes += "  %scores = linear(%" + h + ", %w0) {transpose_w=1} : " + type(rows, width) + "\n";
  return "graph @random(%x: " + type(rows, width) + ", %labels: i64[" + std::to_string(rows) + "]) state(" + states +
         "%b: f32[" + std::to_string(width) + "] parameter trained) {\n" + nodes +
         "  %y = add(%scores, %b) : " + type(rows, width) +
         "\n  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction=\"mean\"} : f32[], f32[" +
         std::to_string(rows) + "], f32[]\n  return loss=%loss\n}\n";
}

TEST_SUITE("unit") {
  TEST_CASE("fp8: hidden products have 8-bit operands, the head has not, and the plan says so") {
    const Plan plan = must_compile(request_for("fp8"));
    // Of two hidden layers: forward, both gradients of weights, and the gradient of the second one's input.
    CHECK(count(plan, "linear_f8") == 5);
    CHECK(count(plan, "linear") == 2);
    CHECK(count(plan, "linear_dw") == 1);
    CHECK(decides(plan, "mark-f8", "linear layers", "fp8", "2 layers: operands f8e4m3, gradients of results f8e5m2"));
    CHECK(decides(plan, "mark-f8", "linear layers", "not fp8", "1 layer: no layer follows"));
    CHECK(decides(plan, "expand-f8", "forward products", "f8e4m3 x f8e4m3", "2 products"));
    CHECK(decides(plan, "expand-f8", "gradients of inputs", "f8e5m2 x f8e4m3", "1 product"));
    CHECK(plan.training.precision == "fp8");
    // Products of one layer share the codes of what they both read: of x, w1, g, w2 and two gradients.
    CHECK(count(plan, "to_f8") == 6);
    CHECK(count(plan, "f8_scale") == 6);
  }

  TEST_CASE("fp8: gradients are near those of f32, and a run's losses near those of bf16") {
    const Trained exact = train(must_compile(request_for("fp32")), 20),
                  half = train(must_compile(request_for("bf16")), 20),
                  eight = train(must_compile(request_for("fp8")), 20);
    for (const auto& [name, gradient] : exact.gradients) {
      CAPTURE(name);
      CHECK(eight.gradients.at(name).type() == gradient.type());
      CHECK(distance(eight.gradients.at(name), gradient) < 0.2);
      CHECK(distance(eight.gradients.at(name), gradient) > distance(half.gradients.at(name), gradient));
    }
    CHECK(eight.losses.back() < eight.losses.front());
    for (size_t step = 0; step < eight.losses.size(); ++step)
      CHECK(eight.losses[step] == doctest::Approx(half.losses[step]).epsilon(0.03));
  }

  TEST_CASE("fp8: weights that are read as codes are drawn as those of their layers") {
    const auto eight = first_values_of(must_compile(request_for("fp8"))),
               half = first_values_of(must_compile(request_for("bf16")));
    for (const char* name : {"w1", "b1", "w2", "head"}) {
      CAPTURE(name);
      CHECK(eight.lookup(name).kind == FirstValue::Kind::Uniform);
      CHECK(eight.lookup(name).scale == half.lookup(name).scale);
    }
  }

  TEST_CASE("fp8: rules keep layers in 16 bits, and give the head 8") {
    TrainingRequest request = request_for("fp8");
    request.precision_rules = "module:model\\.h\\.1 = bf16\n";
    const Plan plan = must_compile(request);
    CHECK(count(plan, "linear_f8") == 2);
    CHECK(decides(plan, "mark-f8", "linear layers", "not fp8", "1 layer: rule: module:model\\.h\\.1 = bf16"));
    request.precision_rules = "op:linear = fp8\n";
    CHECK(count(must_compile(request), "linear_f8") == 8);
    request.precision_rules = "gradients = f8e4m3\n";
    CHECK(decides(must_compile(request), "expand-f8", "gradients of inputs", "f8e4m3 x f8e4m3", "1 product"));
    request.precision_rules = "op:linear = fp32\n";
    CHECK(
        llvm::StringRef(take_diag(compiled(model, request).takeError()).text()).contains("no hidden layer is linear"));
    request = request_for("bf16");
    request.precision_rules = "op:linear = fp8\n";
    CHECK(take_diag(compiled(model, request).takeError()).text() ==
          "'op:linear = fp8': 8 bits need precision fp8, not bf16");
  }

  TEST_CASE("fp8: GPUs whose matrix units take 8-bit floats have kernels for all of it, others are refused") {
    for (const char* device : {"h200", "rtx4090"}) {
      const Plan plan = must_compile(request_for("fp8"), device);
      CHECK(count(plan, "linear_f8") == 5);
      for (const Instruction& each : plan.functions.front().instructions)
        if (llvm::StringRef(each.op).contains("f8")) CHECK(each.kernel != "reference");
    }
    const Diag diag = take_diag(compiled(model, request_for("fp8"), "a100").takeError());
    CHECK(diag.fault() == Fault::Usage);
    CHECK(diag.text() ==
          "precision fp8: matrix units of a100 take no f8e4m3 but f64, f32, bf16, f16; --precision bf16 works there");
  }

  TEST_CASE("fp8: ranks with scales of their own rows train as one rank does") {
    const std::vector<double> alone = losses_on("data=1", 0);
    // Whole weights of pieces are gathered in bf16, so that their codes are rounded twice.
    for (const auto& [mesh, zero, tolerance] :
         {std::tuple("data=2", 0, 3e-3), {"data=2", 3, 1.5e-2}, {"tensor=2", 0, 3e-3}}) {
      CAPTURE(mesh);
      CAPTURE(zero);
      const std::vector<double> together = losses_on(mesh, zero);
      for (size_t step = 0; step < alone.size(); ++step)
        CHECK(together[step] == doctest::Approx(alone[step]).epsilon(tolerance));
    }
  }

  TEST_CASE("fp8: random models train near bf16, and within budgets to the same bits") {
    int64_t within_budgets = 0;
    for (uint32_t seed = 1; seed <= 6; ++seed) {
      CAPTURE(seed);
      const std::string text = random_model(seed);
      CAPTURE(text);
      Result<Plan> half = compiled(text, request_for("bf16")), eight = compiled(text, request_for("fp8"));
      REQUIRE_MESSAGE(bool(half), llvm::toString(half.takeError()));
      REQUIRE_MESSAGE(bool(eight), llvm::toString(eight.takeError()));
      CHECK(count(*eight, "linear_f8") > 0);
      const int64_t promised = eight->promised_bytes();
      const Trained wanted = train(std::move(*eight), 3, text), near = train(std::move(*half), 3, text);
      CHECK(wanted.losses.front() == doctest::Approx(near.losses.front()).epsilon(0.25));
      TrainingRequest request = request_for("fp8");
      request.split = 1;
      for (int64_t saved : {512, 4096}) {
        request.budget_bytes = promised - saved;
        Result<Plan> tight = compiled(text, request);
        if (!tight) {
          llvm::consumeError(tight.takeError());
          continue;
        }
        ++within_budgets;
        CHECK(train(std::move(*tight), 3, text).losses == wanted.losses);
      }
    }
    CHECK(within_budgets > 3);
  }

  TEST_CASE("fp8: micro-batches, and budgets that repeat codes, train as the plain step does") {
    TrainingRequest request = request_for("fp8");
    request.accumulate = 2;
    const Trained accumulated = train(must_compile(request), 3);
    CHECK(accumulated.losses.back() < accumulated.losses.front());
    request = request_for("fp8");
    const Plan plain = must_compile(request);
    const Trained wanted = train(plain, 3);
    request.split = 1;
    for (int64_t saved = 1; saved <= 8; ++saved) {
      request.budget_bytes = plain.promised_bytes() - saved * 1024;
      Result<Plan> plan = compiled(model, request);
      if (!plan) {
        llvm::consumeError(plan.takeError());
        CHECK(saved > 1);
        break;
      }
      CHECK(plan->promised_bytes() <= request.budget_bytes);
      CHECK(train(std::move(*plan), 3).losses == wanted.losses);
    }
  }
}

}  // namespace
}  // namespace plimsoll
