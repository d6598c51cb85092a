#pragma once

// Where attention finds q, k and v: in tensors of their own, q [batch, rows, heads * depth], k [batch, columns,
// kv_heads * depth], v [batch, columns, kv_heads * value_depth]; or, {packed}, side by side in operand 0, [batch, rows,
// (heads + 2 * kv_heads) * depth], with operands 1 and 2 absent.

#include "ir/op_def.h"

namespace plimsoll {

struct AttentionSizes {
  int64_t batch, rows, columns, heads, kv_heads, depth, value_depth;
  int64_t q_step, k_step, v_step;       // elements from one time to the next
  int64_t k_start = 0, v_start = 0;     // elements before the first of k and of v in their tensors
  int64_t drawn_heads;                  // of all ranks: a sample draws numbers for so many
  size_t k_operand = 1, v_operand = 2;  // which operand, and which result of the gradient, holds them

  Shape scores() const { return {batch, heads, rows, columns}; }

  static bool is_packed(const Attrs& attrs) { return attrs.get_int("packed") != 0; }

  // The widths of the call must divide evenly.
  explicit AttentionSizes(const OpCall& call)
      : batch(call["q"].shape[0]),
        rows(call["q"].shape[1]),
        columns(rows),
        heads(call.get_int("heads")),
        kv_heads(call.get_int("kv_heads")),
        q_step(call["q"].shape[2]),
        drawn_heads(call.attrs.get_int("drawn_heads", heads)) {
    if (is_packed(call.attrs)) {
      k_step = v_step = q_step;
      depth = value_depth = q_step / (heads + 2 * kv_heads);
      k_start = heads * depth;
      v_start = k_start + kv_heads * depth;
      k_operand = v_operand = 0;
      return;
    }
    columns = call["k"].shape[1];
    k_step = call["k"].shape[2];
    v_step = call["v"].shape[2];
    depth = q_step / heads;
    value_depth = v_step / kv_heads;
  }
};

}  // namespace plimsoll
