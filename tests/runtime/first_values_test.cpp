#include "runtime/first_values.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>
#include <cmath>

namespace plimsoll {
namespace {

using namespace testing;
using Kind = FirstValue::Kind;

// A layer of each kind. %free is added where no layer is known that does so.
constexpr llvm::StringLiteral model = R"(
graph @layers(%image: f32[2,3,4,4], %ids: i64[2]) state(
    %embed: f32[9,4] parameter trained,
    %conv.weight: f32[4,3,3,3] parameter trained,
    %conv.bias: f32[4] parameter trained,
    %norm.weight: f32[4] parameter trained,
    %norm.bias: f32[4] parameter trained,
    %fc.weight: f32[16,4] parameter trained,
    %fc.bias: f32[16] parameter trained,
    %right: f32[16,2] parameter trained,
    %places.weight: f32[2,4] parameter trained,
    %bn.weight: f32[3] parameter trained,
    %bn.bias: f32[3] parameter trained,
    %bn.running_mean: f32[3] buffer,
    %bn.running_var: f32[3] buffer,
    %free: f32[2] parameter trained) {
  %rows = gather(%embed, %ids) {axis=0} : f32[2,4]
  %e = add(%rows, %places.weight) : f32[2,4]
  %b, %batch_mean, %batch_var = batch_norm(%image, %bn.weight, %bn.bias) {eps=1e-05} : f32[2,3,4,4], f32[3], f32[3]
  %next_mean = running_update(%bn.running_mean, %batch_mean) {momentum=0.9} : f32[3]
  %next_var = running_update(%bn.running_var, %batch_var) {momentum=0.9} : f32[3]
  %c = conv(%b, %conv.weight, %conv.bias) {pads=[1,1,1,1]} : f32[2,4,4,4]
  %pooled = reduce_mean(%c) {axes=[2,3], keep_dims=0} : f32[2,4]
  %sum = add(%e, %pooled) : f32[2,4]
  %n, %mean, %rstd = layer_norm(%sum, %norm.weight, %norm.bias) {axis=1, eps=1e-05} : f32[2,4], f32[2,1], f32[2,1]
  %h = linear(%n, %fc.weight, %fc.bias) {transpose_w=1} : f32[2,16]
  %t = tanh(%h) : f32[2,16]
  %y = linear(%t, %right) {transpose_w=0} : f32[2,2]
  %u = mul(%y, %free) : f32[2,2]
  %loss = reduce_mean(%u) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
  update %bn.running_mean = %next_mean
  update %bn.running_var = %next_var
}
)";

Plan planned(const TrainingRequest& request, llvm::StringRef graph = model) {
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(graph), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

TEST_SUITE("unit") {
  TEST_CASE("first values are those of the layer that reads a weight") {
    for (const char* precision : {"exported", "bf16"}) {  // with bf16 a cast stands in between
      TrainingRequest request;
      request.precision = precision;
      const llvm::StringMap<FirstValue> values = first_values_of(planned(request));
      auto check = [&](const char* name, Kind kind, double scale) {
        CAPTURE(name);
        CHECK(values.lookup(name).kind == kind);
        CHECK(values.lookup(name).scale == doctest::Approx(scale));
      };
      check("embed", Kind::Normal, 1);
      check("conv.weight", Kind::Uniform, 1 / std::sqrt(27.0));
      check("conv.bias", Kind::Uniform, 1 / std::sqrt(27.0));
      check("norm.weight", Kind::Constant, 1);
      check("norm.bias", Kind::Constant, 0);
      check("fc.weight", Kind::Uniform, 0.5);
      check("fc.bias", Kind::Uniform, 0.5);
      check("right", Kind::Uniform, 0.25);
      check("places.weight", Kind::Normal, 1);
      check("bn.weight", Kind::Constant, 1);
      check("bn.bias", Kind::Constant, 0);
      check("bn.running_mean", Kind::Constant, 0);
      check("bn.running_var", Kind::Constant, 1);
      CHECK(values.lookup("free").kind == Kind::Unknown);
    }
  }

  // Of a layer whose weight is divided by rows, the bias is added behind the sum over ranks.
  TEST_CASE("first values of layers that ranks have parts of are those of the whole layers") {
    constexpr llvm::StringLiteral mlp = R"(
graph @mlp(%x: f32[8,4]) state(
    %up.weight: f32[16,4] parameter trained, %up.bias: f32[16] parameter trained,
    %down.weight: f32[4,16] parameter trained, %down.bias: f32[4] parameter trained) {
  %h = linear(%x, %up.weight, %up.bias) {transpose_w=1} : f32[8,16]
  %t = tanh(%h) : f32[8,16]
  %y = linear(%t, %down.weight, %down.bias) {transpose_w=1} : f32[8,4]
  %loss = reduce_mean(%y) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)";
    TrainingRequest request;
    request.mesh[MeshAxis::Tensor] = 2;
    const llvm::StringMap<FirstValue> values = first_values_of(planned(request, mlp));
    for (const auto& [name, scale] : {std::pair("up.bias", 0.5), {"down.bias", 0.25}, {"down.weight", 0.25}}) {
      CAPTURE(name);
      CHECK(values.lookup(name).kind == Kind::Uniform);
      CHECK(values.lookup(name).scale == doctest::Approx(scale));
    }
  }

  TEST_CASE("weights that one product reads side by side are drawn each for itself") {
    constexpr llvm::StringLiteral heads = R"(
graph @heads(%x: f32[8,64]) state(%a: f32[3,64] parameter trained, %b: f32[1,64] parameter trained) {
  %y = linear(%x, %a) {transpose_w=1} : f32[8,3]
  %z = linear(%x, %b) {transpose_w=1} : f32[8,1]
  %yz = mul(%y, %z) : f32[8,3]
  %loss = reduce_mean(%yz) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)";
    for (const char* precision : {"exported", "bf16"}) {
      TrainingRequest request;
      request.precision = precision;
      const Plan plan = planned(request, heads);
      CHECK(llvm::any_of(plan.functions.front().instructions, [](const Instruction& i) { return i.op == "concat"; }));
      const llvm::StringMap<FirstValue> values = first_values_of(plan);
      for (const char* name : {"a", "b"}) {
        CHECK(values.lookup(name).kind == Kind::Uniform);
        CHECK(values.lookup(name).scale == doctest::Approx(0.125));
      }
    }
  }

  // As timm writes convolutions whose weights are standardised: a batch norm over the weight with a scaled gain.
  TEST_CASE("a weight that a norm standardises is a layer's, and its gain a norm's scale") {
    constexpr llvm::StringLiteral standardised = R"(
graph @standardised(%x: f32[2,3,4,4]) state(
    %weight: f32[4,3,3,3] parameter trained, %gain: f32[4,1,1,1] parameter trained,
    %bias: f32[4] parameter trained, %free: f32[4,1,1] parameter trained) {
  %fan = constant() {value=f32[]<0.2>} : f32[]
  %scaled = mul(%gain, %fan) : f32[4,1,1,1]
  %scale = reshape(%scaled) {shape=[4]} : f32[4]
  %zeros = constant() {value=f32[4]<0, 0, 0, 0>} : f32[4]
  %rows = reshape(%weight) {shape=[1,4,27]} : f32[1,4,27]
  %even, %mean, %var = batch_norm(%rows, %scale, %zeros) {eps=1e-06} : f32[1,4,27], f32[4], f32[4]
  %w = reshape(%even) {shape=[4,3,3,3]} : f32[4,3,3,3]
  %y = conv(%x, %w, %bias) {pads=[1,1,1,1]} : f32[2,4,4,4]
  %u = mul(%y, %free) : f32[2,4,4,4]
  %loss = reduce_mean(%u) {axes=[0,1,2,3], keep_dims=0} : f32[]
  return loss=%loss
}
)";
    for (const char* precision : {"exported", "bf16"}) {
      CAPTURE(precision);
      TrainingRequest request;
      request.precision = precision;
      const Plan plan = planned(request, standardised);
      const llvm::StringMap<FirstValue> values = first_values_of(plan);
      CHECK(values.lookup("gain").kind == Kind::Constant);
      CHECK(values.lookup("gain").scale == 1);
      for (const char* name : {"weight", "bias"}) {
        CHECK(values.lookup(name).kind == Kind::Uniform);
        CHECK(values.lookup(name).scale == doctest::Approx(1 / std::sqrt(27.0)));
      }
      CHECK(values.lookup("free").kind == Kind::Unknown);
      Result<std::unique_ptr<Session>> session = Session::create(plan, {});
      REQUIRE(bool(session));
      REQUIRE_FALSE(bool((*session)->initialise_randomly(1, 0.02)));  // matrices alone are drawn with the deviation
      Status read = (*session)->read_state("gain", [](const TensorView& gain) {
        for (int64_t i = 0; i < gain.elements(); ++i) CHECK(gain.get(i) == 1);
        return Status::success();
      });
      CHECK_FALSE(bool(read));
    }
  }

  TEST_CASE("a weight that a number multiplies into a tensor of more dimensions may be transposed") {
    const Plan plan = planned({}, R"(
graph @turned(%x: f32[1,1,1], %z: f32[3,1,2]) state(%scale: f32[2,3] parameter trained) {
  %scaled = mul(%x, %scale) : f32[1,2,3]
  %turned = transpose(%scaled) {perm=[2,1,0]} : f32[3,2,1]
  %t = tanh(%turned) : f32[3,2,1]
  %products = matmul(%z, %t) : f32[3,1,1]
  %loss = reduce_mean(%products) {axes=[0,1,2], keep_dims=0} : f32[]
  return loss=%loss
}
)");
    CHECK(first_values_of(plan).count("scale") == 1);
  }

  TEST_CASE("a weight of no known layer is refused by name, unless a deviation is given") {
    Result<std::unique_ptr<Session>> session = Session::create(planned({}), {});
    REQUIRE(bool(session));
    Diag refusal = take_diag((*session)->initialise_randomly(1));
    CHECK(refusal.fault() == Fault::Model);
    INFO(refusal.text());
    CHECK(llvm::StringRef(refusal.text())
              .contains("1 weight is read by no layer whose first values are known: free f32[2] (read by mul"));
    REQUIRE_FALSE(bool((*session)->initialise_randomly(1, 0.02)));
    Status read = (*session)->read_state("fc.weight", [](const TensorView& weight) {
      double squares = 0;
      for (int64_t i = 0; i < weight.elements(); ++i) squares += weight.get(i) * weight.get(i);
      CHECK(std::sqrt(squares / static_cast<double>(weight.elements())) == doctest::Approx(0.02).epsilon(0.3));
      return Status::success();
    });
    CHECK_FALSE(bool(read));
  }
}

}  // namespace
}  // namespace plimsoll
