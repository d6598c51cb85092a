#pragma once

#include "frontend/onnx/model.h"

namespace plimsoll {

// The nodes of one ONNX graph so that each comes after what it reads: the file's order where that holds, as ONNX
// demands, otherwise the nearest to it. Fails on a cycle.
Result<std::vector<int>> order_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);

}  // namespace plimsoll
