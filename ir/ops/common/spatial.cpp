#include "ir/ops/common/spatial.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Reads a list of `rank` entries, each at least `low`, into `to`; an absent list leaves the default.
Status read_list(const Attrs& attrs, llvm::StringRef name, size_t rank, int64_t low, Spatial& to, size_t first = 0,
                 size_t length = 0) {
  llvm::ArrayRef<int64_t> list = attrs.get_ints(name);
  if (!attrs.has(name)) return Status::success();
  if (list.size() != std::max(length, rank))
    return model_error(name + " has " + llvm::Twine(list.size()) + " entries, expected " +
                       llvm::Twine(std::max(length, rank)));
  for (size_t d = 0; d < rank; ++d) {
    to[d] = list[first + d];
    if (to[d] < low) return model_error(name + " has the entry " + llvm::Twine(to[d]) + ", below " + llvm::Twine(low));
  }
  return Status::success();
}

}  // namespace

Spatial to_spatial(llvm::ArrayRef<int64_t> dims) {
  Spatial spatial{1, 1, 1};
  std::copy(dims.begin(), dims.end(), spatial.begin());
  return spatial;
}

Result<SlidingWindow> read_window(const Attrs& attrs, llvm::ArrayRef<int64_t> kernel) {
  SlidingWindow window;
  size_t rank = window.rank = kernel.size();
  if (rank < 1 || rank > 3) return model_error("windows have 1 to 3 spatial dimensions, got " + llvm::Twine(rank));
  window.kernel = to_spatial(kernel);
  for (int64_t extent : kernel)
    if (extent < 1) return model_error("kernel " + to_string(kernel) + " is empty");
  if (Status s = read_list(attrs, "strides", rank, 1, window.strides)) return s;
  if (Status s = read_list(attrs, "dilations", rank, 1, window.dilations)) return s;
  if (Status s = read_list(attrs, "pads", rank, 0, window.pads_begin, 0, 2 * rank)) return s;
  if (Status s = read_list(attrs, "pads", rank, 0, window.pads_end, rank, 2 * rank)) return s;
  return window;
}

Result<Shape> window_positions(const SlidingWindow& window, llvm::ArrayRef<int64_t> input, Rounding rounding) {
  Shape counts;
  for (size_t d = 0; d < window.rank; ++d) {
    int64_t padded = window.pads_begin[d] + input[d] + window.pads_end[d], stride = window.strides[d];
    int64_t room = padded - window.span(d);
    if (room < 0)
      return model_error("the window spans " + llvm::Twine(window.span(d)) + " in spatial dimension " + llvm::Twine(d) +
                         ", the padded input has " + llvm::Twine(padded));
    int64_t count = room / stride + 1;
    bool sticks_out = rounding == Rounding::Up && room % stride != 0;
    if (sticks_out && count * stride < window.pads_begin[d] + input[d]) ++count;
    counts.push_back(count);
  }
  return counts;
}

Taps::Taps(const SlidingWindow& window, llvm::ArrayRef<int64_t> input, llvm::ArrayRef<int64_t> output)
    : input_(to_spatial(input)), kernel_(window.kernel), output_(to_spatial(output)) {
  for (size_t d = 0; d < 3; ++d)
    for (int64_t position = 0; position < output_[d]; ++position)
      for (int64_t k = 0; k < kernel_[d]; ++k) {
        int64_t at = position * window.strides[d] - window.pads_begin[d] + k * window.dilations[d];
        if (at >= 0 && at < input_[d]) along_[d].push_back({at, k, position});
      }
}

Result<Shape> convolved_shape(const Attrs& attrs, llvm::ArrayRef<int64_t> x_shape, llvm::ArrayRef<int64_t> w_shape) {
  if (x_shape.size() < 3 || x_shape.size() > 5 || w_shape.size() != x_shape.size())
    return model_error("input " + to_string(x_shape) + " and weight " + to_string(w_shape) +
                       " must have equal rank, 3 to 5");
  const Shape x = channels_first(attrs, x_shape), w = channels_first(attrs, w_shape);
  int64_t groups = attrs.get_int("groups", 1);
  if (groups < 1 || w[0] % groups != 0)
    return model_error(llvm::Twine(w[0]) + " output channels do not divide into " + llvm::Twine(groups) + " groups");
  if (w[1] * groups != x[1])
    return model_error("the weight reads " + llvm::Twine(w[1]) + " channels in each of " + llvm::Twine(groups) +
                       " groups, the input has " + llvm::Twine(x[1]));
  Result<SlidingWindow> window = read_window(attrs, spatial_of(w));
  if (!window) return window.takeError();
  Result<Shape> positions = window_positions(*window, spatial_of(x), Rounding::Down);
  if (!positions) return positions.takeError();
  Shape shape{x[0], w[0]};
  shape.append(positions->begin(), positions->end());
  return in_layout(attrs, shape);
}

}  // namespace plimsoll
