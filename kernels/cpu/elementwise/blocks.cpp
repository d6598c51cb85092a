#include "kernels/cpu/elementwise/blocks.h"

#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/philox.h"
#include "kernels/cpu/elementwise/cast.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace plimsoll::cpu {
namespace {

constexpr int64_t block_elements = 1024;
constexpr int64_t buffer_bytes = block_elements * static_cast<int64_t>(sizeof(int64_t));

// How a block holds elements of a type.
Scalar inside(Scalar type) { return type == Scalar::BF16 || type == Scalar::F16 ? Scalar::F32 : type; }

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

// One thread's blocks of all values.
class Blocks {
 public:
  Blocks(const BlockProgram& program, int64_t first_draw_block, const void* const* operands, void* const* results)
      : program_(program), first_draw_block_(first_draw_block), operands_(operands), results_(results) {}

  void run(int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += block_elements) {
      const int64_t n = std::min(block_elements, end - at);
      for (size_t i = 0; i < program_.operands.size(); ++i) load(i, at, n);
      for (const BlockStep& step : program_.steps) run(step, at, n);
      for (size_t i = 0; i < program_.results.size(); ++i) store(i, at, n);
    }
  }

 private:
  std::byte* buffer(int value) { return memory_ + program_.buffers[static_cast<size_t>(value)] * buffer_bytes; }

  void load(size_t i, int64_t at, int64_t n) {
    const BlockOperand& operand = program_.operands[i];
    if (operand.strides.empty()) return;
    const auto* from = static_cast<const std::byte*>(operands_[i]);
    const bool is_dense = is_dense_at(operand);
    if (is_dense && operand.type == inside(operand.type)) {
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

  bool is_dense_at(const BlockOperand& operand) const {
    int64_t stride = 1;
    for (size_t d = program_.sizes.size(); d-- > 0; stride *= program_.sizes[d])
      if (operand.strides[d] != stride) return false;
    return true;
  }

  // Elements of a broadcast operand, run by run along the last dimension.
  void gather(const BlockOperand& operand, const std::byte* from, std::byte* to, int64_t at, int64_t n) {
    const size_t last = program_.sizes.size() - 1;
    const Scalar type = inside(operand.type);
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

  void run(const BlockStep& step, int64_t at, int64_t n) {
    std::byte* y = buffer(step.result);
    values_[static_cast<size_t>(step.result)] = y;
    const void* x[3] = {};
    for (size_t i = 0; i < std::min<size_t>(3, step.operands.size()); ++i)
      x[i] = values_[static_cast<size_t>(step.operands[i])];
    switch (step.kind) {
      case BlockStep::Kind::Range: step.range(y, x, n, step.a, step.b); break;
      case BlockStep::Kind::Cast: cast_elements(y, inside(step.type), x[0], inside(step.from_type), n); break;
      case BlockStep::Kind::Dropout:
        drop(step, reinterpret_cast<float*>(y), static_cast<const float*>(x[0]), at, n);
        break;
      case BlockStep::Kind::Constant: fill_constant(step, y, n); break;
    }
    if (inside(step.type) != step.type) round_floats(step.type, reinterpret_cast<float*>(y), n);
  }

  void drop(const BlockStep& step, float* y, const float* x, int64_t at, int64_t n) {
    const auto* counter = static_cast<const int64_t*>(operands_[step.operands[1]]);
    const RandomStream stream{static_cast<uint64_t>(counter[0]), static_cast<uint32_t>(counter[1]), step.id,
                              first_draw_block_ + at / 4};
    dropout(stream, step.ratio, y, x, n);
  }

  void fill_constant(const BlockStep& step, std::byte* y, int64_t n) {
    if (inside(step.type) == Scalar::F32)
      std::fill_n(reinterpret_cast<float*>(y), n, step.number);
    else
      repeat(y, &step.integer, step.type, n);
  }

  void store(size_t i, int64_t at, int64_t n) {
    const Scalar type = program_.result_types[i];
    const void* from = values_[static_cast<size_t>(program_.results[i])];
    std::byte* to = static_cast<std::byte*>(results_[i]) + at * bytes_of(type);
    if (inside(type) == type)
      std::memcpy(to, from, static_cast<size_t>(n * bytes_of(type)));
    else
      cast_elements(to, type, from, Scalar::F32, n);
  }

  const BlockProgram& program_;
  int64_t first_draw_block_;
  const void* const* operands_;
  void* const* results_;
  const void* values_[128] = {};
  alignas(64) std::byte memory_[max_block_buffers * buffer_bytes];
};

}  // namespace

void run_blocks(const BlockProgram& program, int64_t first_draw_block, const void* const* operands,
                void* const* results) {
  int64_t n = 1;
  for (int64_t size : program.sizes) n *= size;
  parallel_ranges(n, 4 * static_cast<int64_t>(program.steps.size()), [&](int64_t begin, int64_t end) {
    Blocks(program, first_draw_block, operands, results).run(begin, end);
  });
}

}  // namespace plimsoll::cpu
