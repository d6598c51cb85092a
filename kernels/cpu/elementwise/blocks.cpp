#include "kernels/cpu/elementwise/block_values.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/philox.h"
#include "kernels/cpu/elementwise/cast.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace plimsoll::cpu {
namespace {

int64_t bytes_of(Scalar type) {
  switch (type) {
    case Scalar::F32:
    case Scalar::I32: return 4;
    case Scalar::BF16:
    case Scalar::F16: return 2;
    case Scalar::I64: return 8;
    default: return 1;
  }
}

template <typename T>
void fill(void* to, const void* from, int64_t n) {
  std::fill_n(static_cast<T*>(to), n, *static_cast<const T*>(from));
}

void repeat(void* to, const void* element, Scalar type, int64_t n) {
  switch (bytes_of(type)) {
    case 4: return fill<uint32_t>(to, element, n);
    case 8: return fill<uint64_t>(to, element, n);
    default: return fill<uint8_t>(to, element, n);
  }
}

}  // namespace

void Blocks::load_all(int64_t at, int64_t n) {
  for (size_t i = 0; i < program_.operands.size(); ++i) load(i, at, n);
}

float* Blocks::set_floats(int value) {
  std::byte* room = buffer(value);
  values_[value] = room;
  return reinterpret_cast<float*>(room);
}

void Blocks::repeat_first(int value, Scalar type) {
  repeat(buffer(value), buffer(value), inside_block(type), block_elements);
}

void Blocks::load(size_t i, int64_t at, int64_t n) {
  const BlockOperand& operand = program_.operands[i];
  if (operand.strides.empty()) return;
  const auto* from = static_cast<const std::byte*>(operands_[i]);
  const bool is_dense = is_dense_at(operand);
  if (is_dense && operand.type == inside_block(operand.type)) {
    values_[i] = from + at * bytes_of(operand.type);
    return;
  }
  std::byte* to = buffer(static_cast<int>(i));
  values_[i] = to;
  if (is_dense)
    cast_elements(to, Scalar::F32, from + at * bytes_of(operand.type), operand.type, n);
  else
    gather(operand, from, to, at, n);
}

bool Blocks::is_dense_at(const BlockOperand& operand) const {
  int64_t stride = 1;
  for (size_t d = program_.sizes.size(); d-- > 0; stride *= program_.sizes[d])
    if (operand.strides[d] != stride) return false;
  return true;
}

// Elements of a broadcast operand, run by run along the last dimension.
void Blocks::gather(const BlockOperand& operand, const std::byte* from, std::byte* to, int64_t at, int64_t n) {
  const size_t last = program_.sizes.size() - 1;
  const Scalar type = inside_block(operand.type);
  for (int64_t done = 0; done < n;) {
    int64_t rest = at + done, offset = 0;
    const int64_t column = rest % program_.sizes[last];
    for (size_t d = last + 1; d-- > 0; rest /= program_.sizes[d])
      offset += rest % program_.sizes[d] * operand.strides[d];
    const int64_t count = std::min(n - done, program_.sizes[last] - column);
    const bool walks = operand.strides[last] != 0;
    std::byte* run = to + done * bytes_of(type);
    cast_elements(run, type, from + offset * bytes_of(operand.type), operand.type, walks ? count : 1);
    if (!walks) repeat(run, run, type, count);
    done += count;
  }
}

void Blocks::run(const BlockStep& step, int64_t at, int64_t n) {
  std::byte* y = buffer(step.result);
  values_[static_cast<size_t>(step.result)] = y;
  const void* x[3] = {};
  for (size_t i = 0; i < std::min<size_t>(3, step.operands.size()); ++i)
    x[i] = values_[static_cast<size_t>(step.operands[i])];
  switch (step.kind) {
    case BlockStep::Kind::Range: step.range(y, x, n, step.a, step.b); break;
    case BlockStep::Kind::Cast: cast_elements(y, inside_block(step.type), x[0], inside_block(step.from_type), n); break;
    case BlockStep::Kind::Dropout:
      drop(step, reinterpret_cast<float*>(y), static_cast<const float*>(x[0]), at, n);
      break;
    case BlockStep::Kind::Constant: fill_constant(step, y, n); break;
    case BlockStep::Kind::Reduction: break;
  }
  if (inside_block(step.type) != step.type) round_floats(step.type, reinterpret_cast<float*>(y), n);
}

void Blocks::drop(const BlockStep& step, float* y, const float* x, int64_t at, int64_t n) {
  const auto* counter = static_cast<const int64_t*>(operands_[step.operands[1]]);
  ElementDropout of_block = step.dropout;
  of_block.first_draw = first_draw_ + at;
  dropout({static_cast<uint64_t>(counter[0]), static_cast<uint32_t>(counter[1]), step.id}, of_block, y, x, n);
}

void Blocks::fill_constant(const BlockStep& step, std::byte* y, int64_t n) {
  if (inside_block(step.type) == Scalar::F32)
    std::fill_n(reinterpret_cast<float*>(y), n, step.number);
  else
    repeat(y, &step.integer, step.type, n);
}

void Blocks::store(size_t i, int64_t at, int64_t n) {
  const Scalar type = program_.result_types[i];
  const void* from = values_[static_cast<size_t>(program_.results[i])];
  std::byte* to = static_cast<std::byte*>(results_[i]) + at * bytes_of(type);
  if (inside_block(type) == type)
    std::memcpy(to, from, static_cast<size_t>(n * bytes_of(type)));
  else
    cast_elements(to, type, from, Scalar::F32, n);
}

void run_blocks(const BlockProgram& program, int64_t first_draw, const void* const* operands, void* const* results) {
  int64_t n = 1;
  for (int64_t size : program.sizes) n *= size;
  parallel_ranges(n, 4 * static_cast<int64_t>(program.steps.size()), [&](int64_t begin, int64_t end) {
    Blocks blocks(program, first_draw, operands, results);
    for (int64_t at = begin; at < end; at += block_elements) {
      const int64_t count = std::min(block_elements, end - at);
      blocks.load_all(at, count);
      for (const BlockStep& step : program.steps) blocks.run(step, at, count);
      for (size_t i = 0; i < program.results.size(); ++i) blocks.store(i, at, count);
    }
  });
}

}  // namespace plimsoll::cpu
