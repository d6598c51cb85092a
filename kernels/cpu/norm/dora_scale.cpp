#include "kernels/cpu/norm/dora_scale.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/elementwise/cast.h"

#include <cmath>

// Reads w once. A task takes a few outputs and goes along the inputs in pieces that stay in the cache, so a, which is
// small, is read again for each output from there.

namespace plimsoll::cpu {
namespace {

constexpr int64_t inputs_at_once = 512, outputs_at_once = 16;

// Elements of w [rows of that many outputs, inputs], as f32.
void load_piece(const DoraScale& call, int64_t output, int64_t outputs, int64_t input, int64_t inputs, float* piece) {
  const int64_t size = call.w_type == Scalar::F32 ? 4 : 2;
  const auto* bytes = static_cast<const char*>(call.w);
  if (call.by_outputs) {
    for (int64_t o = 0; o < outputs; ++o)
      cast_elements(piece + o * inputs, Scalar::F32, bytes + ((output + o) * call.inputs + input) * size, call.w_type,
                    inputs);
    return;
  }
  float row[outputs_at_once];
  for (int64_t i = 0; i < inputs; ++i) {
    cast_elements(row, Scalar::F32, bytes + ((input + i) * call.outputs + output) * size, call.w_type, outputs);
    for (int64_t o = 0; o < outputs; ++o) piece[o * inputs + i] = row[o];
  }
}

double squares_of(const DoraScale& call, int64_t output, int64_t input, int64_t inputs, float* row) {
  for (int64_t r = 0; r < call.rank; ++r) {
    const float factor = call.scale * call.b[output * call.rank + r];
    const float* a = call.a + r * call.inputs + input;
#pragma omp simd
    for (int64_t i = 0; i < inputs; ++i) row[i] += factor * a[i];
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < inputs; ++i) sum += row[i] * row[i];
  return sum;
}

}  // namespace

void dora_scale(const DoraScale& call) {
  const int64_t tasks = (call.outputs + outputs_at_once - 1) / outputs_at_once;
  parallel_tasks(tasks, call.outputs * call.inputs * (call.rank + 1), [&](int64_t task) {
    const int64_t first = task * outputs_at_once, outputs = std::min(outputs_at_once, call.outputs - first);
    float piece[outputs_at_once * inputs_at_once];
    double sums[outputs_at_once] = {};
    for (int64_t input = 0; input < call.inputs; input += inputs_at_once) {
      const int64_t inputs = std::min(inputs_at_once, call.inputs - input);
      load_piece(call, first, outputs, input, inputs, piece);
      for (int64_t o = 0; o < outputs; ++o) sums[o] += squares_of(call, first + o, input, inputs, piece + o * inputs);
    }
    for (int64_t o = 0; o < outputs; ++o) {
      call.norms[first + o] = static_cast<float>(std::sqrt(sums[o]));
      call.y[first + o] = call.magnitude[first + o] / call.norms[first + o];
    }
  });
}

}  // namespace plimsoll::cpu
