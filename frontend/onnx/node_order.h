#pragma once

#include "frontend/onnx/model.h"

namespace plimsoll {

// Visits every name that a node or one of its subgraphs reads.
template <typename Visit>
void for_each_read(const onnx::NodeProto& node, Visit& visit) {
  for (const std::string& name : node.input()) visit(name);
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (!attribute.has_g()) continue;
    for (const onnx::NodeProto& inner : attribute.g().node()) for_each_read(inner, visit);
    for (const auto& output : attribute.g().output()) visit(output.name());
  }
}

// Orders the nodes of one ONNX graph so that each comes after the nodes it reads. Keeps the file's order where that is
// valid, as ONNX demands. Fails on a cycle.
Result<std::vector<int>> order_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);

}  // namespace plimsoll
