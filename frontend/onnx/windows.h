#pragma once

// Reads the window attributes that convolutions and pools share in ONNX, and resolves auto_pad.

#include "frontend/onnx/node_context.h"

namespace plimsoll {

struct NodeWindow {
  Ints kernel, strides, dilations;
  Ints pads;  // all begins, then all ends

  size_t rank() const { return kernel.size(); }
  Attrs attrs() const { return {{"strides", strides}, {"pads", pads}, {"dilations", dilations}}; }
  int64_t span(size_t d) const { return dilations[d] * (kernel[d] - 1) + 1; }
};

enum class WindowFor : uint8_t {
  Input,      // the window slides over the input: convolutions, pools
  Transpose,  // the window slides over the output; the caller sets the pads
};

// Fails unless arithmetic on this number of a window and on a tensor's sizes stays within 64 bits.
void check_window_number(NodeContext& n, int64_t number);

// Fails if an attribute does not have one entry (pads: two) per spatial dimension.
NodeWindow read_window(NodeContext& n, llvm::ArrayRef<int64_t> spatial, llvm::ArrayRef<int64_t> kernel, WindowFor use);

// Returns pads of `total` elements per dimension. An odd one goes to the end, or to the begin for SAME_LOWER.
Ints split_pads(llvm::ArrayRef<int64_t> total, bool odd_at_begin);

}  // namespace plimsoll
