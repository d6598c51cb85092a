#include "passes/train/exported_adapters.h"

#include "frontend/onnx/exported_adapters.h"
#include "tests/frontend/model_maker.h"

#include <doctest/doctest.h>

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

TEST_CASE("exported adapters: DoRA and several adapters are refused, models without adapters have none") {
  CHECK(refusal(adapted("other")).find("adapters of the names default and other") != std::string::npos);
  ModelMaker magnitudes = adapted();
  magnitudes.weight("m.base_model.model.fc0.lora_magnitude_vector.default.weight", numbers({4}, 1));
  CHECK(refusal(magnitudes).find("is a magnitude of DoRA") != std::string::npos);
  ModelMaker plain;
  plain.input("x", {"2", "4"}).output("y").weight("w", numbers({4, 2}, 0)).weight("v", numbers({2, 4}, 0));
  plain.node("MatMul", {"x", "w"}, {"h"}).node("MatMul", {"h", "v"}, {"y"});
  CHECK(llvm::cantFail(find_exported_adapters(plain.make().proto().graph())).empty());
}

}  // namespace plimsoll
