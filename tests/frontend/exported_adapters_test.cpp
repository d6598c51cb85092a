#include "passes/train/exported_adapters.h"

#include "frontend/api/weights.h"
#include "frontend/onnx/exported_adapters.h"
#include "tests/frontend/model_maker.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

// Adapters that an export already has. tests/golden/check_adapters.py has whole models of both exporters.

namespace plimsoll {
namespace {

Tensor numbers(llvm::ArrayRef<int64_t> shape, double first) {
  Tensor tensor(Type(DType::F32, shape));
  for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, first + static_cast<double>(i));
  return tensor;
}

// The node lies in the module, as the dynamo exporter says it.
auto within(const std::string& module) {
  return [module](onnx::NodeProto& node) {
    auto* entry = node.add_metadata_props();
    entry->set_key("pkg.torch.onnx.name_scopes");
    entry->set_value("['', 'm', '" + module + "', 'linear']");
  };
}

// Two layers of 4 to 4 with adapters of rank 2, one scaled by 3. Both B are one initializer, as exporters store zeros.
ModelMaker adapted(const std::string& name = "default") {
  ModelMaker maker;
  maker.input("x", {"2", "4"}).output("y", {"2", "4"});
  maker.weight("m.base_model.model.norm.weight", numbers({4}, 1)).weight("val_b", numbers({2, 4}, 0));
  maker.weight("val_scale", Tensor::scalar(3, DType::F32));
  maker.node("Mul", {"x", "m.base_model.model.norm.weight"}, {"h0"});
  for (int i = 0; i < 2; ++i) {
    const std::string k = std::to_string(i), module = "m.base_model.model.fc" + k;
    maker.weight("val_w" + k, numbers({4, 4}, 1)).weight("val_a" + k, numbers({4, 2}, 10 * i));
    maker.node("MatMul", {"h" + k, "val_w" + k}, {"base" + k}, within(module + ".base_layer"));
    maker.node("MatMul", {"h" + k, "val_a" + k}, {"a" + k}, within(module + ".lora_A." + name));
    maker.node("MatMul", {"a" + k, "val_b"}, {"b" + k}, within(module + ".lora_B." + (i == 0 ? "default" : name)));
    maker.node("Mul", {"b" + k, i == 0 ? "val_scale" : "b" + k}, {"s" + k}, within(module));
    maker.node("Add", {"base" + k, i == 0 ? "s0" : "b1"}, {i == 0 ? "h1" : "y"}, within(module));
  }
  return maker;
}

// What a layer with DoRA is in an export.
struct DoraForm {
  bool folded = false;        // g and g - 1 are constants
  std::string of = "norms";   // what magnitudes are divided by
  std::string op = "Linear";  // or Conv
};

constexpr double dora_scale = 1.5;

// One layer of 3 to 2 without a bias and with an adapter of rank 1, as both exporters write PEFT's arithmetic: g makes
// the result y + (g - 1) y + g (B A x) s, and B A for the norms is made of a unit matrix.
ModelMaker with_magnitudes(const DoraForm& form) {
  const std::string module = "m.base_model.model.fc", own = module + ".lora_magnitude_vector.default";
  const auto inside = within(own);
  const bool is_conv = form.op == "Conv";
  const std::vector<std::string> dims =
      is_conv ? std::vector<std::string>{"1", "3", "4"} : std::vector<std::string>{"4", "3"};
  const auto matrix = [&](llvm::ArrayRef<int64_t> linear, llvm::ArrayRef<int64_t> conv, double first) {
    return numbers(is_conv ? conv : linear, first);
  };
  ModelMaker maker;
  maker.input("x", dims).output("y");
  maker.weight("w", matrix({3, 2}, {2, 3, 1}, 1))
      .weight("a", matrix({3, 1}, {1, 3, 1}, 2))
      .weight("b", matrix({1, 2}, {2, 1, 1}, 3));
  maker.weight("s", Tensor::scalar(dora_scale, DType::F32));
  const std::string layer = is_conv ? "Conv" : "MatMul";
  maker.node(layer, {"x", "w"}, {"frozen"}, within(module + ".base_layer"));
  if (form.folded) {
    maker.weight("g", numbers({1, 2}, 5)).weight("less", numbers({1, 2}, 4));
  } else {
    maker.weight(own + ".weight", numbers({2}, 7)).weight("one", Tensor::scalar(1, DType::F32));
    maker.weight("unit", numbers({3, 3}, 0)).weight("wt", numbers({2, 3}, 1));
    maker.node("MatMul", {"unit", "a"}, {"first"}, within(module + ".lora_A.default"));
    maker.node("MatMul", {"first", "b"}, {"second"}, within(module + ".lora_B.default"));
    maker.node("Transpose", {"second"}, {"turned"}, inside).node("Mul", {"turned", "s"}, {"change"}, inside);
    maker.node("Add", {"wt", "change"}, {"adapted"}, inside);
    maker.weight("axis", Tensor::of_ints({1}));
    maker.node("ReduceL2", {"adapted", "axis"}, {"norms"}, [&](onnx::NodeProto& node) {
      set_int(node, "keepdims", 0);
      inside(node);
    });
    maker.node("Exp", {"norms"}, {"others"}, inside);
    maker.weight("shape", Tensor::of_ints({1, 2}));
    maker.node("Div", {own + ".weight", form.of}, {"quotient"}, inside);
    maker.node("Reshape", {"quotient", "shape"}, {"g"}, inside).node("Sub", {"g", "one"}, {"less"}, inside);
  }
  maker.node(layer, {"x", "a"}, {"h"}, within(module + ".lora_A.default"));
  maker.node(layer, {"h", "b"}, {"c"}, within(module + ".lora_B.default"));
  maker.node("Mul", {"less", "frozen"}, {"p"}, inside).node("Mul", {"g", "c"}, {"gc"}, inside);
  maker.node("Mul", {"gc", "s"}, {"q"}, inside).node("Add", {"p", "q"}, {"sum"}, inside);
  maker.node("Add", {"frozen", "sum"}, {"y"}, within(module));
  return maker;
}

std::string refusal(const ModelMaker& maker) {
  Result<Graph> graph = import_model(maker.make(), {});
  return graph ? "" : take_diag(graph.takeError()).text();
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("exported adapters: each module has its own matrices, though the file stores equal ones once") {
  Result<Graph> graph = import_model(adapted().make(), {});
  REQUIRE(static_cast<bool>(graph));
  const auto state = [&](const std::string& name) {
    const State* found = graph->find_state(graph->find_value("m.base_model.model." + name));
    REQUIRE(found);
    return found;
  };
  CHECK(state("fc0.lora_A.weight")->trained);
  CHECK(state("fc0.lora_B.weight")->value != state("fc1.lora_B.weight")->value);
  CHECK(graph->type(state("fc1.lora_A.weight")->value) == Type(DType::F32, {2, 4}));
  CHECK(graph->type(state("fc1.lora_B.weight")->value) == Type(DType::F32, {4, 2}));
  CHECK(state("fc1.lora_B.weight")->init.source == "base_model.model.fc1.lora_B.weight");
  CHECK_FALSE(state("norm.weight")->trained);

  const std::vector<ExportedAdapter> adapters = llvm::cantFail(exported_adapters_of(*graph));
  REQUIRE(adapters.size() == 2);
  CHECK(adapters[0].module == "fc0");
  CHECK(adapters[0].scale == 3);
  CHECK(adapters[1].scale == 1);
  CHECK(adapters[1].rank == 2);
  CHECK(describe(*graph, adapters) == "2 modules of rank 2 and scale 1 to 3, such as fc0");
}

TEST_CASE("exported adapters: what stands for a matrix may be its transpose") {
  const Model model = adapted().make();
  const ExportedAdapters adapters = llvm::cantFail(find_exported_adapters(model.proto().graph()));
  CHECK(adapters.prefix == "m.");
  const ExportedParameter& b = adapters.parameters.at("base_model.model.fc1.lora_B.weight");
  CHECK(b.initializer == "val_b");
  CHECK(b.transposed);
}

TEST_CASE("exported adapters: a layer that reads a parameter has an adapter as well") {
  ModelMaker maker;
  maker.output("y").weight("m.base_model.model.queries", numbers({4, 4}, 0));
  maker.weight("w", numbers({4, 4}, 1)).weight("a", numbers({4, 2}, 2)).weight("b", numbers({2, 4}, 3));
  const std::string module = "m.base_model.model.fc", x = "m.base_model.model.queries";
  maker.node("MatMul", {x, "w"}, {"frozen"}, within(module + ".base_layer"));
  maker.node("MatMul", {x, "a"}, {"h"}, within(module + ".lora_A.default"));
  maker.node("MatMul", {"h", "b"}, {"c"}, within(module + ".lora_B.default"));
  maker.node("Add", {"frozen", "c"}, {"y"}, within(module));
  const Model model = maker.make();
  CHECK(llvm::cantFail(find_exported_adapters(model.proto().graph())).parameters.size() == 2);
}

TEST_CASE("exported adapters: DoRA's norms become the op that passes them no gradient") {
  for (const bool folded : {false, true}) {
    Result<Graph> graph = import_model(with_magnitudes({.folded = folded}).make(), {});
    REQUIRE(static_cast<bool>(graph));
    int64_t scales = 0;
    for (NodeId id : graph->order()) {
      const Node& node = graph->node(id);
      CHECK(node.op->name != "reduce_l2");
      CHECK(node.op->name != "div");
      if (node.op->name != "dora_scale") continue;
      ++scales;
      CHECK(node.attrs.get_float("scale") == dora_scale);
      CHECK(node.attrs.get_int("transpose_w") == 0);
      CHECK(graph->value(node.operands[0]).name == "w");
      const State* magnitude = graph->find_state(node.operands[3]);
      REQUIRE(magnitude);
      CHECK(magnitude->trained);
      CHECK(magnitude->init.source == "base_model.model.fc.lora_magnitude_vector");
      CHECK(graph->type(magnitude->value) == Type(DType::F32, {2}));
    }
    CHECK(scales == 1);
    const std::vector<ExportedAdapter> adapters = llvm::cantFail(exported_adapters_of(*graph));
    REQUIRE(adapters.size() == 1);
    CHECK(adapters[0].has_magnitudes);
    CHECK(describe(*graph, adapters) == "1 module of rank 1 and scale 1.5 with magnitudes, such as fc");
  }
}

TEST_CASE("exported adapters: magnitudes that were folded into their factor are read as that times the norms") {
  llvm::SmallString<128> path;
  REQUIRE_FALSE(bool(llvm::sys::fs::createTemporaryFile("plimsoll-dora", "onnx", path)));
  {
    std::ofstream out(path.c_str(), std::ios::binary);
    REQUIRE(with_magnitudes({.folded = true}).proto().SerializeToOstream(&out));
  }
  const Weights weights = llvm::cantFail(open_weights(path.str().str()));
  Tensor magnitudes(Type(DType::F32, {2}));
  llvm::cantFail(weights.load("base_model.model.fc.lora_magnitude_vector", magnitudes.view()));
  for (int64_t o = 0; o < 2; ++o) {
    double sum = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const double w = 1 + static_cast<double>(2 * i + o), a = 2 + static_cast<double>(i),
                   b = 3 + static_cast<double>(o);
      sum += (w + dora_scale * b * a) * (w + dora_scale * b * a);
    }
    CHECK(magnitudes.get(o) == doctest::Approx((5 + static_cast<double>(o)) * std::sqrt(sum)));
  }
  llvm::sys::fs::remove(path);
}

TEST_CASE(
    "exported adapters: DoRA in other forms and several adapters are refused, models without adapters have none") {
  CHECK(refusal(adapted("other")).find("adapters of the names default and other") != std::string::npos);
  ModelMaker magnitudes = adapted();
  magnitudes.weight("m.base_model.model.fc0.lora_magnitude_vector.default.weight", numbers({4}, 1));
  CHECK(refusal(magnitudes).find("fc0 has magnitudes (DoRA) that are not recognised") != std::string::npos);
  CHECK(
      refusal(with_magnitudes({.of = "others"})).find("fc has magnitudes (DoRA) that are divided by something else") !=
      std::string::npos);
  CHECK(
      refusal(with_magnitudes({.folded = true, .op = "Conv"})).find("fc has magnitudes (DoRA) and is a convolution") !=
      std::string::npos);
  ModelMaker plain;
  plain.input("x", {"2", "4"}).output("y").weight("w", numbers({4, 2}, 0)).weight("v", numbers({2, 4}, 0));
  plain.node("MatMul", {"x", "w"}, {"h"}).node("MatMul", {"h", "v"}, {"y"});
  CHECK(llvm::cantFail(find_exported_adapters(plain.make().proto().graph())).empty());
}

}  // namespace plimsoll
