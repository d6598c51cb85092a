#include "ir/f8_scales.h"
#include "ir/ops/common/divide.h"
#include "ir/ops/common/reference_math.h"
#include "ir/ops/elementwise/activation.h"

// linear: what a dense layer does to the last dimension. It is kept apart from matmul because its weight
// gradient is one matmul over all rows, and because bias and addend belong into the matmul's epilogue: a residual
// connection, or the sum of other matmuls so far.

namespace plimsoll {
namespace {

constexpr AttrSpec f8_attr{"f8", AttrKind::DType, AttrNeed::Optional},
    f8_scales_attr{"f8_scales", llvm::StringLiteral("tensor")};

struct Sizes {
  int64_t rows, inner, columns;
};

// The sizes of x [rows, inner] and w, which is [inner, columns] or transposed.
Sizes sizes_of(const Type& x, const Type& w, bool transpose_w) {
  return {element_count(llvm::ArrayRef<int64_t>(x.shape).drop_back()), x.shape.back(), w.shape[transpose_w ? 0 : 1]};
}

// The type of the operand times w.
Result<Type> matmul_type(const OpCall& call, PortKey left) {
  if (Status s = need_float(call, left)) return s;
  if (Status s = need_min_rank(call, left, 1)) return s;
  const Type &x = call[left], &w = call["w"];
  if (Status s = need_same_dtype(call, left, "w")) return s;
  if (Status s = need_rank(call, "w", 2)) return s;
  bool transpose_w = call.get_int("transpose_w");
  if (x.shape.back() != w.shape[transpose_w ? 1 : 0])
    return model_error("inner sizes differ: " + llvm::Twine(x.shape.back()) + " and " +
                       llvm::Twine(w.shape[transpose_w ? 1 : 0]) + " in " + to_string(x) + " x " + to_string(w));
  Shape shape = x.shape;
  shape.back() = w.shape[transpose_w ? 0 : 1];
  return Type(x.dtype, shape);
}

Status need_f8_scales(const OpCall& call) {
  const llvm::StringRef name = call.get_string("f8_scales");
  const std::optional<F8Scales> scales = parse_f8_scales(name);
  if (scales && *scales != F8Scales::Tiles) return Status::success();
  return model_error("f8_scales is '" + name + "', it must be tensor, rows or blocks");
}

Result<Types> infer_linear(const OpCall& call) {
  if (Status s = need_f8_scales(call)) return s;
  Result<Type> y = matmul_type(call, "x");
  if (!y) return y.takeError();
  if (Status s = need_type(call, "bias", Type(y->dtype, {y->shape.back()}))) return s;
  if (Status s = need_type(call, "addend", *y)) return s;
  return Types{*y};
}

// Of a product of dy. Where forward is to have 8-bit codes, dy has those of {f8_grad}.
Attrs gradient_attrs(const Attrs& forward, bool transpose_w) {
  Attrs attrs;
  if (transpose_w) attrs.set("transpose_w", 1);
  if (forward.has("f8_grad")) attrs.set("f8", forward.get_dtype("f8_grad"));
  if (forward.has("f8_scales")) attrs.set("f8_scales", forward.get_string("f8_scales").str());
  return attrs;
}

void linear_gradient(GradContext& g) {
  bool transpose_w = g.attrs().get_int("transpose_w");
  ValueId dy = g.out_grad();
  if (g.wants("x")) g.add("x", g.b.emit("linear", {dy, g["w"]}, gradient_attrs(g.attrs(), !transpose_w)));
  if (g.wants("w")) g.add("w", g.b.emit("linear_dw", {g["x"], dy}, gradient_attrs(g.attrs(), transpose_w)));
  if (g.wants("bias")) g.add("bias", g.b.sum_to_shape(dy, {g.type(dy).shape.back()}));
  if (g.wants("addend")) g.add("addend", dy);
}

double linear_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return 2.0 * static_cast<double>(results[0].elements()) * static_cast<double>(call.operand(0).shape.back());
}

// Adds x[rows, inner] times w, which is [inner, columns] or transposed, to y[rows, columns].
void add_product(std::vector<double>& y, const std::vector<double>& x, std::vector<double> w, Sizes n,
                 bool transpose_w) {
  if (transpose_w) w = transposed(w, n.columns, n.inner);
  for (int64_t r = 0; r < n.rows; ++r)
    for (int64_t k = 0; k < n.inner; ++k)
      for (int64_t c = 0; c < n.columns; ++c) y[r * n.columns + c] += x[r * n.inner + k] * w[k * n.columns + c];
}

void add_to(std::vector<double>& sums, const std::vector<double>& addend) {
  for (size_t i = 0; i < addend.size(); ++i) sums[i] += addend[i];
}

void linear_reference(const ReferenceCall& call) {
  const bool transpose_w = call.get_int("transpose_w");
  const Sizes n = sizes_of(call["x"], call["w"], transpose_w);
  const std::vector<double> bias = call.load("bias");
  std::vector<double> y(static_cast<size_t>(n.rows * n.columns));
  for (size_t i = 0; !bias.empty() && i < y.size(); ++i) y[i] = bias[i % bias.size()];
  add_product(y, call.load("x"), call.load("w"), n, transpose_w);
  add_to(y, call.load("addend"));
  call.store(y, "y");
}

std::optional<ChunkCall> linear_chunk(const OpCall& call, Chunk) {
  return call["x"].rank() < 2 ? std::nullopt : std::optional<ChunkCall>(cut_operands(call, {"x", "addend"}));
}

// Columns of w make columns of the result; of inner dimensions the results are summands.
std::optional<DividedCall> linear_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t) {
  const std::string rows = pass_through(call["x"].rank() - 1);
  const std::string letters[] = {rows + "k", call.get_int("transpose_w") ? "nk" : "kn", "n", rows + "n"};
  DimLetters dims;
  for (size_t i = 0; i < call.count(); ++i) dims.operands.push_back(call.has(i) ? letters[i] : "");
  dims.results = {rows + "n"};
  std::optional<DividedCall> made = divide_letters(call, dims, known);
  if (!made) return std::nullopt;
  for (llvm::StringRef added : {"bias", "addend"})
    if (made->sums && call.has(added)) made->after.push_back(call.index(added));
  const bool of_rows = made->results[0] && made->results[0]->dim < call["x"].rank() - 1;
  made->may_be_uneven = !of_rows || !call.has("bias");
  return made;
}

std::vector<Sample> linear_samples() {
  using namespace samples;
  return {
      {{normal({3, 4}), normal({4, 5}), normal({5})}},
      {{normal({2, 3, 4}), normal({5, 4}), normal({5})}, {{"transpose_w", 1}}},
      {{normal({2, 1, 3, 4}), normal({4, 2})}},
      {{normal({4}), normal({2, 4}), normal({2})}, {{"transpose_w", 1}}},
      {{normal({3, 4}, DType::BF16), normal({4, 5}, DType::BF16), normal({5}, DType::BF16)}},
      {{normal({3, 4}, DType::F16), normal({5, 4}, DType::F16)}, {{"transpose_w", 1}}},
      {{normal({2, 3, 4}), normal({4, 5}), normal({5}), normal({2, 3, 5})}},
      {{normal({3, 8}, DType::BF16), normal({16, 8}, DType::BF16), absent(), normal({3, 16}, DType::BF16)},
       {{"transpose_w", 1}}},
  };
}

Result<Types> infer_linear_dw(const OpCall& call) {
  if (Status s = need_f8_scales(call)) return s;
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_min_rank(call, "x", 1)) return s;
  const Type &x = call["x"], &dy = call["dy"];
  if (Status s = need_min_rank(call, "dy", 1)) return s;
  Type expected = x;
  expected.shape.back() = dy.shape.back();
  if (Status s = need_type(call, "dy", expected)) return s;
  bool transpose_w = call.get_int("transpose_w");
  int64_t inner = x.shape.back(), columns = call.attrs.get_int("columns", dy.shape.back());
  if (columns < 0 || columns > dy.shape.back())
    return model_error("columns is " + llvm::Twine(columns) + ", dy has " + llvm::Twine(dy.shape.back()));
  if (call.attrs.has("columns") && call.get_int("bias")) return model_error("bias and columns do not go together");
  Result<DType> dtype = sum_dtype(call);
  if (!dtype) return dtype.takeError();
  const Type dw = transpose_w ? Type(*dtype, {columns, inner}) : Type(*dtype, {inner, columns});
  if (Status s = need_type(call, "addend", dw)) return s;
  if (call.get_int("bias")) return Types{dw, Type(*dtype, {columns})};
  return Types{dw};
}

double linear_dw_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  const int64_t rows = element_count(llvm::ArrayRef<int64_t>(call["x"].shape).drop_back());
  return 2.0 * static_cast<double>(rows) * static_cast<double>(results[0].elements());
}

void linear_dw_reference(const ReferenceCall& call) {
  bool transpose_w = call.get_int("transpose_w");
  auto [rows, inner, columns] = sizes_of(call["x"], call.out("dw").type, transpose_w);
  const int64_t step = call["dy"].shape.back();
  std::vector<double> x = call.load("x"), dy = call.load("dy"), dw(static_cast<size_t>(inner * columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < inner; ++k)
      for (int64_t c = 0; c < columns; ++c) dw[k * columns + c] += x[r * inner + k] * dy[r * step + c];
  if (transpose_w) dw = transposed(dw, inner, columns);
  add_to(dw, call.load("addend"));
  call.store(dw, "dw");
  if (!call.gives("dbias")) return;
  std::vector<double> db(static_cast<size_t>(columns));
  for (size_t i = 0; i < dy.size(); ++i) db[i % db.size()] += dy[i];
  call.store(db, "dbias");
}

// An addend would be in every chunk's summand.
std::optional<ChunkCall> linear_dw_chunk(const OpCall& call, Chunk) {
  if (call["x"].rank() < 2 || call.has("addend")) return std::nullopt;
  ChunkCall made = cut_operands(call, {"x", "dy"});
  made.combine = {Combine::Sum, Combine::Sum};
  return made;
}

std::vector<Sample> linear_dw_samples() {
  using namespace samples;
  return {
      {{normal({3, 4}), normal({3, 5})}},
      {{normal({2, 3, 4}), normal({2, 3, 5})}, {{"transpose_w", 1}}},
      {{normal({6, 4}, DType::BF16), normal({6, 5}, DType::BF16)}, {{"dtype", DType::F32}}},
      {{normal({6, 4}, DType::F16), normal({6, 5}, DType::F16)}, {{"dtype", DType::F32}, {"transpose_w", 1}}},
      {{normal({6, 4}, DType::BF16), normal({6, 5}, DType::BF16)}},
      {{normal({6, 4}), normal({6, 5}), normal({4, 5})}},
      {{normal({6, 8}, DType::BF16), normal({6, 16}, DType::BF16), normal({16, 8})},
       {{"dtype", DType::F32}, {"transpose_w", 1}}},
      {{normal({2, 3, 4}), normal({2, 3, 5})}, {{"bias", 1}}},
      {{normal({6, 8}, DType::BF16), normal({6, 16}, DType::BF16), normal({16, 8})},
       {{"bias", 1}, {"dtype", DType::F32}, {"transpose_w", 1}}},
      {{normal({6, 4}), normal({6, 5})}, {{"columns", 3}}},
      {{normal({6, 8}, DType::BF16), normal({6, 16}, DType::BF16), normal({13, 8})},
       {{"columns", 13}, {"dtype", DType::F32}, {"transpose_w", 1}}},
      {{normal({6, 8}, DType::BF16), normal({6, 16}, DType::BF16), normal({8, 13})},
       {{"columns", 13}, {"dtype", DType::F32}}},
      {{normal({6, 8}, DType::F16), normal({6, 16}, DType::F16)}, {{"bias", 1}, {"dtype", DType::F32}}},
      {{normal({2, 70, 136}, DType::BF16), normal({2, 70, 24}, DType::BF16)}, {{"dtype", DType::F32}}},
      {{normal({2, 70, 8}, DType::F16), normal({2, 70, 136}, DType::F16)}, {{"transpose_w", 1}}},
      {{normal({2, 70, 54}, DType::BF16), normal({2, 70, 66}, DType::BF16), normal({66, 54})},
       {{"bias", 1}, {"dtype", DType::F32}, {"transpose_w", 1}}},
      {{normal({35, 66}, DType::F16), normal({35, 130}, DType::F16)}, {{"bias", 1}}},
  };
}

Result<Types> infer_linear_gelu(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "approximate", {"none", "tanh"})) return s;
  Result<Type> h = matmul_type(call, "x");
  if (!h) return h.takeError();
  if (Status s = need_type(call, "bias", Type(h->dtype, {h->shape.back()}))) return s;
  return Types{*h, *h};
}

// gelu is of h as it is stored.
void linear_gelu_reference(const ReferenceCall& call) {
  const bool transpose_w = call.get_int("transpose_w");
  const TensorView& h = call.out("h");
  const std::vector<double> bias = call.load("bias");
  std::vector<double> sums(static_cast<size_t>(h.elements()));
  for (size_t i = 0; !bias.empty() && i < sums.size(); ++i) sums[i] = bias[i % bias.size()];
  add_product(sums, call.load("x"), call.load("w"), sizes_of(call["x"], call["w"], transpose_w), transpose_w);
  call.store(sums, "h");
  std::vector<double> y = all_elements(h);
  for (double& element : y) element = gelu(element, call.attrs);
  call.store(y, "y");
}

std::optional<ChunkCall> linear_gelu_chunk(const OpCall& call, Chunk) {
  return call["x"].rank() < 2 ? std::nullopt : std::optional<ChunkCall>(cut_operands(call, {"x"}));
}

std::vector<Sample> linear_gelu_samples() {
  using namespace samples;
  const Attrs tanh_form{{"approximate", "tanh"}, {"transpose_w", 1}};
  return {
      {{normal({3, 4}), normal({4, 5}), normal({5})}},
      {{normal({2, 3, 4}), normal({5, 4}), normal({5})}, tanh_form},
      {{normal({2, 3, 4}), normal({4, 5})}},
      {{normal({6, 8}, DType::BF16), normal({8, 16}, DType::BF16), normal({16}, DType::BF16)}},
      {{normal({6, 8}, DType::BF16), normal({16, 8}, DType::BF16)}, tanh_form},
      {{normal({2, 3, 8}, DType::F16), normal({8, 16}, DType::F16), normal({16}, DType::F16)},
       {{"approximate", "tanh"}}},
      {{normal({6, 8}, DType::F16), normal({16, 8}, DType::F16), normal({16}, DType::F16)}, {{"transpose_w", 1}}},
  };
}

Result<Types> infer_linear_gelu_grad(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "approximate", {"none", "tanh"})) return s;
  Result<Type> y = matmul_type(call, "dy");
  if (!y) return y.takeError();
  if (Status s = need_type(call, "x", *y)) return s;
  return Types{*y};
}

void linear_gelu_grad_reference(const ReferenceCall& call) {
  const bool transpose_w = call.get_int("transpose_w");
  const std::vector<double> x = call.load("x");
  std::vector<double> dx(x.size());
  add_product(dx, call.load("dy"), call.load("w"), sizes_of(call["dy"], call["w"], transpose_w), transpose_w);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= gelu_slope(x[i], call.attrs);
  call.store(dx, "dx");
}

std::optional<ChunkCall> linear_gelu_grad_chunk(const OpCall& call, Chunk) {
  return call["x"].rank() < 2 ? std::nullopt : std::optional<ChunkCall>(cut_operands(call, {"dy", "x"}));
}

std::vector<Sample> linear_gelu_grad_samples() {
  using namespace samples;
  const Attrs tanh_form{{"approximate", "tanh"}, {"transpose_w", 1}};
  return {
      {{normal({3, 4}), normal({4, 5}), normal({3, 5})}},
      {{normal({2, 3, 4}), normal({5, 4}), normal({2, 3, 5})}, tanh_form},
      {{normal({6, 8}, DType::BF16), normal({16, 8}, DType::BF16), normal({6, 16}, DType::BF16)}, tanh_form},
      {{normal({6, 8}, DType::F16), normal({8, 16}, DType::F16), normal({6, 16}, DType::F16)},
       {{"approximate", "tanh"}}},
      {{normal({6, 8}, DType::BF16), normal({8, 16}, DType::BF16), normal({6, 16}, DType::BF16)}},
      {{normal({2, 3, 8}, DType::F16), normal({16, 8}, DType::F16), normal({2, 3, 16}, DType::F16)},
       {{"transpose_w", 1}}},
  };
}

}  // namespace

constinit const OpDef op_linear{
    .name = "linear",
    .summary =
        "x[..., K] times w[K, N], or w[N, K] with {transpose_w}, plus bias[N] and an addend of the result's type when "
        "given; {f8} is what mark-f8 wants x's codes to be before expand-f8, {f8_grad} what those of dy, "
        "{f8_scales} what shares a scale: tensor, rows or blocks",
    .operands = {"x", "w", "bias?", "addend?"},
    .attrs = {{"transpose_w", 0}, f8_attr, {"f8_grad", AttrKind::DType, AttrNeed::Optional}, f8_scales_attr},
    .infer = infer_linear,
    .gradient = Gradient::rule(linear_gradient),
    .precision = Precision::Low,
    .dim_order = DimOrder::LastStays,
    .addend = "addend",
    .in_place = {{"y", "addend"}},
    .flops = linear_flops,
    .chunk = linear_chunk,
    .divide = linear_divide,
    .linear = {"x @ w + bias + addend"},
    .reference = linear_reference,
    .samples = linear_samples,
};

constinit const OpDef op_linear_dw{
    .name = "linear_dw",
    .summary =
        "gradient of linear's weight: x^T dy summed over all rows, plus an addend of the result's type when given, "
        "rounded to {dtype} when given; {transpose_w} as in linear; with {bias} also that of its bias, dy summed; "
        "of the first {columns} of dy alone when given; {f8} is what mark-f8 wants dy's codes to be, {f8_scales} as in "
        "linear",
    .operands = {"x", "dy", "addend?"},
    .results = {"dw", "dbias?bias"},
    .attrs = {{"transpose_w", 0},
              sum_dtype_attr,
              {"bias", 0},
              {"columns", AttrKind::Int, AttrNeed::Optional},
              f8_attr,
              f8_scales_attr},
    .infer = infer_linear_dw,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .addend = "addend",
    .in_place = {{"dw", "addend"}},
    .flops = linear_dw_flops,
    .chunk = linear_dw_chunk,
    .linear = {"x @ dy + addend", "sum(dy)"},
    .reference = linear_dw_reference,
    .samples = linear_dw_samples,
};

constinit const OpDef op_linear_gelu{
    .name = "linear_gelu",
    .summary =
        "linear(x, w, bias) and its gelu, where backward reads both: made behind differentiation, of the two; "
        "{transpose_w} as in linear, {approximate} as in gelu",
    .operands = {"x", "w", "bias?"},
    .results = {"h", "y"},
    .attrs = {{"transpose_w", 0}, {"approximate", "none"}},
    .infer = infer_linear_gelu,
    .gradient = Gradient::missing("it is made of steps, whose gradients are there"),
    .precision = Precision::Low,
    .flops = linear_flops,
    .chunk = linear_gelu_chunk,
    .linear = {"x @ w + bias"},
    .reference = linear_gelu_reference,
    .samples = linear_gelu_samples,
};

constinit const OpDef op_linear_gelu_grad{
    .name = "linear_gelu_grad",
    .summary =
        "gelu_grad of x and linear(dy, w), from dy, w and x: what reaches the gelu before a linear layer; "
        "{transpose_w} "
        "as in linear, {approximate} as in gelu",
    .operands = {"dy", "w", "x"},
    .results = {"dx"},
    .attrs = {{"transpose_w", 0}, {"approximate", "none"}},
    .infer = infer_linear_gelu_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = linear_flops,
    .chunk = linear_gelu_grad_chunk,
    .linear = {"dy @ w"},
    .reference = linear_gelu_grad_reference,
    .samples = linear_gelu_grad_samples,
};

}  // namespace plimsoll
