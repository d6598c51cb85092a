#include "ir/evaluate.h"
#include "ir/support/strings.h"
#include "ir/text.h"
#include "passes/train/differentiate.h"
#include "passes/train/training_step.h"
#include "tests/support/finite_differences.h"
#include "tests/support/random_values.h"

#include <doctest/doctest.h>
#include <cmath>

// Tests training programs: gradients of the loss, a backward pass that visits no unneeded node, and accumulation that
// equals the full batch for all labels.

namespace plimsoll {
namespace {

// Two layers share a matrix: %w embeds and projects, so its gradient is a sum of two.
constexpr llvm::StringLiteral tied_model = R"(
graph @tied(%ids: i64[4], %labels: i64[4]) state(%w: f64[5,3] parameter trained, %b: f64[3] parameter trained) {
  %e = gather(%w, %ids) {axis=0} : f64[4,3]
  %h = add(%e, %b) : f64[4,3]
  %t = tanh(%h) : f64[4,3]
  %y = linear(%t, %w) {transpose_w=1} : f64[4,5]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {ignore_index=-100, reduction="mean"} : f64[], f64[4], f64[]
  return loss=%loss
}
)";

Graph parsed(llvm::StringRef text) {
  Result<Graph> graph = parse_graph(text);
  REQUIRE_MESSAGE(bool(graph), llvm::toString(graph.takeError()));
  return std::move(*graph);
}

Program training_program(llvm::StringRef text, const TrainingRequest& request) {
  Result<Program> program = make_training_program(parsed(text), request);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  return std::move(*program);
}

Evaluation run(const Graph& graph, const std::map<std::string, Tensor>& tensors, Keep keep = Keep::Results) {
  Bindings bindings;
  for (const auto& [name, tensor] : tensors)
    if (ValueId value = graph.find_value(name); value != ValueId::None) bindings[value] = &tensor;
  Result<Evaluation> result = evaluate(graph, bindings, keep);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(*result);
}

std::map<std::string, Tensor> tied_values() {
  std::map<std::string, Tensor> values;
  Tensor w(Type(DType::F64, {5, 3}));
  for (int64_t i = 0; i < 15; ++i) w.view().set(i, std::sin(1.7 * static_cast<double>(i) + 0.3));
  values["w"] = w;
  values["b"] = Tensor::of_floats({0.1, -0.2, 0.3}, DType::F64, {3});
  values["ids"] = Tensor::of_ints({0, 3, 3, 1});
  values["labels"] = Tensor::of_ints({2, -100, 0, 4});
  return values;
}

double loss_of(const Graph& forward, const std::map<std::string, Tensor>& values) {
  return run(forward, values).outputs[0].get(0);
}

size_t count_phase(const Graph& graph, Phase phase) {
  size_t count = 0;
  for (NodeId id : graph.order()) count += graph.node(id).phase == phase;
  return count;
}

// Writes the states after one call to `values`, by name.
void apply_updates(const Graph& graph, std::map<std::string, Tensor>& values) {
  Evaluation result = run(graph, values);
  for (size_t i = 0; i < graph.updates.size(); ++i)
    values[graph.value(graph.updates[i].state).name] = result.updates[i];
}

void add_start_values(const Graph& graph, std::map<std::string, Tensor>& values) {
  for (const State& state : graph.states) {
    const std::string& name = graph.value(state.value).name;
    if (values.count(name)) continue;
    Tensor tensor(graph.type(state.value));
    for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, state.init.fill);
    values[name] = tensor;
  }
}

TEST_SUITE("unit") {
  TEST_CASE("training names the parameters behind what has no gradient") {
    const Graph graph = parsed(R"(
graph @weighted(%x: f32[4,3], %labels: i64[4]) state(%w: f32[5,3] parameter trained, %a: f32[5] parameter trained,
                                                     %b: f32[5] parameter) {
  %y = linear(%x, %w) {transpose_w=1} : f32[4,5]
  %c = tanh(%a) : f32[5]
  %d = add(%c, %b) : f32[5]
  %loss, %lse, %weight = cross_entropy(%y, %labels, %d) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)");
    Result<Program> program = make_training_program(graph, {});
    REQUIRE(!program);
    const std::string why = llvm::toString(program.takeError());
    CAPTURE(why);
    CHECK(ends_with(
        why, "class weights of cross_entropy cannot be trained; parameters that reach them and may be frozen: a"));
  }

  TEST_CASE("gradients of tied weights equal finite differences") {
    Graph forward = parsed(tied_model);
    std::map<std::string, Tensor> values = tied_values();
    TrainingRequest request;
    Program program = training_program(tied_model, request);
    const Graph& step = program.functions.front();
    add_start_values(step, values);
    Evaluation result = run(step, values, Keep::EveryValue);
    REQUIRE(step.gradients.size() == 2);
    for (const StateGradient& gradient : step.gradients) {
      const std::string& name = step.value(gradient.state).name;
      const Tensor& got = result.values[index_of(gradient.value)];
      const std::vector<double> want =
          testing::finite_differences(values[name].view(), [&] { return loss_of(forward, values); });
      for (int64_t i = 0; i < got.type().elements(); ++i)
        CHECK(got.get(i) == doctest::Approx(want[static_cast<size_t>(i)]).epsilon(1e-7));
    }
  }

  TEST_CASE("frozen parameters prune backward") {
    Graph forward = parsed(tied_model);
    REQUIRE_FALSE(bool(select_trained(forward, {}, {"^b$"})));
    Graph all = parsed(tied_model);
    REQUIRE_FALSE(bool(select_trained(all, {}, {})));
    Result<Program> frozen = make_training_program(std::move(forward), {});
    Result<Program> full = make_training_program(std::move(all), {});
    REQUIRE(bool(frozen));
    REQUIRE(bool(full));
    CHECK(frozen->functions[0].gradients.size() == 1);
    // Without %b there is no sum over rows.
    CHECK(count_phase(frozen->functions[0], Phase::Backward) < count_phase(full->functions[0], Phase::Backward));
  }

  TEST_CASE("no gradient goes through a detached value") {
    Graph forward = parsed(R"(
graph @halved(%x: f32[3]) state(%w: f32[3] parameter, %v: f32[3] parameter) {
  %a = mul(%x, %w) : f32[3]
  %b = mul(%a, %v) : f32[3]
  %d = detach(%b) : f32[3]
  %e = mul(%a, %d) : f32[3]
  %loss = reduce_sum(%e) {axes=[0], keep_dims=0} : f32[]
  return loss=%loss
}
)");
    REQUIRE_FALSE(bool(select_trained(forward, {}, {})));
    Result<Program> program = make_training_program(std::move(forward), {});
    REQUIRE(bool(program));
    REQUIRE(program->functions[0].gradients.size() == 1);
    CHECK(program->functions[0].value(program->functions[0].gradients[0].state).name == "w");
  }

  TEST_CASE("the gradient of parts of which one in eight is not trained is one split") {
    Graph forward = parsed(R"(
graph @states(%first: f32[1,2]) state(%a: f32[3,2] parameter, %b: f32[4,2] parameter) {
  %all = concat(%first, %a, %b) {axis=0} : f32[8,2]
  %y = mul(%all, %all) : f32[8,2]
  %loss = reduce_sum(%y) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)");
    REQUIRE_FALSE(bool(select_trained(forward, {}, {})));
    Result<Program> program = make_training_program(std::move(forward), {});
    REQUIRE(bool(program));
    const Graph& step = program->functions[0];
    const auto count_of = [&](llvm::StringRef op) {
      return llvm::count_if(step.order(), [&](NodeId id) { return step.node(id).op->name == op; });
    };
    CHECK(count_of("split") == 1);
    CHECK(count_of("slice") == 0);
  }

  TEST_CASE("micro-batches with different label counts give the full batch's gradient") {
    // Rows 0 and 1 hold one counted label, rows 2 and 3 two: a mean of means would weigh them wrongly.
    std::string half = tied_model.str();
    for (const char* shape : {"i64[4]", "f64[4,3]", "f64[4,5]", "f64[4]"}) {
      std::string narrow(shape);
      narrow[narrow.find("[4") + 1] = '2';
      for (size_t at; (at = half.find(shape)) != std::string::npos;)
        half.replace(at, std::string(shape).size(), narrow);
    }
    TrainingRequest accumulate;
    accumulate.accumulate = 2;
    accumulate.optimizer = {.kind = OptimizerKind::Sgd, .learning_rate = 0.5};
    Program micro = training_program(half, accumulate);
    REQUIRE(micro.functions.size() == 2);
    TrainingRequest whole = accumulate;
    whole.accumulate = 1;
    Program full = training_program(tied_model, whole);

    std::map<std::string, Tensor> expected = tied_values(), values = tied_values();
    add_start_values(full.functions[0], expected);
    apply_updates(full.functions[0], expected);

    add_start_values(micro.functions[0], values);
    add_start_values(micro.functions[1], values);
    for (int64_t part = 0; part < 2; ++part) {
      std::map<std::string, Tensor> all = tied_values();
      for (const char* name : {"ids", "labels"})
        values[name] = Tensor::of_ints({all[name].get_int(2 * part), all[name].get_int(2 * part + 1)});
      apply_updates(micro.functions[0], values);
    }
    apply_updates(micro.functions[1], values);
    for (const char* name : {"w", "b"})
      for (int64_t i = 0; i < expected[name].type().elements(); ++i)
        CHECK(values[name].get(i) == doctest::Approx(expected[name].get(i)).epsilon(1e-6));
    CHECK(values["w.accumulated"].get(0) == 0);  // cleared for the next update
  }

  TEST_CASE("the gradients' norm is made of what updates give on their way, unless updates wait for it") {
    constexpr llvm::StringLiteral model = R"(
graph @rows(%x: f32[2,32]) state(%w: f32[32,32] parameter trained, %scale: f32[1] parameter trained, %b: f32[1] parameter trained) {
  %y = linear(%x, %w) {transpose_w=0} : f32[2,32]
  %z = mul(%y, %scale) : f32[2,32]
  %s = add(%z, %b) : f32[2,32]
  %loss = reduce_mean(%s) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)";
    // The producer of each operand of the only sum of squares.
    auto makers = [](const Graph& graph) {
      std::vector<std::string> names;
      for (NodeId id : graph.order())
        if (graph.node(id).op->name == "sum_squares")
          for (ValueId operand : graph.node(id).operands) {
            const NodeId maker = graph.value(operand).producer;
            names.push_back(maker == NodeId::None ? "state" : graph.node(maker).op->name.str());
          }
      return names;
    };
    const std::vector<std::string> updates(3, "adamw");
    CHECK(makers(training_program(model, {}).functions[0]) == updates);
    TrainingRequest accumulate;
    accumulate.accumulate = 2;
    CHECK(makers(training_program(model, accumulate).functions[1]) == updates);
    TrainingRequest momentum;
    momentum.optimizer.kind = OptimizerKind::Sgd;
    momentum.optimizer.momentum = 0.9;
    CHECK(makers(training_program(model, momentum).functions[0]) == std::vector<std::string>(3, "sgd"));
    TrainingRequest clip;
    clip.clip_grad_norm = 1;
    const std::vector<std::string> before = makers(training_program(model, clip).functions[0]);
    CHECK(before.size() == 3);
    CHECK(llvm::none_of(before, [](const std::string& maker) { return maker == "adamw"; }));
  }

  // Two gradients of 36 MiB, which are more than the 64 MiB of one sum, and one of 12 KiB.
  TEST_CASE("a norm that updates wait for is made of sums of up to 64 MiB") {
    constexpr llvm::StringLiteral model = R"(
graph @wide(%x: f32[2,3072]) state(%v: f32[3072,3072] parameter trained, %w: f32[3072,3072] parameter trained, %b: f32[3072] parameter trained) {
  %y = linear(%x, %v) {transpose_w=0} : f32[2,3072]
  %z = linear(%y, %w, %b) {transpose_w=0} : f32[2,3072]
  %loss = reduce_mean(%z) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)";
    const auto operands_of_sums = [&](const TrainingRequest& request) {
      std::vector<size_t> counts;
      const Program program = training_program(model, request);
      const Graph& graph = program.functions.back();
      for (NodeId id : graph.order())
        if (graph.node(id).op->name == "sum_squares") counts.push_back(graph.node(id).operands.size());
      return counts;
    };
    TrainingRequest request;
    request.clip_grad_norm = 1;
    CHECK(operands_of_sums(request) == std::vector<size_t>{1, 2});
    request.accumulate = 2;
    CHECK(operands_of_sums(request) == std::vector<size_t>{1, 1, 1});
  }

  TEST_CASE("16-bit parameters get f32 masters, and none when asked not to") {
    constexpr llvm::StringLiteral model = R"(
graph @small(%x: bf16[2,3]) state(%w: bf16[3,2] parameter trained) {
  %y = linear(%x, %w) {transpose_w=0} : bf16[2,2]
  %z = cast(%y) {to=f32} : f32[2,2]
  %loss = reduce_mean(%z) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
}
)";
    Program with = training_program(model, {});
    ValueId master = with.functions[0].find_value("w.master");
    REQUIRE(master != ValueId::None);
    CHECK(to_string(with.functions[0].type(master)) == "f32[3,2]");
    TrainingRequest off;
    off.master_weights = MasterWeights::Off;
    CHECK(training_program(model, off).functions[0].find_value("w.master") == ValueId::None);
  }

  TEST_CASE("a loss is found, built, or asked for") {
    constexpr llvm::StringLiteral logits = R"(
graph @logits(%x: f32[4,3]) state(%w: f32[3,5] parameter trained) {
  %y = linear(%x, %w) {transpose_w=0} : f32[4,5]
  return logits=%y
}
)";
    Graph none = parsed(logits);
    CHECK(take_diag(attach_loss(none, "")).text() ==
          "no loss: no output is a float scalar (logits f32[4,5]); name the output that is the loss, or attach one "
          "such as "
          "cross-entropy:LOGITS:LABELS");
    Graph built = parsed(logits);
    REQUIRE_FALSE(bool(attach_loss(built, "cross-entropy:logits:labels")));
    REQUIRE(built.inputs.size() == 2);
    CHECK(to_string(built.type(built.inputs[1])) == "i64[4]");
    Graph unknown = parsed(logits);
    CHECK(take_diag(attach_loss(unknown, "hinge:logits:labels")).fault() == Fault::Usage);
  }

  TEST_CASE("a loss may be a sum of losses with weights") {
    constexpr llvm::StringLiteral outputs = R"(
graph @outputs(%x: f64[4,3]) state(%w: f64[3,5] parameter trained) {
  %y = linear(%x, %w) {transpose_w=0} : f64[4,5]
  %penalty = reduce_sum(%w) {axes=[0,1], keep_dims=0} : f64[]
  return logits=%y, penalty=%penalty
}
)";
    std::map<std::string, Tensor> values{{"labels", Tensor::of_ints({2, 4, 0, 1})}};
    for (const auto& [name, shape] :
         {std::pair("x", Shape{4, 3}), std::pair("w", Shape{3, 5}), std::pair("targets", Shape{4, 5})}) {
      Tensor tensor(Type(DType::F64, shape));
      for (int64_t i = 0; i < tensor.type().elements(); ++i)
        tensor.view().set(i, std::sin(0.7 * static_cast<double>(i) + shape[1]));
      values[name] = tensor;
    }
    auto loss_as = [&](llvm::StringRef text) {
      Graph graph = parsed(outputs);
      REQUIRE_FALSE(bool(attach_loss(graph, text)));
      return loss_of(graph, values);
    };
    const double ce = loss_as("cross-entropy:logits:labels"), mse = loss_as("mse:logits:targets"),
                 penalty = loss_as("penalty");
    CHECK(loss_as("ce") == ce);  // the only output that is no scalar, and an input named labels
    CHECK(loss_as("2*ce") == doctest::Approx(2 * ce));
    CHECK(loss_as("ce + 0.5*mse") == doctest::Approx(ce + 0.5 * mse));
    CHECK(loss_as("ce:logits:labels + 0.25 * mse + 1e-2*penalty") == doctest::Approx(ce + 0.25 * mse + 0.01 * penalty));
    // Every class has a share of the smoothed label, and the mean over them is less than each row's own.
    CHECK(loss_as("ce:smoothing=0.5") != doctest::Approx(ce));
    for (const char* wrong : {"ce + ", "mse:smoothing=0.1", "ce:logits", "ce:smoothing=2", "0.5*hinge:a:b"}) {
      Graph graph = parsed(outputs);
      Status refused = attach_loss(graph, wrong);
      CAPTURE(wrong);
      CHECK(bool(refused));
      llvm::consumeError(std::move(refused));
    }
  }
}

}  // namespace
}  // namespace plimsoll
