#pragma once

// Reads where nodes and initializers come from: PyTorch's metadata on nodes and its export signature.

#include "frontend/onnx/model.h"
#include "ir/graph.h"

#include "llvm/ADT/StringSet.h"

namespace plimsoll {

Origin origin_of(const onnx::NodeProto& node);

// What names of weights begin with before the paths that files of adapters use: "m." where a module of the user's own
// wraps a library's model as its attribute m. Empty where it does not, or where the file does not say.
std::string wrapper_prefix(const onnx::GraphProto& graph);

// The label smoothing of the PyTorch call that a SoftmaxCrossEntropyLoss stands for, 0 where none is recorded. ONNX has
// none: PyTorch's exporter drops it without a word and keeps the call as metadata.
double recorded_label_smoothing(const onnx::NodeProto& node);

// Whether an Identity stands for PyTorch's detach. ONNX cannot say that no gradient goes through a value; PyTorch's
// exporter keeps the call as metadata.
bool is_recorded_detach(const onnx::NodeProto& node);

// torch.export's lists of parameters and buffers.
class ExportSignature {
 public:
  static ExportSignature read(const onnx::GraphProto& graph);

  bool empty() const { return is_parameter_.empty(); }
  std::optional<bool> is_parameter(llvm::StringRef initializer) const;
  // A buffer that no step changes and that no file of weights holds, since the model computes it when it is made, or a
  // tensor that its code writes out.
  bool is_computed(llvm::StringRef initializer) const { return computed_.contains(initializer); }
  std::vector<std::string> parameters() const;  // sorted
  std::vector<std::string> names() const;       // of parameters, buffers and constants, sorted

 private:
  llvm::StringMap<bool> is_parameter_;
  llvm::StringSet<> computed_;
};

// Decides by name if there is no signature. Buffers end in a well-known name; constants are single numbers with a name
// that an exporter made.
bool is_buffer_name(llvm::StringRef initializer, int64_t elements);

}  // namespace plimsoll
