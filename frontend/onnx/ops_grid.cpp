#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/windows.h"

// Imports operators whose image positions are data: grid sampling, affine grids, and the sum of overlapping blocks.

namespace plimsoll {
namespace {

void import_grid_sample(NodeContext& n) {
  ValueId x = n.input(0), grid = n.input(1);
  std::string mode = n.attr_string("mode", "linear");
  if (n.rank(x) != 4 || n.rank(grid) != 4 || n.dim(grid, 3) != 2)
    n.fail("needs an image [N, C, H, W] and a grid [N, H, W, 2], got " + to_string(n.type(x)) + " and " +
           to_string(n.type(grid)));
  if (mode != "linear" && mode != "bilinear" && mode != "nearest") n.fail("mode " + mode + " is not supported");
  if (n.failed()) return;
  ValueId image = n.transpose(x, {0, 2, 3, 1});
  ValueId y = n.emit("grid_sample", {image, grid},
                     {{"mode", mode == "nearest" ? "nearest" : "linear"},
                      {"padding", n.attr_string("padding_mode", "zeros")},
                      {"align_corners", int64_t{n.attr_int("align_corners", 0) != 0}}});
  n.output(0, n.transpose(y, {0, 3, 1, 2}));
}

// Returns the positions that an affine map theta [N, d, d+1] gives to the elements of an image of known size.
void import_affine_grid(NodeContext& n) {
  ValueId theta = n.input(0);
  Ints size = n.known_ints(1, "size");
  int64_t dims = static_cast<int64_t>(size.size()) - 2;
  if (n.failed()) return;
  if (n.rank(theta) != 3 || dims < 2 || n.dim(theta, 1) != dims || n.dim(theta, 2) != dims + 1)
    return n.fail("a map of " + to_string(n.type(theta)) + " does not fit an image of " + to_string(size));
  const auto spatial = llvm::ArrayRef<int64_t>(size).drop_front(2);
  int64_t points = element_count(spatial);
  Shape strides = row_major_strides(spatial);
  bool align = n.attr_int("align_corners", 0) != 0;
  Tensor base(Type(n.type(theta).dtype, {points, dims + 1}));
  for (int64_t p = 0; p < points; ++p) {
    for (int64_t d = 0; d < dims; ++d) {
      auto at = static_cast<double>(p / strides[d] % spatial[d]), length = static_cast<double>(spatial[d]);
      double position = align ? (length > 1 ? 2 * at / (length - 1) - 1 : 0) : (2 * at + 1) / length - 1;
      base.view().set(p * (dims + 1) + dims - 1 - d, position);  // the last dimension comes first
    }
    base.view().set(p * (dims + 1) + dims, 1);
  }
  ValueId grid = n.emit("matmul", {n.constant_value(std::move(base)), theta}, {{"transpose_a", 0}, {"transpose_b", 1}});
  Shape shape{n.dim(theta, 0)};
  shape.append(spatial.begin(), spatial.end());
  shape.push_back(dims);
  n.output(0, n.reshape(grid, shape));
}

// Adds each column of blocks [N, C*k, L] to its window of the image.
void import_col2im(NodeContext& n) {
  ValueId x = n.input(0);
  Ints image = n.known_ints(1, "image shape"), kernel = n.known_ints(2, "block shape");
  int64_t block = element_count(kernel);
  if (!n.failed() && (n.rank(x) != 3 || block < 1 || n.dim(x, 1) % block != 0))
    n.fail("cannot cut " + to_string(n.type(x)) + " into blocks of " + to_string(kernel));
  NodeWindow window = read_window(n, image, kernel, WindowFor::Transpose);
  if (n.failed()) return;
  int64_t channels = n.dim(x, 1) / block;
  Ints shape{n.dim(x, 0), channels};
  Shape patches{n.dim(x, 0), channels, block};
  for (size_t d = 0; d < window.rank(); ++d) {
    int64_t room = image[d] + window.pads[d] + window.pads[d + window.rank()] - window.span(d);
    patches.push_back(room / window.strides[d] + 1);
    shape.push_back(image[d]);
  }
  if (element_count(patches) != n.type(x).elements())
    return n.fail(llvm::Twine(n.dim(x, 2)) + " blocks do not cover an image of " + to_string(image));
  Attrs attrs = window.attrs();
  attrs.set("kernel", kernel);
  attrs.set("shape", shape);
  n.output(0, n.emit("fold", {n.reshape(x, patches)}, attrs));
}

constexpr ImportRow grid_table[] = {
    {"AffineGrid", 20, import_affine_grid},
    {"Col2Im", 18, import_col2im},
    {"GridSample", 16, import_grid_sample},
};

}  // namespace

llvm::ArrayRef<ImportRow> grid_rows() { return grid_table; }

}  // namespace plimsoll
