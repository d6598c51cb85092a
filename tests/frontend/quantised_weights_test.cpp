#include "passes/rewrite/quantised_weights.h"
#include "ir/evaluate.h"
#include "ir/verify.h"
#include "tests/frontend/model_maker.h"

#include <doctest/doctest.h>

// Weights that a model's file has in 4 and 8 bits.

namespace plimsoll {
namespace {

Graph import_graph(const ModelMaker& maker) {
  Result<Graph> graph = import_model(maker.make(), {});
  if (!graph) FAIL(take_diag(graph.takeError()).text());
  if (Status s = verify(*graph)) FAIL(take_diag(std::move(s)).text());
  return std::move(*graph);
}

std::string refusal(const ModelMaker& maker) {
  Result<Graph> graph = import_model(maker.make(), {});
  return graph ? "" : take_diag(graph.takeError()).text();
}

Tensor bytes(llvm::ArrayRef<int64_t> values, llvm::ArrayRef<int64_t> shape, DType dtype = DType::U8) {
  Tensor tensor(Type(dtype, shape));
  for (size_t i = 0; i < values.size(); ++i) tensor.view().set_int(static_cast<int64_t>(i), values[i]);
  return tensor;
}

Tensor floats(llvm::ArrayRef<double> values, llvm::ArrayRef<int64_t> shape, DType dtype = DType::F32) {
  return Tensor::of_floats(values, dtype, shape);
}

void add_4_bits(ModelMaker& maker, const std::string& name, std::vector<int64_t> dims, llvm::ArrayRef<int64_t> stored,
                onnx::TensorProto::DataType type = onnx::TensorProto::INT4) {
  maker.weight(name, bytes(stored, {static_cast<int64_t>(stored.size())}));
  onnx::TensorProto& tensor = *maker.graph().mutable_initializer(maker.graph().initializer_size() - 1);
  tensor.set_data_type(type);
  tensor.clear_dims();
  for (int64_t dim : dims) tensor.add_dims(dim);
}

// The first output of the model.
std::vector<double> output_of(const ModelMaker& maker, const std::map<std::string, Tensor>& inputs = {}) {
  Graph graph = import_graph(maker);
  const Model model = maker.make();
  Result<WeightSource> weights = WeightSource::open(model);
  REQUIRE(static_cast<bool>(weights));
  Bindings bindings;
  std::map<ValueId, Tensor> states;
  for (const State& state : graph.states) states.emplace(state.value, llvm::cantFail(weights->load(state.init.source)));
  for (const auto& [value, tensor] : states) bindings[value] = &tensor;
  for (ValueId input : graph.inputs) bindings[input] = &inputs.at(graph.value(input).name);
  Result<Evaluation> made = evaluate(graph, bindings);
  if (!made) FAIL(take_diag(made.takeError()).text());
  std::vector<double> numbers;
  for (int64_t i = 0; i < made->outputs[0].type().elements(); ++i) numbers.push_back(made->outputs[0].get(i));
  return numbers;
}

// x [2, 2] is the unit matrix.
ModelMaker with_x(int64_t opset = 21) {
  ModelMaker maker(opset);
  maker.input("x", {"2", "2"}).output("y", {"2", "3"});
  return maker;
}
const std::map<std::string, Tensor>& unit() {
  static const std::map<std::string, Tensor> inputs{{"x", floats({1, 0, 0, 1}, {2, 2})}};
  return inputs;
}

using Numbers = std::vector<double>;

}  // namespace

TEST_SUITE_BEGIN("unit");

// The first of two codes is the low half: 0x7e is -2 and 7.
TEST_CASE("quantised weights: 4-bit codes become floats where they are read, and stay codes in states") {
  ModelMaker maker = with_x();
  add_4_bits(maker, "w", {2, 3}, {0x7e, 0x10, 0x8f});  // -2 7 0 / 1 -1 -8
  maker.weight("s", floats({0.5, 0.25}, {2}));
  maker.node("DequantizeLinear", {"w", "s"}, {"f"}, [](onnx::NodeProto& node) { set_int(node, "axis", 0); });
  maker.node("MatMul", {"x", "f"}, {"y"});
  CHECK(output_of(maker, unit()) == Numbers{-1, 3.5, 0, 0.25, -0.25, -2});
  const Graph graph = import_graph(maker);
  const State* codes = graph.find_state(graph.find_value("w"));
  REQUIRE(codes);
  CHECK(graph.type(codes->value) == Type(DType::U8, {3}));
  CHECK(codes->role == StateRole::Parameter);
  const auto parts = parts_of_quantised_weights(graph);
  CHECK(parts.size() == 2);
  CHECK(graph.type(parts.at(codes->value)) == Type(DType::F32, {2, 3}));
}

TEST_CASE("quantised weights: blocks along either axis, zero points in 4 bits, scales of 16 bits") {
  ModelMaker columns = with_x();
  add_4_bits(columns, "w", {2, 3}, {0x21, 0x43, 0x65}, onnx::TensorProto::UINT4);  // 1 2 3 / 4 5 6
  add_4_bits(columns, "z", {2, 2}, {0x10, 0x32}, onnx::TensorProto::UINT4);        // 0 1 / 2 3
  columns.weight("s", floats({1, 2, 4, 8}, {2, 2}, DType::F16));
  const auto blocked = [](int64_t axis) {
    return [axis](onnx::NodeProto& node) { set_int(node, "axis", axis), set_int(node, "block_size", 2); };
  };
  columns.node("DequantizeLinear", {"w", "s", "z"}, {"h"}, blocked(1)).node("Cast", {"h"}, {"f"}, [](auto& node) {
    set_int(node, "to", onnx::TensorProto::FLOAT);
  });
  columns.node("MatMul", {"x", "f"}, {"y"});
  CHECK(output_of(columns, unit()) == Numbers{1, 2, 4, 8, 12, 24});

  ModelMaker rows = with_x();
  rows.weight("w", bytes({-1, 2, -3, 4, -5, 6}, {2, 3}, DType::I8)).weight("s", floats({1, 2, 4}, {1, 3}));
  rows.node("DequantizeLinear", {"w", "s"}, {"f"}, blocked(0)).node("MatMul", {"x", "f"}, {"y"});
  CHECK(output_of(rows, unit()) == Numbers{-1, 4, -12, 4, -10, 24});
}

TEST_CASE("quantised weights: 8-bit convolution kernels by channel, and scales along a middle axis by arithmetic") {
  for (int64_t axis : {0, 1}) {
    ModelMaker maker(21);
    maker.output("y");
    maker.weight("w", bytes({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2}, DType::I8)).weight("s", floats({1, 10}, {2}));
    maker.node("DequantizeLinear", {"w", "s"}, {"y"}, [&](onnx::NodeProto& node) { set_int(node, "axis", axis); });
    CHECK(output_of(maker) == (axis == 0 ? Numbers{1, 2, 3, 4, 50, 60, 70, 80} : Numbers{1, 2, 30, 40, 5, 6, 70, 80}));
  }
}

// K = 2 fills a part of one block of 16: 8 bytes a row. A zero point that is not given is 8.
TEST_CASE("quantised weights: MatMulNBits and MatMulBnb4") {
  const auto nbits = [](int64_t bits) {
    return [bits](onnx::NodeProto& node) {
      node.set_domain("com.microsoft");
      set_int(node, "K", 2), set_int(node, "N", 3), set_int(node, "bits", bits), set_int(node, "block_size", 16);
    };
  };
  ModelMaker four = with_x();
  Tensor codes(Type(DType::U8, {3, 1, 8}));
  for (int64_t row = 0; row < 3; ++row) codes.view().set_int(row * 8, 0xa9 - row);  // 9 - row, and 10
  four.weight("w", codes).weight("s", floats({1, 2, 3}, {3, 1})).weight("bias", floats({100, 200, 300}, {3}));
  four.node("MatMulNBits", {"x", "w", "s", "", "", "bias"}, {"y"}, nbits(4));
  CHECK(output_of(four, unit()) == Numbers{101, 200, 297, 102, 204, 306});

  ModelMaker eight = with_x();
  eight.weight("w", bytes({}, {3, 1, 16})).weight("s", floats({1, 2, 3}, {3, 1})).weight("z", bytes({1, 2, 3}, {3, 1}));
  eight.node("MatMulNBits", {"x", "w", "s", "z"}, {"y"}, nbits(8));
  CHECK(output_of(eight, unit()) == Numbers{-1, -4, -9, -1, -4, -9});

  ModelMaker books = with_x();  // codes in the high half first: of NF4 0 is -1 and 15 is 1; of FP4 3 is 1 and 0 is 0
  books.weight("w", bytes({0x0f, 0xf0, 0x0f}, {3})).weight("s", floats({2}, {1}));
  const auto bnb4 = [](int64_t kind) {
    return [kind](onnx::NodeProto& node) {
      node.set_domain("com.microsoft");
      set_int(node, "K", 2), set_int(node, "N", 3), set_int(node, "quant_type", kind), set_int(node, "block_size", 16);
    };
  };
  books.node("MatMulBnb4", {"x", "w", "s"}, {"y"}, bnb4(1));
  CHECK(output_of(books, unit()) == Numbers{-2, 2, -2, 2, -2, 2});
  ModelMaker fp4 = with_x();
  fp4.weight("w", bytes({0x30, 0x03, 0xbb}, {3})).weight("s", floats({2}, {1}));
  fp4.node("MatMulBnb4", {"x", "w", "s"}, {"y"}, bnb4(0));
  CHECK(output_of(fp4, unit()) == Numbers{2, 0, -2, 0, 2, -2});
}

TEST_CASE("quantised weights: what is not supported is refused in words") {
  const auto nbits = [](const std::vector<std::string>& inputs, llvm::function_ref<void(onnx::NodeProto&)> more) {
    ModelMaker maker = with_x();
    maker.weight("w", bytes({}, {3, 1, 8})).weight("s", floats({1, 2, 3}, {3, 1})).weight("g", Tensor::of_ints({0, 0}));
    maker.weight("z", floats({1, 2, 3}, {3, 1}));
    maker.node("MatMulNBits", inputs, {"y"}, [&](onnx::NodeProto& node) {
      node.set_domain("com.microsoft");
      set_int(node, "K", 2), set_int(node, "N", 3);
      more(node);
    });
    return refusal(maker);
  };
  const auto blocks_of_16 = [](onnx::NodeProto& node) { set_int(node, "block_size", 16); };
  CHECK(nbits({"x", "w", "s", "", "g"}, blocks_of_16).find("g_idx") != std::string::npos);
  CHECK(nbits({"x", "w", "s", "z"}, blocks_of_16).find("zero points in f32, only packed ones in u8") !=
        std::string::npos);
  CHECK(nbits({"x", "w", "s"}, [](auto& node) {
          set_int(node, "block_size", 16), set_int(node, "bits", 2);
        }).find("2 bits, only 4 and 8") != std::string::npos);
  CHECK(nbits({"x", "w", "s"}, [](auto&) {}).find("block_size is 0") != std::string::npos);
  CHECK(nbits({"x", "w", "s"}, [](auto& node) {
          set_int(node, "block_size", 32);
        }).find("it must be 48 elements of u8") != std::string::npos);

  ModelMaker cast = with_x();
  add_4_bits(cast, "w", {2, 3}, {1, 2, 3});
  cast.node("Cast", {"w"}, {"f"}, [](auto& node) { set_int(node, "to", onnx::TensorProto::FLOAT); });
  cast.node("MatMul", {"x", "f"}, {"y"});
  CHECK(refusal(cast).find("w, has 4-bit elements, which DequantizeLinear alone reads") != std::string::npos);

  ModelMaker truncated = with_x();
  add_4_bits(truncated, "w", {2, 5}, {1, 2, 3});
  truncated.node("Cast", {"w"}, {"y"});
  CHECK(refusal(truncated).find("needs 5 bytes, the file has 3") != std::string::npos);
}

}  // namespace plimsoll
