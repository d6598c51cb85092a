#include "ir/f8_scales.h"

#include "ir/support/align.h"

#include <algorithm>

namespace plimsoll {

llvm::StringRef f8_scales_name(F8Scales scales) { return f8_scales_names[static_cast<size_t>(scales)]; }

std::optional<F8Scales> parse_f8_scales(llvm::StringRef name) {
  for (size_t i = 0; i < std::size(f8_scales_names); ++i)
    if (f8_scales_names[i] == name) return static_cast<F8Scales>(i);
  return std::nullopt;
}

// cuBLASLt wants rows of tiles to begin at multiples of 16 bytes.
static int64_t tiles_in_row(int64_t columns) { return align_up(columns / f8_block, 4); }

F8Grid f8_grid(F8Scales scales, int64_t rows, int64_t columns) {
  const int64_t all_rows = std::max<int64_t>(rows, 1), all_columns = std::max<int64_t>(columns, 1);
  switch (scales) {
    case F8Scales::Tensor: break;
    case F8Scales::Rows: return {1, all_columns, 1, 0};
    case F8Scales::Blocks: return {1, f8_block, 1, rows};
    case F8Scales::Tiles: return {f8_block, f8_block, tiles_in_row(columns), 1};
  }
  return {all_rows, all_columns, 0, 0};
}

Shape f8_scales_shape(F8Scales scales, int64_t rows, int64_t columns) {
  switch (scales) {
    case F8Scales::Tensor: break;
    case F8Scales::Rows: return {rows};
    case F8Scales::Blocks: return {columns / f8_block, rows};
    case F8Scales::Tiles: return {rows / f8_block, tiles_in_row(columns)};
  }
  return {};
}

std::optional<F8Scales> f8_scales_of(const Type& scales, int64_t rows, int64_t columns) {
  if (scales.dtype != DType::F32) return std::nullopt;
  if (scales.elements() == 1 && scales.rank() <= 1) return F8Scales::Tensor;
  if (scales.shape == Shape{rows}) return F8Scales::Rows;
  if (columns % f8_block != 0) return std::nullopt;
  if (scales.shape == f8_scales_shape(F8Scales::Blocks, rows, columns)) return F8Scales::Blocks;
  if (rows % f8_block == 0 && scales.shape == f8_scales_shape(F8Scales::Tiles, rows, columns)) return F8Scales::Tiles;
  return std::nullopt;
}

}  // namespace plimsoll
