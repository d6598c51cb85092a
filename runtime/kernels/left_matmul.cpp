#include "runtime/kernels/left_matmul.h"

#include "runtime/kernels/matmul.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

constexpr int64_t most = INT32_MAX / 2;  // of what kernels count

llvm::ArrayRef<int64_t> batch_of(const Type& type) { return llvm::ArrayRef<int64_t>(type.shape).drop_back(2); }

double bytes_us(int64_t bytes, const DeviceDescription& device) {
  return static_cast<double>(bytes) / (device.memory_gb_per_s * 1e3);
}

}  // namespace

std::optional<cuda::LeftProductTiles> left_product_of(const OpCall& call, llvm::ArrayRef<Type> results) {
  const Type &a = call["a"], &b = call["b"], &y = results[0];
  if (!is_16_bit_float(a.dtype) || b.dtype != a.dtype || y.dtype != a.dtype || call.get_int("transpose_b") != 0)
    return std::nullopt;
  const int64_t columns = b.shape.back(), depth = b.shape[b.rank() - 2], rows = y.shape[y.rank() - 2];
  if (b.rank() < 3 || batch_of(b) != batch_of(y) || element_count(batch_of(a)) != 1 || y.elements() == 0 ||
      b.elements() == 0 || columns % product_alignment != 0 || std::max(rows, depth) > cuda::LeftProductTiles::max_size)
    return std::nullopt;
  const int64_t batch = element_count(batch_of(b));
  if (batch > most || columns > most || batch * columns > most) return std::nullopt;
  const cuda::LeftProductTiles tiles = cuda::choose_left_product_tiles(batch, rows, depth, columns);
  return tiles.tile_rows > 0 ? std::optional(tiles) : std::nullopt;
}

bool accepts_left_product(const OpCall& call, llvm::ArrayRef<Type> results) {
  return left_product_of(call, results).has_value();
}

// Fitted on an H200: x and y on their way, and the rows of w that each block loads first.
double left_product_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double rate = 0.817, begin_us = 1.5, kept_bytes_per_us = 32e3;
  if (device.memory_gb_per_s <= 0) return 0;
  const Types results = llvm::cantFail(infer(call));
  const auto kept_bytes = static_cast<double>(left_product_of(call, results)->matrix_bytes());
  return bytes_us(call["b"].bytes() + results[0].bytes(), device) / rate + begin_us + kept_bytes / kept_bytes_per_us +
         device.launch_us;
}

cuda::LeftGradientTiles left_gradient_tiles(const OpCall& call, int64_t multiprocessors, int64_t max_bytes) {
  const Type &a = call["a"], &b = call["b"];
  return cuda::choose_left_gradient_tiles(element_count(batch_of(a)), a.shape[a.rank() - 2], b.shape[b.rank() - 2],
                                          a.shape.back(), std::max<int64_t>(multiprocessors, 1),
                                          max_bytes / static_cast<int64_t>(sizeof(float)));
}

// Every tile has parts of its own, which are too many for large results.
bool accepts_left_gradient(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr int64_t most_tiles = 1024;
  const Type &a = call["a"], &y = results[0];
  const auto is_result = [&](const Type& type) { return type.dtype == DType::F32 || type.dtype == a.dtype; };
  if (!is_16_bit_float(a.dtype) || a.elements() == 0 || y.elements() == 0 || a.shape.back() % product_alignment != 0 ||
      !llvm::all_of(results, is_result))
    return false;
  const cuda::LeftGradientTiles tiles = left_gradient_tiles(call, 1, INT64_MAX);
  return a.elements() / a.shape[a.rank() - 2] <= most && a.shape.back() <= most && tiles.tiles() <= most_tiles &&
         tiles.steps() <= most;
}

int64_t left_gradient_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription& device) {
  return left_gradient_tiles(call, device.multiprocessors, INT64_MAX).workspace() * static_cast<int64_t>(sizeof(float));
}

// Fitted on an H200: loads, and what a wave of blocks begins with and leaves to be added.
double left_gradient_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double rate = 0.84, wave_us = 5.1;
  if (device.memory_gb_per_s <= 0) return 0;
  const cuda::LeftGradientTiles t = left_gradient_tiles(call, device.multiprocessors, INT64_MAX);
  const double flops =
      2.0 * static_cast<double>(t.tiles() * t.tile_rows * t.tile_depth) * static_cast<double>(t.steps() * t.step);
  const auto waves = static_cast<double>(divide_up(t.blocks(), std::max(device.multiprocessors, 1)));
  return std::max(bytes_us(call["a"].bytes() + call["b"].bytes(), device) / rate,
                  device.roofline_us(flops, 0, call["a"].dtype)) +
         waves * wave_us + 2 * device.launch_us;
}

}  // namespace plimsoll
