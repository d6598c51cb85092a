#include "passes/analysis/single_value_cuts.h"
#include "passes/derive_program.h"
#include "passes/train/split_batch.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/finite_differences.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// Compares the gradients of split programs, as the planner gets them, with finite differences of the model's loss.

namespace plimsoll {
namespace {

using namespace testing;
using Gradients = std::map<std::string, std::vector<double>>;

// Classes have different weights, and so have the chunks.
constexpr llvm::StringLiteral images = R"(
graph @images(%x: f64[4,2,6,6], %labels: i64[4]) state(%k: f64[4,2,3,3] parameter trained, %s: f64[4] parameter trained, %b: f64[4] parameter trained, %w: f64[36,3] parameter trained, %c: f64[3] buffer, %rng: i64[2] counter fill=0.0) {
  %conv = conv(%x, %k) {pads=[1,1,1,1]} : f64[4,4,6,6]
  %n, %mean, %rstd = group_norm(%conv, %s, %b) {eps=0.001, groups=2} : f64[4,4,6,6], f64[4,2], f64[4,2]
  %t = silu(%n) : f64[4,4,6,6]
  %p = max_pool(%t) {kernel=[2,2], strides=[2,2]} : f64[4,4,3,3]
  %d = dropout(%p, %rng) {id=0, ratio=0.25} : f64[4,4,3,3]
  %rows = reshape(%d) {shape=[4,36]} : f64[4,36]
  %z = linear(%rows, %w) : f64[4,3]
  %q = log_softmax(%z) {axis=1} : f64[4,3]
  %loss, %weight = nll_loss(%q, %labels, %c) {reduction="mean"} : f64[], f64[]
  return loss=%loss
}
)";

// All samples share the learned bias of the scores: every chunk adds to its gradient.
constexpr llvm::StringLiteral biased_attention = R"(
graph @biased_attention(%x: f64[4,4,8], %labels: i64[4]) state(%w: f64[8,24] parameter trained, %bias: f64[1,2,4,4] parameter trained, %out: f64[32,3] parameter trained, %c: f64[3] buffer, %rng: i64[2] counter fill=0.0) {
  %half = constant() {value=f64[]<0.5>} : f64[]
  %qkv = linear(%x, %w) : f64[4,4,24]
  %added = mul(%bias, %half) : f64[1,2,4,4]
  %y, %lse = attention(%qkv, _, _, %added, %rng) {dropout=0.25, heads=2, id=1, kv_heads=2, packed=1, scale=0.5} : f64[4,4,8], f64[4,2,4]
  %rows = reshape(%y) {shape=[4,32]} : f64[4,32]
  %z = linear(%rows, %out) : f64[4,3]
  %q = log_softmax(%z) {axis=1} : f64[4,3]
  %loss, %weight = nll_loss(%q, %labels, %c) {reduction="mean"} : f64[], f64[]
  return loss=%loss
}
)";

RandomValues values_of(const Graph& forward) {
  RandomValues values;
  values.add_for(forward);
  // Five of twelve labels do not count, four of them in the first chunk.
  const TensorView labels = values.tensors.at("labels").view();
  const bool ignores = labels.elements() > 4;
  for (int64_t i = 0; i < labels.elements(); ++i) labels.set_int(i, ignores && (i < 4 || i == 9) ? -100 : i % 3);
  if (auto weights = values.tensors.find("c"); weights != values.tensors.end())
    weights->second = Tensor::of_floats({0.5, 1.25, 2}, DType::F64, {3});
  return values;
}

Gradients slopes_of(const Graph& forward, const RandomValues& values) {
  Gradients slopes;
  for (const State& state : forward.states) {
    if (!state.trained) continue;
    const std::string& name = forward.value(state.value).name;
    slopes[name] = finite_differences(values.tensors.at(name).view(), [&] {
      Result<Evaluation> result = evaluate(forward, values.bind(forward));
      REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
      return result->outputs[0].get(0);
    });
  }
  return slopes;
}

Gradients gradients_of(const Graph& step, const RandomValues& values) {
  RandomValues all = values;
  all.add_for(step);
  Result<Evaluation> result = evaluate(step, all.bind(step), Keep::EveryValue);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  Gradients gradients;
  for (const StateGradient& gradient : step.gradients) {
    const Tensor& tensor = result->values[index_of(gradient.value)];
    std::vector<double>& elements = gradients[step.value(gradient.state).name];
    for (int64_t i = 0; i < tensor.type().elements(); ++i) elements.push_back(tensor.get(i));
  }
  return gradients;
}

void check_equal(const Gradients& got, const Gradients& want) {
  REQUIRE(got.size() == want.size());
  for (const auto& [name, slopes] : want) {
    CAPTURE(name);
    const std::vector<double>& gradient = got.at(name);
    REQUIRE(gradient.size() == slopes.size());
    for (size_t i = 0; i < slopes.size(); ++i) CHECK(gradient[i] == doctest::Approx(slopes[i]).epsilon(1e-7));
  }
}

bool has_chunks(const Graph& step) {
  return llvm::any_of(step.order(), [&](NodeId id) {
    return llvm::any_of(step.node(id).results,
                        [&](ValueId result) { return step.value(result).name.ends_with(".chunk1"); });
  });
}

// Checks every split and returns how many there are.
int check_splits(llvm::StringRef text) {
  const CpuCatalog catalog;
  TrainingRequest request;
  request.optimizer.kind = OptimizerKind::Sgd;
  Result<ForwardModel> model = prepare_forward({parsed(text), {}}, request, catalog.preferences());
  REQUIRE_MESSAGE(bool(model), llvm::toString(model.takeError()));
  const RandomValues values = values_of(model->graph);
  const Gradients slopes = slopes_of(model->graph, values);
  const DeviceDescription cpu = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("cpu"));
  int ways = 0;
  for (const auto& [from, after] : find_single_value_cuts(model->graph))
    for (int64_t chunks : {2, 4}) {
      INFO(chunks, " chunks from ", model->graph.value(from).name);
      if (model->graph.type(from).shape[0] % chunks != 0) continue;
      Result<Derived> split = derive_program(*model, {from, chunks}, request, cpu, catalog, {});
      REQUIRE_MESSAGE(bool(split), llvm::toString(split.takeError()));
      CHECK(has_chunks(split->draft.program.functions.front()));
      check_equal(gradients_of(split->draft.program.functions.front(), values), slopes);
      ++ways;
    }
  return ways;
}

TEST_SUITE("unit") {
  TEST_CASE("gradients of a split convolutional net equal finite differences") { CHECK(check_splits(images) == 14); }
  TEST_CASE("gradients of split attention equal finite differences") { CHECK(check_splits(tied_attention) == 12); }
  TEST_CASE("gradients of split attention with a learned bias equal finite differences") {
    CHECK(check_splits(biased_attention) > 0);
  }
}

}  // namespace
}  // namespace plimsoll
