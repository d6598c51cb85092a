#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/windows.h"

// Imports operators whose image positions are data: grid sampling, affine grids, and the sum of overlapping blocks.

namespace plimsoll {
namespace {

ValueId binary(NodeContext& n, llvm::StringRef op, ValueId x, double y) {
  return n.emit(op, {x, n.scalar(y, n.type(x).dtype)});
}

ValueId clipped(NodeContext& n, ValueId x, double low, double high) {
  return n.emit("clip", {x}, {{"min", low}, {"max", high}});
}

// An image as [N, C, H*W], and how positions outside it are treated.
struct Image {
  ValueId x;
  int64_t batch, channels, height, width;
  bool align_corners;
  std::string padding;
};

// Reflects positions at both ends of [low, high].
ValueId reflected(NodeContext& n, ValueId at, double low, double high) {
  double span = std::max(high - low, 1e-6);
  ValueId distance = n.emit("abs", {binary(n, "sub", at, low)});
  ValueId folded = n.emit("mod", {distance, n.scalar(2 * span, n.type(at).dtype)}, {{"fmod", 1}});
  ValueId back = n.emit("abs", {binary(n, "sub", folded, span)});
  return n.emit("sub", {n.scalar(span + low, n.type(at).dtype), back});
}

// Maps [-1, 1] to element positions in a dimension of `size`. They stay inside it unless the padding is zeros.
ValueId pixel_position(NodeContext& n, const Image& image, ValueId normalised, int64_t size) {
  auto last = static_cast<double>(size - 1), all = static_cast<double>(size);
  ValueId at = binary(n, "mul", binary(n, "add", normalised, 1), (image.align_corners ? last : all) / 2);
  if (!image.align_corners) at = binary(n, "sub", at, 0.5);
  if (image.padding == "reflection")
    at = image.align_corners ? reflected(n, at, 0, last) : reflected(n, at, -0.5, last + 0.5);
  return image.padding == "zeros" ? at : clipped(n, at, 0, last);
}

// Returns the elements at integer positions [N, 1, P], and zeros outside the image.
ValueId pixels_at(NodeContext& n, const Image& image, ValueId row, ValueId column) {
  auto bottom = static_cast<double>(image.height - 1), right = static_cast<double>(image.width - 1);
  ValueId r = clipped(n, row, 0, bottom), c = clipped(n, column, 0, right);
  ValueId flat = n.emit("add", {binary(n, "mul", r, static_cast<double>(image.width)), c});
  int64_t points = n.dim(flat, 2);
  ValueId index = n.expand(n.cast(flat, DType::I64), {image.batch, image.channels, points});
  ValueId values = n.emit("gather_elements", {image.x, index}, {{"axis", 2}});
  if (image.padding != "zeros") return values;
  ValueId inside = n.emit("and", {n.emit("equal", {r, row}), n.emit("equal", {c, column})});
  return n.emit("where", {inside, values, n.scalar(0, n.type(values).dtype)});
}

ValueId bilinear(NodeContext& n, const Image& image, ValueId row, ValueId column) {
  ValueId top = n.emit("floor", {row}), left = n.emit("floor", {column});
  ValueId down = n.emit("sub", {row, top}), right = n.emit("sub", {column, left});
  auto rest = [&](ValueId share) { return n.emit("sub", {n.scalar(1, n.type(share).dtype), share}); };
  auto mix = [&](ValueId a, ValueId b, ValueId share) {
    return n.emit("add", {n.emit("mul", {a, rest(share)}), n.emit("mul", {b, share})});
  };
  auto line = [&](ValueId r) {
    return mix(pixels_at(n, image, r, left), pixels_at(n, image, r, binary(n, "add", left, 1)), right);
  };
  return mix(line(top), line(binary(n, "add", top, 1)), down);
}

void import_grid_sample(NodeContext& n) {
  ValueId x = n.input(0), grid = n.input(1);
  std::string mode = n.attr_string("mode", "linear");
  if (n.rank(x) != 4 || n.rank(grid) != 4 || n.dim(grid, 3) != 2)
    n.fail("needs an image [N, C, H, W] and a grid [N, H, W, 2], got " + to_string(n.type(x)) + " and " +
           to_string(n.type(grid)));
  if (mode != "linear" && mode != "bilinear" && mode != "nearest") n.fail("mode " + mode + " is not supported");
  if (n.failed()) return;
  const Shape s = n.shape(x), g = n.shape(grid);
  Image image{n.reshape(x, {s[0], s[1], s[2] * s[3]}), s[0], s[1], s[2], s[3], n.attr_int("align_corners", 0) != 0,
              n.attr_string("padding_mode", "zeros")};
  auto coordinate = [&](int64_t which) { return n.reshape(n.slice(grid, 3, which, 1), {g[0], 1, g[1] * g[2]}); };
  ValueId column = pixel_position(n, image, coordinate(0), image.width);
  ValueId row = pixel_position(n, image, coordinate(1), image.height);
  ValueId y = mode == "nearest" ? pixels_at(n, image, n.emit("round", {row}), n.emit("round", {column}))
                                : bilinear(n, image, row, column);
  n.output(0, n.reshape(y, {s[0], s[1], g[1], g[2]}));
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
