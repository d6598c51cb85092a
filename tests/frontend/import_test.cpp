#include "ir/evaluate.h"
#include "ir/verify.h"
#include "tests/frontend/model_maker.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

Graph import_graph(const ModelMaker& maker, const ImportOptions& options = {}) {
  Result<Graph> graph = import_model(maker.make(), options);
  if (!graph) FAIL(take_diag(graph.takeError()).text());
  if (Status s = verify(*graph)) FAIL(take_diag(std::move(s)).text());
  return std::move(*graph);
}

std::string refusal(const ModelMaker& maker, const ImportOptions& options = {}) {
  Result<Graph> graph = import_model(maker.make(), options);
  return graph ? "" : take_diag(graph.takeError()).text();
}

std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (NodeId node : graph.order()) names.push_back(graph.node(node).op->name.str());
  return names;
}

const State& state_named(const Graph& graph, llvm::StringRef name) {
  const State* state = graph.find_state(graph.find_value(name));
  REQUIRE(state);
  return *state;
}

Tensor zeros(llvm::ArrayRef<int64_t> shape) { return Tensor(Type(DType::F32, shape)); }

using Names = std::vector<std::string>;

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("names, modules and source lines survive") {
  ModelMaker maker;
  maker.input("x", {"2", "3"}).weight("w", zeros({3, 4})).output("y", {"2", "4"});
  maker.node("MatMul", {"x", "w"}, {"y"}, [](onnx::NodeProto& node) {
    auto add = [&](const std::string& key, const std::string& value) {
      auto* entry = node.add_metadata_props();
      entry->set_key(key);
      entry->set_value(value);
    };
    add("pkg.torch.onnx.name_scopes", "['', 'decoder', 'decoder.attn', 'matmul_3']");
    add("pkg.torch.onnx.stack_trace",
        "  File \"/home/me/train.py\", line 9, in main\n    run()\n  File \"/home/me/net/model.py\", line 137, in "
        "forward\n"
        "    y = self.attn(x)\n  File \"/usr/site-packages/torch/nn/modules/linear.py\", line 1, in forward\n    "
        "return f(x)\n");
  });
  Graph graph = import_graph(maker);
  const Node& node = graph.node(graph.first_node());
  CHECK(graph.value(node.results[0]).name == "y");
  const Origin& origin = graph.origins[index_of(node.origin)];
  CHECK(origin.node == "/MatMul1");
  CHECK(origin.module == "decoder.attn");
  CHECK(origin.source == "model.py:137: y = self.attn(x)");
}

TEST_CASE("parameters, buffers and constants") {
  ModelMaker maker;
  maker.input("x", {"3"}).output("y", {"3"});
  for (const char* name : {"w", "rotary.inv_freq"}) maker.weight(name, zeros({3}));
  maker.weight("/Constant_output_0", Tensor::of_floats({2}, DType::F32, {}));
  maker.weight("never_read", zeros({9})).weight("shape", Tensor::of_ints({3}));
  maker.node("Mul", {"x", "w"}, {"a"})
      .node("Mul", {"a", "w"}, {"tied"})
      .node("Add", {"tied", "rotary.inv_freq"}, {"b"});
  maker.node("Mul", {"b", "/Constant_output_0"}, {"c"}).node("Reshape", {"c", "shape"}, {"y"});
  Graph graph = import_graph(maker);
  CHECK(graph.states.size() == 2);
  CHECK(state_named(graph, "w").role == StateRole::Parameter);
  CHECK(state_named(graph, "w").trained);
  CHECK(state_named(graph, "w").init.source == "w");
  CHECK(state_named(graph, "rotary.inv_freq").role == StateRole::Buffer);
  CHECK_FALSE(state_named(graph, "rotary.inv_freq").trained);
}

TEST_CASE("an export signature says what is a parameter") {
  ModelMaker maker;
  maker.input("x", {"3"}).output("y", {"3"}).weight("inv_freq", zeros({3})).weight("table", zeros({3}));
  maker.node("Mul", {"x", "inv_freq"}, {"a"}).node("Add", {"a", "table"}, {"y"});
  auto* entry = maker.graph().add_metadata_props();
  entry->set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry->set_value(
      "# inputs\np_inv_freq: PARAMETER target='inv_freq'\nb_table: BUFFER target='table' persistent=True\n");
  Graph graph = import_graph(maker);
  CHECK(state_named(graph, "inv_freq").trained);
  CHECK(state_named(graph, "table").role == StateRole::Buffer);
}

TEST_CASE("a buffer that the model computes is a constant, unless a step changes it") {
  ModelMaker maker;
  maker.input("x", {"3"}).output("y", {"3"}).weight("table", zeros({3})).weight("mean", zeros({3}));
  maker.node("Mul", {"x", "table"}, {"a"}).node("Add", {"a", "mean"}, {"y"});
  auto* entry = maker.graph().add_metadata_props();
  entry->set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry->set_value(
      "# inputs\nb_table: BUFFER target='table' persistent=False\nb_mean: BUFFER target='mean' persistent=False\n"
      "# outputs\nadd: BUFFER_MUTATION target='mean'\n");
  Graph graph = import_graph(maker);
  CHECK(graph.states.size() == 1);
  CHECK(state_named(graph, "mean").role == StateRole::Buffer);
}

TEST_CASE("a tensor that the model's code writes out is a constant") {
  ModelMaker maker;
  maker.input("x", {"2"})
      .output("y", {"2"})
      .weight("attn.lifted_tensor_0", Tensor::of_floats({64, 32}, DType::F32, {2}));
  maker.node("Div", {"x", "attn.lifted_tensor_0"}, {"y"});
  auto* entry = maker.graph().add_metadata_props();
  entry->set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry->set_value("# inputs\nc_lifted_tensor_0: CONSTANT_TENSOR target='attn.lifted_tensor_0'\n");
  CHECK(import_graph(maker).states.empty());
}

TEST_CASE("the label smoothing that PyTorch's exporter leaves out is read from its record of the call") {
  const auto smoothing_of = [](const std::string& call) {
    ModelMaker maker;
    maker.input("x", {"2", "3"}).input("labels", {"2"}, DType::I64).output("loss", {});
    maker.node("SoftmaxCrossEntropyLoss", {"x", "labels"}, {"loss"}, [&](onnx::NodeProto& node) {
      auto* entry = node.add_metadata_props();
      entry->set_key("pkg.torch.onnx.fx_node");
      entry->set_value("%loss : call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (" + call +
                       "})");
    });
    const Graph graph = import_graph(maker);
    const Node& loss = graph.node(graph.value(graph.outputs[0].value).producer);
    REQUIRE(loss.op->name == "cross_entropy");
    return loss.attrs.get_float("label_smoothing");
  };
  CHECK(smoothing_of("%x, %labels, None, 1, -100, 0.1), kwargs = {") == 0.1);
  CHECK(smoothing_of("%x, %labels), kwargs = {reduction: 1, label_smoothing: 0.2") == 0.2);
  CHECK(smoothing_of("%x, %labels, None, 1, -100), kwargs = {") == 0);
}

TEST_CASE("half a Fourier transform of real numbers, and real numbers from half a transform") {
  for (const int64_t points : {4, 5}) {
    ModelMaker maker;
    const std::string length = std::to_string(points);
    maker.input("x", {"2", length, "1"}).output("y", {"2", "3", "2"}).output("z", {"2", length, "1"});
    maker.weight("length", Tensor::of_ints(points)).weight("axis", Tensor::of_ints(1));
    maker.node("DFT", {"x", "", "axis"}, {"y"}, [](onnx::NodeProto& node) { set_int(node, "onesided", 1); });
    maker.node("DFT", {"y", "length", "axis"}, {"z"}, [](onnx::NodeProto& node) {
      set_int(node, "onesided", 1);
      set_int(node, "inverse", 1);
    });
    const Graph graph = import_graph(maker);
    Tensor x(Type(DType::F32, {2, points, 1}));
    for (int64_t i = 0; i < 2 * points; ++i) x.view().set(i, static_cast<double>(i * i % 7));
    Result<Evaluation> made = evaluate(graph, {{graph.inputs[0], &x}});
    if (!made) FAIL(take_diag(made.takeError()).text());
    const Tensor &y = made->outputs[0], &z = made->outputs[1];
    REQUIRE(y.type().shape == Shape{2, 3, 2});
    double sum = 0;
    for (int64_t i = 0; i < points; ++i) sum += x.get(points + i);
    CHECK(y.get(3 * 2) == doctest::Approx(sum));  // the second row's wave of no frequency
    REQUIRE(z.type().shape == x.type().shape);
    for (int64_t i = 0; i < 2 * points; ++i) CHECK(z.get(i) == doctest::Approx(x.get(i)));
  }
}

// As PyTorch's exporter writes masked_scatter, with the mask already expanded.
void add_masked_scatter(ModelMaker& maker, const std::string& mask) {
  maker.weight("flat", Tensor::of_ints(-1))
      .weight("first", Tensor::of_ints(0))
      .weight("swapped", Tensor::of_ints({1, 0}));
  maker.node("NonZero", {mask}, {"places"}).node("Transpose", {"places"}, {"at"}, [](onnx::NodeProto& node) {
    set_ints(node, "perm", {1, 0});
  });
  maker.node("Reshape", {"values", "flat"}, {"in_a_row"}).node("Shape", {"at"}, {"sizes"});
  maker.node("Gather", {"sizes", "first"}, {"count"})
      .node("Slice", {"in_a_row", "first", "count", "first"}, {"written"});
  maker.node("ScatterND", {"x", "at", "written"}, {"y"});
}

TEST_CASE("places where a mask is true are written without their number, by whole rows where one number decides") {
  Tensor x(Type(DType::F32, {2, 3, 2})), values(Type(DType::F32, {3, 2}));
  for (int64_t i = 0; i < 12; ++i) x.view().set(i, static_cast<double>(i));
  for (int64_t i = 0; i < 6; ++i) values.view().set(i, static_cast<double>(100 + i));
  const auto made_of = [&](const Graph& graph, const Tensor& mask) {
    Result<Evaluation> made =
        evaluate(graph, {{graph.inputs[0], &x}, {graph.inputs[1], &mask}, {graph.inputs[2], &values}});
    if (!made) FAIL(take_diag(made.takeError()).text());
    std::vector<double> numbers;
    for (int64_t i = 0; i < 12; ++i) numbers.push_back(made->outputs[0].get(i));
    return numbers;
  };

  ModelMaker rows;
  rows.input("x", {"2", "3", "2"})
      .input("m", {"2", "3", "1"}, DType::Bool)
      .input("values", {"3", "2"})
      .output("y", {"2", "3", "2"});
  rows.weight("shape", Tensor::of_ints({2, 3, 2})).node("Expand", {"m", "shape"}, {"whole"});
  add_masked_scatter(rows, "whole");
  const Graph by_rows = import_graph(rows);
  CHECK(by_rows.type(by_rows.node(by_rows.value(by_rows.outputs[0].value).producer).operands[0]).shape ==
        Shape{2, 3, 1});
  Tensor some(Type(DType::Bool, {2, 3, 1}));
  for (const int64_t i : {1, 3, 5}) some.view().set_int(i, 1);
  CHECK(made_of(by_rows, some) == std::vector<double>{0, 1, 100, 101, 4, 5, 102, 103, 8, 9, 104, 105});

  ModelMaker elements;
  elements.input("x", {"2", "3", "2"})
      .input("m", {"2", "3", "2"}, DType::Bool)
      .input("values", {"3", "2"})
      .output("y", {"2", "3", "2"});
  add_masked_scatter(elements, "m");
  Tensor few(Type(DType::Bool, {2, 3, 2}));
  for (const int64_t i : {0, 7, 8}) few.view().set_int(i, 1);
  CHECK(made_of(import_graph(elements), few) == std::vector<double>{100, 1, 2, 3, 4, 5, 6, 101, 102, 9, 10, 11});
}

// As PyTorch's exporter writes x[mask] = values.
TEST_CASE("rows where a mask is true get a row each or all the same number") {
  const auto made_of = [](const Tensor& values, const std::vector<std::string>& dims) {
    ModelMaker maker;
    maker.input("x", {"2", "2", "2"})
        .input("m", {"2", "2"}, DType::Bool)
        .input("values", dims)
        .output("y", {"2", "2", "2"});
    maker.weight("flat", Tensor::of_ints(-1))
        .weight("rest", Tensor::of_ints(2))
        .weight("shape", Tensor::of_ints({2, 2, 2}));
    maker.node("Unsqueeze", {"m", "flat"}, {"columns"}).node("Expand", {"columns", "shape"}, {"whole"});
    maker.node("NonZero", {"whole"}, {"places"}).node("Transpose", {"places"}, {"at"}, [](onnx::NodeProto& node) {
      set_ints(node, "perm", {1, 0});
    });
    maker.node("Reshape", {"m", "flat"}, {"in_a_row"}).node("Cast", {"in_a_row"}, {"ones"}, [](onnx::NodeProto& node) {
      set_int(node, "to", onnx::TensorProto::INT64);
    });
    maker.node("ReduceSum", {"ones"}, {"count"}).node("Concat", {"count", "rest"}, {"rows"}, [](onnx::NodeProto& node) {
      set_int(node, "axis", 0);
    });
    maker.node("Expand", {"values", "rows"}, {"each"}).node("Reshape", {"each", "flat"}, {"written"});
    maker.node("ScatterND", {"x", "at", "written"}, {"y"});
    const Graph graph = import_graph(maker);
    Tensor x(Type(DType::F32, {2, 2, 2})), mask(Type(DType::Bool, {2, 2}));
    for (const int64_t i : {0, 3}) mask.view().set_int(i, 1);
    Result<Evaluation> made =
        evaluate(graph, {{graph.inputs[0], &x}, {graph.inputs[1], &mask}, {graph.inputs[2], &values}});
    if (!made) FAIL(take_diag(made.takeError()).text());
    std::vector<double> numbers;
    for (int64_t i = 0; i < 8; ++i) numbers.push_back(made->outputs[0].get(i));
    return numbers;
  };
  CHECK(made_of(Tensor::of_floats({1, 2, 3, 4}, DType::F32, {2, 2}), {"2", "2"}) ==
        std::vector<double>{1, 2, 0, 0, 0, 0, 3, 4});
  CHECK(made_of(Tensor::of_floats({7}, DType::F32, {}), {}) == std::vector<double>{7, 7, 0, 0, 0, 0, 7, 7});
  CHECK(made_of(Tensor::of_floats({1, 2}, DType::F32, {2}), {"2"}) == std::vector<double>{1, 2, 0, 0, 0, 0, 1, 2});
}

TEST_CASE("places of a mask that something else reads are refused as what depends on data") {
  ModelMaker maker;
  maker.input("x", {"2", "3", "2"})
      .input("m", {"2", "3", "2"}, DType::Bool)
      .input("values", {"3", "2"})
      .output("y", {"2", "3", "2"});
  add_masked_scatter(maker, "m");
  maker.node("Neg", {"at"}, {"z"}).output("z", {"n", "3"}, DType::I64);
  CHECK(refusal(maker).find("depends on m") != std::string::npos);
}

TEST_CASE("an Identity that PyTorch's exporter wrote for detach lets no gradient through") {
  const auto ops_of = [](const std::string& call, DType dtype) {
    ModelMaker maker;
    maker.input("x", {"2", "3"}, dtype).output("y", {"2", "3"}, dtype);
    maker.node("Neg", {"x"}, {"negative"}).node("Identity", {"negative"}, {"y"}, [&](onnx::NodeProto& node) {
      auto* entry = node.add_metadata_props();
      entry->set_key("pkg.torch.onnx.fx_node");
      entry->set_value("%y : [num_users=1] = call_function[target=torch.ops.aten." + call +
                       "](args = (%neg,), kwargs = {})");
    });
    return op_names(import_graph(maker));
  };
  CHECK(ops_of("detach.default", DType::F32) == Names{"neg", "detach"});
  CHECK(ops_of("detach.default", DType::I64) == Names{"neg"});
  CHECK(ops_of("clone.default", DType::F32) == Names{"neg"});
}

TEST_CASE("shape arithmetic is gone after import") {
  ModelMaker maker;
  maker.input("x", {"batch", "6"}).output("y", {"batch", "2", "3"}).weight("tail", Tensor::of_ints({2, 3}));
  maker.node("Shape", {"x"}, {"dims"}, [](onnx::NodeProto& node) { set_int(node, "end", 1); });
  maker.node("Concat", {"dims", "tail"}, {"shape"}, [](onnx::NodeProto& node) { set_int(node, "axis", 0); });
  maker.node("Reshape", {"x", "shape"}, {"y"});
  ImportOptions options;
  options.dims["batch"] = 5;
  Graph graph = import_graph(maker, options);
  CHECK(op_names(graph) == Names{"reshape"});
  CHECK(to_string(graph.type(graph.outputs[0].value)) == "f32[5,2,3]");
}

TEST_CASE("everything that stands in the way is listed at once") {
  ModelMaker maker;
  maker.input("x", {"4", "4"}).output("y", {"4", "4"});
  maker.node("Det", {"x"}, {"d1"}).node("Det", {"x"}, {"d2"}).node("Add", {"d1", "d2"}, {"quiet"});
  maker.node("FancyOp", {"x"}, {"f"}).node("MatMul", {"x", "w"}, {"y"}).weight("w", zeros({5, 4}));
  Imported imported = survey_model(maker.make(), {});
  REQUIRE(imported.report.obstacles.size() == 3);
  CHECK(imported.report.obstacles[0].nodes == Names{"/Det1", "/Det2"});
  CHECK(imported.report.summary() ==
        "operator Det is not supported (2 nodes: /Det1, /Det2); operator FancyOp is not supported (1 node: /FancyOp4); "
        "/MatMul5: inner sizes differ: 4 and 5 in f32[4,4] x f32[5,4]");
}

TEST_CASE("what an unsupported node gives is taken from the file's own types") {
  ModelMaker maker;
  maker.input("x", {"4", "4"}).output("y", {}).node("Det", {"x"}, {"d"}).node("Abs", {"d"}, {"y"});
  *maker.graph().add_value_info() = maker.graph().output(0);
  maker.graph().mutable_value_info(0)->set_name("d");
  Imported imported = survey_model(maker.make(), {});
  CHECK(op_names(imported.graph) == Names{"abs"});
  CHECK(imported.graph.outputs.size() == 1);
}

TEST_CASE("dimensions must be bound") {
  ModelMaker maker;
  maker.input("x", {"batch", "3"}).output("y", {"batch", "3"}).node("Abs", {"x"}, {"y"});
  CHECK(refusal(maker) == "dimension batch has no size; give it one with --dim batch=N (in x)");
  ImportOptions options;
  options.dims = {{"batch", 2}, {"seq", 7}};
  CHECK(refusal(maker, options) == "the model has no dimension named seq; it has batch");
}

TEST_CASE("a shape that depends on data names the input") {
  ModelMaker maker;
  maker.input("x", {"6"})
      .input("wanted", {"2"}, DType::I64)
      .output("y", {"2", "3"})
      .node("Reshape", {"x", "wanted"}, {"y"});
  Imported imported = survey_model(maker.make(), {});
  REQUIRE(imported.report.obstacles.size() == 1);
  CHECK(imported.report.obstacles[0].kind == Obstacle::Kind::DataDependent);
  CHECK(imported.report.obstacles[0].subject == "wanted");
  ImportOptions options;
  options.constant_inputs["wanted"] = Tensor::of_ints({2, -1});
  CHECK(to_string(import_graph(maker, options).type(import_graph(maker, options).outputs[0].value)) == "f32[2,3]");
}

TEST_CASE("a recurrent layer without time steps is refused") {
  ModelMaker maker;
  maker.input("x", {"0", "1", "1"}).weight("w", zeros({1, 4, 1})).weight("r", zeros({1, 4, 1}));
  maker.node("LSTM", {"x", "w", "r"}, {"y"}).output("y", {"0", "1", "1", "1"});
  CHECK(refusal(maker) == "/LSTM1: has no time steps: its input is f32[0,1,1]");
}

TEST_CASE("indices of another rank than their data are refused") {
  ModelMaker maker;
  maker.input("x", {"2", "3", "4"}).input("at", {"3", "4"}, DType::I64);
  maker.node("GatherElements", {"x", "at"}, {"y"}).output("y", {"2", "3", "4"});
  CHECK(refusal(maker) == "/GatherElements1: its indices i64[3,4] do not have the rank of its data f32[2,3,4]");
}

TEST_CASE("nodes out of order are sorted, cycles refused") {
  ModelMaker maker;
  maker.input("x", {"3"}).output("y", {"3"}).node("Exp", {"a"}, {"y"}).node("Abs", {"x"}, {"a"});
  CHECK(op_names(import_graph(maker)) == Names{"abs", "exp"});
  ModelMaker cycle;
  cycle.input("x", {"3"})
      .output("y", {"3"})
      .node("Add", {"x", "b"}, {"a"})
      .node("Abs", {"a"}, {"b"})
      .node("Abs", {"b"}, {"y"});
  CHECK(refusal(cycle) == "the nodes form a cycle: /Add1 waits for what depends on it (3 nodes are caught in it)");
}

TEST_CASE("functions are inlined with their attributes") {
  ModelMaker maker;
  maker.input("x", {"3"}).output("y", {"3"});
  maker.node("Leaky", {"x"}, {"y"}, [](onnx::NodeProto& node) {
    node.set_domain("mine");
    set_float(node, "slope", 0.5F);
  });
  auto& function = *maker.proto().add_functions();
  function.set_domain("mine");
  function.set_name("Leaky");
  function.add_input("v");
  function.add_output("r");
  function.add_attribute("slope");
  auto& inner = *function.add_node();
  inner.set_op_type("LeakyRelu");
  inner.add_input("v");
  inner.add_output("r");
  auto& attribute = *inner.add_attribute();
  attribute.set_name("alpha");
  attribute.set_ref_attr_name("slope");
  Graph graph = import_graph(maker);
  CHECK(op_names(graph) == Names{"leaky_relu"});
  CHECK(graph.node(graph.first_node()).attrs.get_float("alpha") == 0.5);
}

TEST_CASE("the taken branch is inlined") {
  auto branch = [](const std::string& op) {
    onnx::GraphProto graph;
    graph.set_name(op);
    auto& node = *graph.add_node();
    node.set_op_type(op);
    node.add_input("x");
    node.add_output("r");
    graph.add_output()->set_name("r");
    return graph;
  };
  ModelMaker maker;
  maker.input("x", {"3"}).output("y", {"3"}).weight("flag", Tensor::scalar_int(0, DType::Bool));
  maker.node("If", {"flag"}, {"y"}, [&](onnx::NodeProto& node) {
    set_graph(node, "then_branch", branch("Exp"));
    set_graph(node, "else_branch", branch("Abs"));
  });
  CHECK(op_names(import_graph(maker)) == Names{"abs"});
}

TEST_CASE("batch norm trains its running statistics whatever the exporter wrote") {
  ModelMaker maker;
  maker.input("x", {"4", "3"}).output("y", {"4", "3"});
  for (const char* name : {"scale", "bias", "mean", "var"}) maker.weight(name, zeros({3}));
  maker.node("BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"y"});
  Graph training = import_graph(maker);
  CHECK(op_names(training) == Names{"batch_norm", "running_update", "running_update"});
  CHECK(training.updates.size() == 2);
  CHECK(state_named(training, "mean").role == StateRole::Buffer);
  CHECK(state_named(training, "scale").trained);
  ImportOptions frozen;
  frozen.freeze_norm = true;
  Graph fixed = import_graph(maker, frozen);
  CHECK(op_names(fixed) == Names{"batch_norm_inference"});
  CHECK_FALSE(state_named(fixed, "var").trained);
}

TEST_CASE("each dropout draws for itself") {
  ModelMaker maker(17);
  maker.input("x", {"8"}).output("y", {"8"}).weight("ratio", Tensor::of_floats({0.25}, DType::F32, {}));
  maker.weight("off", Tensor::of_floats({0}, DType::F32, {}));
  maker.node("Dropout", {"x", "ratio"}, {"a"}).node("Dropout", {"a", "off"}, {"b"}).node("Dropout", {"b"}, {"y"});
  Graph graph = import_graph(maker);
  REQUIRE(op_names(graph) == Names{"dropout", "dropout"});
  const Node &first = graph.node(graph.first_node()), &last = graph.node(graph.last_node());
  CHECK(first.attrs.get_float("ratio") == 0.25);
  CHECK(last.attrs.get_float("ratio") == 0.5);
  CHECK(first.attrs.get_int("id") != last.attrs.get_int("id"));
  CHECK(first.operands[1] == last.operands[1]);
  CHECK(state_named(graph, "rng").role == StateRole::Counter);
  ImportOptions evaluation;
  evaluation.training = false;
  CHECK(import_graph(maker, evaluation).node_count() == 0);
}

TEST_CASE("equal arithmetic on constants is computed once") {
  ModelMaker maker;
  maker.input("x", {"3"}).output("y", {"3"});
  for (const char* layer : {"1", "2"}) {
    std::string n = layer;
    maker.node("Constant", {}, {"c" + n}, [](onnx::NodeProto& node) { set_float(node, "value_float", 2); });
    maker.node("Exp", {"c" + n}, {"e" + n}).node("Mul", {n == "1" ? "x" : "m1", "e" + n}, {n == "1" ? "m1" : "y"});
  }
  CHECK(op_names(import_graph(maker)) == Names{"constant", "mul", "mul"});
}

}  // namespace plimsoll
