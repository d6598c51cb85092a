#pragma once

// An ONNX graph as the search for adapters reads it: who makes and who reads a value, which initializer stands behind
// an input, and in which module of PyTorch's a node lies.

#include "frontend/onnx/provenance.h"

#include <map>

namespace plimsoll {

class ScopedGraph {
 public:
  struct Reader {
    const onnx::NodeProto* node;
    int input;
  };
  struct Stored {
    const onnx::TensorProto* tensor = nullptr;
    bool transposed = false;  // what is read is the transpose
  };

  explicit ScopedGraph(const onnx::GraphProto& graph);

  const onnx::GraphProto& proto() const { return graph_; }
  const std::map<std::string, const onnx::TensorProto*>& initializers() const { return initializers_; }
  llvm::StringRef scope(const onnx::NodeProto& node) const { return scopes_.at(&node); }

  // Null: no node makes it, or no one node reads it.
  const onnx::NodeProto* producer(const std::string& value) const;
  // Past nodes of these ops, which have one operand, or other operands that are shapes.
  const onnx::NodeProto* producer_past(const std::string& value, llvm::ArrayRef<llvm::StringRef> ops) const;
  const onnx::NodeProto* only_reader(const std::string& value) const;
  llvm::ArrayRef<Reader> readers(const std::string& value) const;
  bool is_output(const std::string& value) const { return outputs_.contains(value); }

  // The initializer behind a value: itself, or behind transposes and identities, which are how exporters store equal
  // matrices once.
  Stored stored(const std::string& value) const;
  Stored stored(const onnx::NodeProto& node, int input) const;
  // The one float that an initializer or a Constant is, perhaps cast; none where it has more elements.
  std::optional<double> number(const std::string& value) const;

 private:
  const onnx::GraphProto& graph_;
  std::map<std::string, const onnx::TensorProto*> initializers_;
  std::map<std::string, const onnx::NodeProto*> producers_;
  std::map<std::string, std::vector<Reader>> readers_;
  std::map<const onnx::NodeProto*, std::string> scopes_;
  llvm::StringSet<> outputs_;
};

}  // namespace plimsoll
