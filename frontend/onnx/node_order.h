#pragma once

#include "frontend/onnx/model.h"

namespace plimsoll {

// Orders the nodes of one ONNX graph so that each comes after the nodes it reads. Keeps the file's order where that is
// valid, as ONNX demands. Fails on a cycle.
Result<std::vector<int>> order_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);

}  // namespace plimsoll
