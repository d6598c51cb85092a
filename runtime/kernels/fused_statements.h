#pragma once

// The nodes of a body as statements of CUDA C++, on variables of one element or of one total.

#include "ir/fused_body.h"

namespace plimsoll {

// What a type is in memory and in registers, where 16-bit floats are f32.
llvm::StringRef stored_type(DType dtype);
llvm::StringRef register_type(DType dtype);

class BodyStatements {
 public:
  explicit BodyStatements(const Graph& body);

  // "const float v3 = op_mul(x0, v2);", one variable a value whatever was written before.
  std::string write(NodeId id);
  const std::string& name_of(ValueId value) const { return names_[index_of(value)]; }
  // The functions that written statements call.
  const std::string& functions() const { return functions_; }

  // The draws of all dropouts among the nodes for a run of `length` elements that begins at `at`, a variable.
  std::string draws(llvm::ArrayRef<NodeId> nodes, int64_t length, llvm::StringRef at) const;
  // Ids of the body's dropouts, which are parameters stream0, stream1, ...
  llvm::ArrayRef<uint32_t> streams() const { return streams_; }

 private:
  const std::string& argument(const Node& node, size_t i) const { return name_of(node.operands[i]); }
  size_t stream_of(const Node& node) const;
  std::string expression(const Node& node, DType dtype);
  std::string sum(const Node& node) const;
  std::string dropout(const Node& node, const OpCall& call) const;
  std::string apply(const Node& node, const OpCall& call);

  const Graph& body_;
  std::vector<std::string> names_;  // by value of the body
  std::vector<NodeId> drops_;
  llvm::SmallVector<uint32_t, 4> streams_;
  std::string functions_;
};

}  // namespace plimsoll
