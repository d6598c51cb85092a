#include "ir/ops/pool/pool.h"

// Shapes of pools. A window may stick out into the padding but not lie in it whole, so
// that it has something to choose or average.

namespace plimsoll {

Result<Shape> pooled_shape(const Attrs& attrs, llvm::ArrayRef<int64_t> x_shape) {
  if (x_shape.size() < 3 || x_shape.size() > 5)
    return model_error("the input " + to_string(x_shape) + " must have rank 3 to 5");
  const Shape x = channels_first(attrs, x_shape);
  llvm::ArrayRef<int64_t> kernel = attrs.get_ints("kernel");
  if (kernel.size() != x.size() - 2)
    return model_error("kernel has " + llvm::Twine(kernel.size()) + " entries, the input has " +
                       llvm::Twine(x.size() - 2) + " spatial dimensions");
  Result<SlidingWindow> window = read_window(attrs, kernel);
  if (!window) return window.takeError();
  for (size_t d = 0; d < window->rank; ++d)
    if (window->pads_begin[d] >= window->span(d) || window->pads_end[d] >= window->span(d))
      return model_error("pads " + to_string(attrs.get_ints("pads")) + " hold a whole window of span " +
                         llvm::Twine(window->span(d)));
  Result<Shape> positions =
      window_positions(*window, spatial_of(x), attrs.get_int("ceil_mode") ? Rounding::Up : Rounding::Down);
  if (!positions) return positions.takeError();
  Shape shape{x[0], x[1]};
  shape.append(positions->begin(), positions->end());
  return in_layout(attrs, shape);
}

namespace {

double window_elements(const OpCall& call, const Type& positions) {
  return static_cast<double>(positions.elements()) * static_cast<double>(element_count(call.get_ints("kernel")));
}

}  // namespace

double pool_flops(const OpCall& call, llvm::ArrayRef<Type> results) { return window_elements(call, results[0]); }

double pool_grad_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  return window_elements(call, call.operand(call.count() - 1));
}

}  // namespace plimsoll
