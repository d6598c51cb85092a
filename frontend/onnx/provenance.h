#pragma once

// Reads where nodes and initializers come from: PyTorch's metadata on nodes and its export signature.

#include "frontend/onnx/model.h"
#include "ir/graph.h"

namespace plimsoll {

Origin origin_of(const onnx::NodeProto& node);

// torch.export's lists of parameters and buffers.
class ExportSignature {
 public:
  static ExportSignature read(const onnx::GraphProto& graph);

  bool empty() const { return is_parameter_.empty(); }
  std::optional<bool> is_parameter(llvm::StringRef initializer) const;
  std::vector<std::string> parameters() const;  // sorted
  std::vector<std::string> names() const;       // of parameters, buffers and constants, sorted

 private:
  llvm::StringMap<bool> is_parameter_;
};

// Decides by name if there is no signature. Buffers end in a well-known name; constants are single numbers with a name
// that an exporter made.
bool is_buffer_name(llvm::StringRef initializer, int64_t elements);

}  // namespace plimsoll
