#include "frontend/onnx/state_names.h"

#include "tests/frontend/model_maker.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

void set_signature(ModelMaker& maker, const std::string& text) {
  onnx::StringStringEntryProto& entry = *maker.graph().add_metadata_props();
  entry.set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry.set_value(text);
}

void set_module(ModelMaker& maker, int node, const std::string& scopes) {
  onnx::StringStringEntryProto& entry = *maker.graph().mutable_node(node)->add_metadata_props();
  entry.set_key("pkg.torch.onnx.name_scopes");
  entry.set_value(scopes);
}

TEST_SUITE("unit") {
  TEST_CASE("state names: a tied parameter has the name of each of its modules") {
    ModelMaker maker;
    maker.input("ids", {"2"}, DType::I64).output("y", {"2", "2"});
    maker.weight("lm_head.weight", Tensor(Type(DType::F32, {2, 2})));
    maker.node("Gather", {"lm_head.weight", "ids"}, {"x"});
    maker.node("MatMul", {"x", "lm_head.weight"}, {"y"});
    set_module(maker, 0, "['', 'wte', 'embedding']");
    set_module(maker, 1, "['', 'lm_head', 'linear']");
    set_signature(maker,
                  "# inputs\np_wte_weight: PARAMETER target='wte.weight'\np_lm_head_weight: PARAMETER "
                  "target='lm_head.weight'\nb_bn: BUFFER target='bn.num_batches_tracked'\np_lost: PARAMETER "
                  "target='lost.weight'\n");
    const StateNames names = find_state_names(maker.graph());
    CHECK(names.tied == std::map<std::string, std::string>{{"wte.weight", "lm_head.weight"}});
    CHECK(names.batch_counters == std::vector<std::string>{"bn.num_batches_tracked"});
  }

  TEST_CASE("state names: without a signature the file's names are all") {
    ModelMaker maker;
    maker.input("x", {"2"}).output("y", {"2"}).weight("w", Tensor(Type(DType::F32, {2})));
    maker.node("Add", {"x", "w"}, {"y"});
    const StateNames names = find_state_names(maker.graph());
    CHECK(names.tied.empty());
    CHECK(names.batch_counters.empty());
  }
}

}  // namespace
}  // namespace plimsoll
