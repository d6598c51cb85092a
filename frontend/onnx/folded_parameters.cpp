#include "frontend/onnx/folded_parameters.h"

#include "ir/support/strings.h"

#include <algorithm>
#include <iterator>
#include <set>

// The file does not say where a folded initializer came from, but the node that reads it keeps its module path: the
// matrix that a matmul of module m.head reads is m.head.weight. Looked-up rows are not matched, because several of them
// may be one row of the table, which learns from all of its uses.

namespace plimsoll {
namespace {

struct Parameters {
  std::set<std::string> missing;  // in the signature, not in the file
  std::set<std::string> found;    // those of `missing` that an initializer stands for

  // Returns the first missing parameter m.NAME with `kind` in its name, or nothing. Exporters cut parameters and join
  // the matrices of recurrent layers, so neither side is unique.
  std::string claim(llvm::StringRef module, llvm::StringRef kind) {
    std::string prefix = module.str() + ".", first;
    for (auto at = missing.lower_bound(prefix); at != missing.end() && starts_with(*at, prefix); ++at) {
      llvm::StringRef rest = llvm::StringRef(*at).drop_front(prefix.size());
      if (!rest.contains(kind) || rest.contains('.')) continue;
      if (first.empty()) first = *at;
      found.insert(*at);
    }
    return first;
  }
};

bool is_recurrent(llvm::StringRef op) { return op == "LSTM" || op == "GRU" || op == "RNN"; }

// Returns the name of the parameter that an operand must be, judged by the operator; empty if it says nothing.
llvm::StringRef parameter_kind(const onnx::NodeProto& node, int operand) {
  if ((node.op_type() == "MatMul" || node.op_type() == "Gemm") && operand == 1) return "weight";
  if (!is_recurrent(node.op_type())) return "";
  return operand == 1 ? "weight_ih" : operand == 2 ? "weight_hh" : operand == 3 ? "bias" : "";
}

}  // namespace

FoldedParameters find_folded_parameters(const onnx::GraphProto& graph, const ExportSignature& signature) {
  FoldedParameters folded;
  std::set<std::string> unlisted;
  std::set<std::string> present;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    present.insert(tensor.name());
    Result<DType> dtype = dtype_from_onnx(tensor.data_type());
    if (!dtype)
      llvm::consumeError(dtype.takeError());
    else if (is_float(*dtype) && tensor.dims_size() >= 2 && !signature.is_parameter(tensor.name()))
      unlisted.insert(tensor.name());
  }
  Parameters parameters;
  for (const std::string& name : signature.parameters())
    if (!present.count(name)) parameters.missing.insert(name);

  for (const onnx::NodeProto& node : graph.node())
    for (int i = 0; i < node.input_size(); ++i) {
      llvm::StringRef kind = parameter_kind(node, i);
      if (kind.empty() || !unlisted.count(node.input(i)) || folded.stand_ins.count(node.input(i))) continue;
      std::string name = parameters.claim(origin_of(node).module, kind);
      if (!name.empty()) folded.stand_ins[node.input(i)] = name;
    }
  std::set_difference(parameters.missing.begin(), parameters.missing.end(), parameters.found.begin(),
                      parameters.found.end(), std::back_inserter(folded.lost));
  return folded;
}

}  // namespace plimsoll
