#include "frontend/onnx/folded_parameters.h"

#include <set>

// Nothing in the file says where a folded initializer came from, but its reader keeps its place in the module tree: the
// matrix that a product of module m.head reads is m.head.weight, and what a lookup named "embedding_1" left behind
// holds rows of a table right below the module that adds it.

namespace plimsoll {
namespace {

struct Parameters {
  std::set<std::string> missing;  // in the signature, not in the file

  // The first missing parameter m.NAME, or m.CHILD.weight for a table.
  std::string claim(llvm::StringRef module, bool of_child) {
    std::string prefix = module.str() + ".";
    for (auto at = missing.lower_bound(prefix); at != missing.end() && llvm::StringRef(*at).startswith(prefix); ++at) {
      llvm::StringRef rest = llvm::StringRef(*at).drop_front(prefix.size());
      bool fits = of_child ? rest.count('.') == 1 && rest.endswith(".weight") : rest.endswith("weight") && !rest.contains('.');
      if (!fits) continue;
      std::string name = *at;
      missing.erase(at);
      return name;
    }
    return "";
  }
};

bool is_lookup_result(llvm::StringRef name) {
  return name.consume_front("embedding") && (name.empty() || name.consume_front("_")) && llvm::all_of(name, llvm::isDigit);
}

}  // namespace

FoldedParameters find_folded_parameters(const onnx::GraphProto& graph, const ExportSignature& signature) {
  FoldedParameters folded;
  llvm::StringMap<const onnx::TensorProto*> unlisted;
  std::set<std::string> present;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    present.insert(tensor.name());
    Result<DType> dtype = dtype_from_onnx(tensor.data_type());
    if (!dtype) llvm::consumeError(dtype.takeError());
    else if (is_float(*dtype) && tensor.dims_size() >= 2 && !signature.is_parameter(tensor.name())) unlisted[tensor.name()] = &tensor;
  }
  Parameters parameters;
  for (const std::string& name : signature.parameters())
    if (!present.count(name)) parameters.missing.insert(name);

  // Tables come last: what a product claims is no table.
  for (bool tables : {false, true})
    for (const onnx::NodeProto& node : graph.node())
      for (int i = 0; i < node.input_size(); ++i) {
        bool product = (node.op_type() == "MatMul" || node.op_type() == "Gemm") && i == 1;
        bool table = node.op_type() == "Add" && is_lookup_result(node.input(i));
        if (!(tables ? table : product) || !unlisted.count(node.input(i)) || folded.stand_ins.count(node.input(i))) continue;
        std::string name = parameters.claim(origin_of(node).module, tables);
        if (!name.empty()) folded.stand_ins[node.input(i)] = name;
      }
  folded.lost.assign(parameters.missing.begin(), parameters.missing.end());
  return folded;
}

}  // namespace plimsoll
