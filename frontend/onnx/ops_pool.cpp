#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/windows.h"

// Imports local and global pools.

namespace plimsoll {
namespace {

struct Pool {
  ValueId x;
  NodeWindow window;
  Attrs attrs;
};

Pool read_pool(NodeContext& n) {
  Pool pool{n.input(0), {}, {}};
  if (n.rank(pool.x) < 3) n.fail("needs [N, C, spatial...], got " + to_string(n.type(pool.x)));
  if (n.failed()) return pool;
  pool.window = read_window(n, n.dims_from(pool.x, 2), n.attr_ints("kernel_shape"), WindowFor::Input);
  pool.attrs = pool.window.attrs();
  pool.attrs.set("kernel", pool.window.kernel);
  pool.attrs.set("ceil_mode", n.attr_int("ceil_mode", 0));
  return pool;
}

void import_max_pool(NodeContext& n) {
  Pool pool = read_pool(n);
  if (!n.wants(1)) return n.output(0, n.emit("max_pool", {pool.x}, pool.attrs));
  pool.attrs.set("storage_order", n.attr_int("storage_order", 0));
  ValueList results = n.emit_all("max_pool_with_indices", {pool.x}, pool.attrs);
  n.output(0, results[0]);
  n.output(1, results[1]);
}

void import_average_pool(NodeContext& n) {
  Pool pool = read_pool(n);
  pool.attrs.set("count_include_pad", n.attr_int("count_include_pad", 0));
  n.output(0, n.emit("average_pool", {pool.x}, pool.attrs));
}

// (sum |x|^p)^(1/p) is computed from the average, padding included, times the window's size.
void import_lp_pool(NodeContext& n) {
  Pool pool = read_pool(n);
  DType dtype = n.type(pool.x).dtype;
  double p = static_cast<double>(n.attr_int("p", 2));
  pool.attrs.set("count_include_pad", 1);
  ValueId powers = n.emit("pow", {n.emit("abs", {pool.x}), n.scalar(p, dtype)});
  ValueId mean = n.emit("average_pool", {powers}, pool.attrs);
  ValueId sum = n.emit("mul", {mean, n.scalar(static_cast<double>(element_count(pool.window.kernel)), dtype)});
  n.output(0, n.emit("pow", {sum, n.scalar(1 / p, dtype)}));
}

void import_global_pool(NodeContext& n) {
  ValueId x = n.input(0);
  n.output(0, n.reduce(n.target(), x, n.all_axes(x, 2), true));
}

void import_global_lp_pool(NodeContext& n) {
  ValueId x = n.input(0);
  DType dtype = n.type(x).dtype;
  double p = static_cast<double>(n.attr_int("p", 2));
  ValueId powers = n.emit("pow", {n.emit("abs", {x}), n.scalar(p, dtype)});
  ValueId sum = n.reduce("reduce_sum", powers, n.all_axes(x, 2), true);
  n.output(0, n.emit("pow", {sum, n.scalar(1 / p, dtype)}));
}

// Puts each value where MaxPool found it, and zeros elsewhere. Indices refer to the tensor of the default size; if the
// node asks for a larger shape, the result is padded at the ends.
void import_max_unpool(NodeContext& n) {
  ValueId x = n.input(0), indices = n.input(1);
  if (n.rank(x) < 3) return n.fail("needs [N, C, spatial...], got " + to_string(n.type(x)));
  NodeWindow window = read_window(n, n.dims_from(x, 2), n.attr_ints("kernel_shape"), WindowFor::Input);
  if (n.failed()) return;
  Shape shape = n.shape(x);
  for (size_t d = 0; d < window.rank(); ++d)
    shape[d + 2] =
        (shape[d + 2] - 1) * window.strides[d] + window.kernel[d] - window.pads[d] - window.pads[d + window.rank()];
  Ints wanted = n.has(2) ? n.known_ints(2, "output shape") : Ints(shape.begin(), shape.end());
  if (wanted.size() != shape.size())
    return n.fail("its output shape has " + llvm::Twine(wanted.size()) + " dimensions");
  int64_t count = n.type(x).elements();
  ValueId zeros = n.expand(n.scalar(0, n.type(x).dtype), {element_count(shape)});
  ValueId placed = n.emit("scatter_elements", {zeros, n.reshape(indices, {count}), n.reshape(x, {count})},
                          {{"axis", 0}, {"reduction", "none"}});
  ValueId y = n.reshape(placed, shape);
  Ints after;
  for (size_t axis = 0; axis < shape.size(); ++axis) after.push_back(wanted[axis] - shape[axis]);
  if (llvm::any_of(after, [](int64_t extra) { return extra != 0; }))
    y = n.emit("pad", {y}, {{"before", Ints(shape.size(), 0)}, {"after", after}, {"mode", "constant"}});
  n.output(0, y);
}

constexpr ImportRow pool_table[] = {
    {"AveragePool", 1, import_average_pool},
    {"GlobalAveragePool", 1, import_global_pool, "reduce_mean"},
    {"GlobalLpPool", 2, import_global_lp_pool},
    {"GlobalMaxPool", 1, import_global_pool, "reduce_max"},
    {"LpPool", 2, import_lp_pool},
    {"MaxPool", 1, import_max_pool},
    {"MaxUnpool", 9, import_max_unpool},
};

}  // namespace

llvm::ArrayRef<ImportRow> pool_rows() { return pool_table; }

}  // namespace plimsoll
