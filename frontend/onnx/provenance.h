#pragma once

// What exporters say about where things come from: PyTorch's metadata on nodes and its export signature.

#include "frontend/onnx/model.h"
#include "ir/graph.h"

namespace plimsoll {

Origin origin_of(const onnx::NodeProto& node);

// Which initializers are parameters and which are buffers, by torch.export's account.
class ExportSignature {
 public:
  static ExportSignature read(const onnx::GraphProto& graph);

  bool empty() const { return is_parameter_.empty(); }
  std::optional<bool> is_parameter(llvm::StringRef initializer) const;
  std::vector<std::string> parameters() const;  // sorted

 private:
  llvm::StringMap<bool> is_parameter_;
};

// Without a signature the name decides: the last part of a well-known buffer, or a name an exporter made up for a
// single number.
bool is_buffer_name(llvm::StringRef initializer, int64_t elements);

}  // namespace plimsoll
