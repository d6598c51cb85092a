#include "passes/clean/attention_slopes.h"

#include "passes/clean/attention_mask.h"

#include <cmath>

// Exporters fold slopes and positions into a constant: for each head a row of columns, as BLOOM and MPT add them beside
// a causal mask, or a number for each row and column.

namespace plimsoll {
namespace {

// The numbers of one head.
struct HeadReader {
  TensorView view;
  int64_t first, mask_rows, rows, columns;
  Slopes& slopes;

  double at(int64_t row, int64_t column) const {
    return view.get(first + (mask_rows == 1 ? 0 : row * columns) + column);
  }
  // Numbers of models are products rounded to f32.
  bool is(double value, double expected, double slope) const {
    return std::abs(value - expected) <= 1e-6 * (std::abs(expected) + std::abs(slope) * static_cast<double>(columns));
  }

  bool read_columns() const {
    const double slope = at(0, 1) - at(0, 0);
    for (int64_t c = 0; c < columns; ++c)
      if (!is(at(0, c), at(0, 0) + slope * static_cast<double>(c), slope)) return false;
    slopes.of_heads.push_back(slope);
    slopes.is_linear = slopes.shifts_rows = true;
    return true;
  }

  bool read_rows(bool& all_closed, bool& all_mirrored, bool& all_linear) const {
    const double slope = at(rows - 1, columns - 1) - at(rows - 1, columns - 2);
    for (int64_t r = 0; r < rows; ++r) {
      const double own = at(r, r);
      if (!std::isfinite(own)) return false;
      slopes.shifts_rows |= !is(own, 0, slope);
      for (int64_t c = 0; c < columns; ++c) {
        const double ahead = slope * static_cast<double>(c - r), value = at(r, c);
        if (c <= r && !is(value, own + ahead, slope)) return false;
        if (c <= r) continue;
        all_closed &= value <= closed_from;
        all_mirrored &= is(value, own - ahead, slope);
        all_linear &= is(value, own + ahead, slope);
      }
      if (!all_closed && !all_mirrored && !all_linear) return false;
    }
    slopes.of_heads.push_back(slope);
    return true;
  }
};

bool are_samples_alike(const TensorView& view, int64_t samples, int64_t elements) {
  for (int64_t i = elements; i < samples * elements; ++i)
    if (view.get(i) != view.get(i % elements)) return false;
  return true;
}

}  // namespace

std::optional<Slopes> slopes_of(const Graph& graph, ValueId mask, int64_t heads, int64_t rows, int64_t columns) {
  while (const Node* expand = producer_of(graph, mask, "expand")) mask = expand->operands[0];
  const Tensor* tensor = constant_behind(graph, mask);
  const Type& type = graph.type(mask);
  if (!tensor || !is_float(type.dtype) || type.rank() < 3 || tensor->type().elements() != type.elements())
    return std::nullopt;
  const llvm::ArrayRef<int64_t> dims(type.shape), last = dims.take_back(3);
  if (last[0] != heads || last[2] != columns || columns < 2) return std::nullopt;
  if (last[1] != 1 && (last[1] != rows || rows != columns)) return std::nullopt;
  const int64_t of_head = last[1] * columns;
  const TensorView view = tensor->view();
  Slopes slopes;
  bool all_closed = true, all_mirrored = true, all_linear = true;
  for (int64_t h = 0; h < heads; ++h) {
    const HeadReader head{view, h * of_head, last[1], rows, columns, slopes};
    if (last[1] == 1 && rows != 1 ? !head.read_columns() : !head.read_rows(all_closed, all_mirrored, all_linear))
      return std::nullopt;
  }
  if (!are_samples_alike(view, type.elements() / (heads * of_head), heads * of_head)) return std::nullopt;
  if (llvm::all_of(slopes.of_heads, [](double slope) { return slope == 0; })) return std::nullopt;
  if (slopes.is_linear) return slopes;
  slopes.closes_columns_ahead = all_closed;
  slopes.is_linear = !all_closed && !all_mirrored;
  return slopes;
}

}  // namespace plimsoll
