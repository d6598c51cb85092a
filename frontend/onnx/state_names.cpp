#include "frontend/onnx/state_names.h"

#include "frontend/onnx/provenance.h"
#include "ir/support/strings.h"

#include "llvm/ADT/StringSet.h"

#include <set>

namespace plimsoll {
namespace {

// The parameters of other modules that the nodes of a module read.
using ForeignWeights = llvm::StringMap<std::set<std::string>>;

ForeignWeights weights_of_modules(const onnx::GraphProto& graph, const llvm::StringSet<>& initializers,
                                  const ExportSignature& signature) {
  ForeignWeights read;
  for (const onnx::NodeProto& node : graph.node()) {
    const std::string module = origin_of(node).module;
    for (const std::string& input : node.input())
      if (!module.empty() && initializers.contains(input) && signature.is_parameter(input).value_or(false) &&
          !starts_with(input, module + "."))
        read[module].insert(input);
  }
  return read;
}

}  // namespace

StateNames find_state_names(const onnx::GraphProto& graph) {
  const ExportSignature signature = ExportSignature::read(graph);
  llvm::StringSet<> initializers;
  for (const onnx::TensorProto& tensor : graph.initializer()) initializers.insert(tensor.name());
  const ForeignWeights read = weights_of_modules(graph, initializers, signature);
  StateNames names;
  for (const std::string& name : signature.names()) {
    if (initializers.contains(name)) continue;
    if (ends_with(name, ".num_batches_tracked")) {
      names.batch_counters.push_back(name);
      continue;
    }
    // A module whose parameter is missing, and which reads just one parameter of another, has it tied to that.
    const auto found = read.find(llvm::StringRef(name).rsplit('.').first);
    if (signature.is_parameter(name).value_or(false) && found != read.end() && found->second.size() == 1)
      names.tied[name] = *found->second.begin();
  }
  return names;
}

}  // namespace plimsoll
