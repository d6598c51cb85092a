#pragma once

// The window attributes that convolutions and pools share in ONNX, with auto_pad resolved.

#include "frontend/onnx/node_context.h"

namespace plimsoll {

struct Window {
  Ints kernel, strides, dilations;
  Ints pads;  // begins, then ends

  size_t rank() const { return kernel.size(); }
  int64_t span(size_t d) const { return dilations[d] * (kernel[d] - 1) + 1; }
};

enum class WindowFor : uint8_t {
  Input,      // slides over what is given: convolutions, pools
  Transpose,  // is spread over what is produced: pads are left to the caller
};

// Fails when an attribute does not have one entry (pads: two) a spatial dimension.
Window read_window(NodeContext& n, llvm::ArrayRef<int64_t> spatial, llvm::ArrayRef<int64_t> kernel, WindowFor use);

// Pads of `total` elements a dimension, the odd one at the end or (SAME_LOWER) at the begin.
Ints split_pads(llvm::ArrayRef<int64_t> total, bool odd_at_begin);

}  // namespace plimsoll
