#pragma once

// Rotary position embedding.

#include <cstdint>

namespace plimsoll::cpu {

struct RotaryShape {
  int64_t batch, rows, heads;
  int64_t turned;  // the first heads; the others stay as they are
  int64_t head_size;
  int64_t pairs;        // half of the rotated width
  int64_t table_batch;  // 1 or batch
  bool interleaved, inverse;
};

// y and x [batch, rows, heads * head_size], cos and sin [table_batch, rows, pairs]. y may be x.
void rotary(const RotaryShape& shape, float* y, const float* x, const float* cos, const float* sin);

}  // namespace plimsoll::cpu
