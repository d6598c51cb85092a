#include "runtime/kernels/matmul.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/matmul/few_rows_gradient.h"
#include "kernels/cuda/matmul/few_rows_product.h"
#include "kernels/cuda/matmul/linear_gelu.h"
#include "kernels/cuda/matmul/linear_gelu_grad.h"
#include "kernels/cuda/matmul/narrow_product.h"
#include "kernels/cuda/matmul/short_sums_product.h"
#include "kernels/cuda/reduce/reduce.h"
#include "runtime/cuda/backend/left_matmul.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/backend/matmul_plan.h"
#include "runtime/cuda/backend/weight_gradient.h"
#include "runtime/kernels/elementwise.h"
#include "runtime/kernels/few_rows_matmul.h"
#include "runtime/kernels/narrow_matmul.h"
#include "runtime/kernels/reduce.h"

// matmul, linear, linear's weight gradient, linear with gelu or gelu's gradient behind it and products of 8-bit floats,
// through cuBLASLt. What the library can do in a matmul's epilogue our own kernels can do after it: both are
// candidates, and which is faster is measured. Weight gradients with a bias and products with gelus have kernels of our
// own as well.

namespace plimsoll {
namespace {

Status run(const CudaCall& k, PortKey a, PortKey b, const void* addend = nullptr) {
  return static_cast<PreparedMatmul*>(k.prepared)->run(k, k.in(a), k.in(b), addend);
}

template <Matmul (*matmul_of)(const CudaCall&)>
Result<std::unique_ptr<CudaPrepared>> prepare(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_matmul_plan(libraries, k, matmul_of(k));
}

// ---- matmul ----

Matrix last_two(const Type& type, bool transposed) {
  return {type.shape[type.shape.size() - 2], type.shape[type.shape.size() - 1], transposed};
}

Matmul plain_matmul(const CudaCall& k) {
  const Type &a = k.call["a"], &b = k.call["b"], &y = k.result("y").type;
  return {.y = last_two(y, false),
          .a = last_two(a, k.call.get_int("transpose_a")),
          .b = last_two(b, k.call.get_int("transpose_b")),
          .type = a.dtype,
          .y_type = y.dtype,
          .batch = matmul_batch(y, a, b)};
}

Status launch_matmul(const CudaCall& k) { return run(k, "a", "b"); }

Status launch_few_rows_product(const CudaCall& k) {
  return launched(k, cuda::few_rows_product(k.in_scalar("a"), k.out("y"), k.in("a"), k.in("b"),
                                            *few_rows_of(k.call, k.result_types()), k.stream));
}

// ---- linear ----

// The matmul of x, or dy, and w.
Matmul linear_matmul(const CudaCall& k) {
  const Type &x = k.operands[0].type, &w = k.call["w"], &y = k.results[0].type;
  return {.y = {rows_of(y), y.shape.back()},
          .a = {rows_of(x), x.shape.back()},
          .b = {w.shape[0], w.shape[1], k.call.get_int("transpose_w") != 0},
          .type = x.dtype,
          .y_type = y.dtype};
}

Matmul linear_with_bias(const CudaCall& k) {
  Matmul matmul = linear_matmul(k);
  matmul.epilogue_data = k.in("bias");
  if (matmul.epilogue_data) matmul.epilogue = Epilogue::Bias;
  return matmul;
}

Status launch_linear(const CudaCall& k) { return run(k, "x", "w", k.in("addend")); }

Status launch_narrow(const CudaCall& k) {
  const cuda::NarrowProductCall call{.sizes = narrow_sizes(k.call["x"], k.result("y").type),
                                     .x = k.in("x"),
                                     .w = k.in("w"),
                                     .bias = k.in("bias"),
                                     .addend = k.in("addend"),
                                     .y = k.out("y"),
                                     .type = k.in_scalar("x"),
                                     .transpose_w = k.call.get_int("transpose_w") != 0};
  return launched(k, cuda::narrow_product(call, k.stream));
}

// ---- linear_gelu, and other layers by the same tiles ----

Status launch_before_gelu(const CudaCall& k) {
  if (Status s = run(k, "x", "w")) return s;
  const auto form = is_tanh_form(k.call) ? cuda::Unary::GeluTanh : cuda::Unary::Gelu;
  return launched(k, cuda::map_unary(form, 0, 0, k.out_scalar("y"), k.out("y"), k.out("h"), k.elements(), k.stream));
}

struct PreparedTiles : CudaPrepared {
  explicit PreparedTiles(int multiprocessors) : multiprocessors(multiprocessors) {}

  int multiprocessors;
};

Result<std::unique_ptr<CudaPrepared>> prepare_tiles(CudaLibraries& libraries, const CudaCall&) {
  return std::make_unique<PreparedTiles>(libraries.card().multiProcessorCount);
}

int multiprocessors_of(const CudaCall& k) { return static_cast<const PreparedTiles*>(k.prepared)->multiprocessors; }

Status launch_short_sums(const CudaCall& k) {
  const Type &x = k.call["x"], &y = k.result("y").type;
  const cuda::ShortSumsCall call{.rows = rows_of(y),
                                 .depth = x.shape.back(),
                                 .columns = y.shape.back(),
                                 .x = k.in("x"),
                                 .w = k.in("w"),
                                 .bias = k.in("bias"),
                                 .y = k.out("y"),
                                 .type = k.out_scalar("y"),
                                 .transpose_w = k.call.get_int("transpose_w") != 0,
                                 .multiprocessors = multiprocessors_of(k)};
  return launched(k, cuda::short_sums_product(call, k.stream));
}

Status launch_warpgroup_linear_gelu(const CudaCall& k) {
  const Type &x = k.call["x"], &h = k.result("h").type;
  const cuda::LinearGeluCall call{.rows = rows_of(h),
                                  .depth = x.shape.back(),
                                  .columns = h.shape.back(),
                                  .x = k.in("x"),
                                  .w = k.in("w"),
                                  .bias = k.in("bias"),
                                  .h = k.out("h"),
                                  .y = k.out("y"),
                                  .type = k.out_scalar("h"),
                                  .transpose_w = k.call.get_int("transpose_w") != 0,
                                  .tanh_form = is_tanh_form(k.call),
                                  .multiprocessors = multiprocessors_of(k)};
  return launched(k, cuda::linear_gelu(call, k.stream));
}

// ---- linear_gelu_grad ----

Matmul linear_with_dgelu(const CudaCall& k) {
  Matmul matmul = linear_matmul(k);
  matmul.epilogue = Epilogue::GeluGradient;
  matmul.epilogue_data = k.in("x");
  return matmul;
}

Status launch_dgelu(const CudaCall& k) { return run(k, "dy", "w"); }

Status launch_before_gelu_grad(const CudaCall& k) {
  if (Status s = launch_dgelu(k)) return s;
  const auto gradient = is_tanh_form(k.call) ? cuda::UnaryGrad::GeluTanhGrad : cuda::UnaryGrad::GeluGrad;
  return launched(k, cuda::map_unary_grad(gradient, k.out_scalar("dx"), k.out("dx"), k.in("x"), k.out("dx"),
                                          k.elements(), k.stream));
}

Status launch_warpgroup_gelu(const CudaCall& k) {
  const Type &dy = k.call["dy"], &x = k.call["x"];
  const cuda::LinearGeluGradCall call{.rows = rows_of(x),
                                      .depth = dy.shape.back(),
                                      .columns = x.shape.back(),
                                      .dy = k.in("dy"),
                                      .w = k.in("w"),
                                      .x = k.in("x"),
                                      .dx = k.out("dx"),
                                      .type = k.out_scalar("dx"),
                                      .transpose_w = k.call.get_int("transpose_w") != 0,
                                      .tanh_form = is_tanh_form(k.call),
                                      .multiprocessors = multiprocessors_of(k)};
  return launched(k, cuda::linear_gelu_grad(call, k.stream));
}

// ---- linear_dw ----

Matmul weight_gradient(const CudaCall& k) {
  const WeightGradientSides sides(k.call);
  const Type &left = k.call[sides.left], &right = k.call[sides.right], &dw = k.result("dw").type;
  return {.y = {dw.shape[0], dw.shape[1]},
          .a = {rows_of(left), dw.shape[0], true, left.shape.back()},
          .b = {rows_of(right), dw.shape[1], false, right.shape.back()},
          .type = left.dtype,
          .y_type = dw.dtype};
}

// The matmul itself sums dy for the bias.
Matmul weight_gradient_with_sums(const CudaCall& k) {
  Matmul matmul = weight_gradient(k);
  matmul.epilogue = k.call.get_int("transpose_w") ? Epilogue::RowSumsOfA : Epilogue::ColumnSumsOfB;
  matmul.epilogue_data = k.out("dbias");
  return matmul;
}

Status launch_bgrad(const CudaCall& k) {
  const WeightGradientSides sides(k.call);
  return run(k, sides.left, sides.right, k.in("addend"));
}

// The sum takes over the matmul's workspace.
Status launch_linear_dw(const CudaCall& k) {
  if (Status s = launch_bgrad(k)) return s;
  if (!k.call.gives("dbias")) return Status::success();
  return launched(k, cuda::reduce({.reduction = cuda::Reduction::Sum,
                                   .shape = row_sums(k.call["dy"]),
                                   .x = k.in("dy"),
                                   .y = k.out("dbias"),
                                   .x_type = k.in_scalar("dy"),
                                   .y_type = k.out_scalar("dbias"),
                                   .workspace = k.scratch<float>()},
                                  k.stream));
}

Status launch_few_rows(const CudaCall& k) {
  const WeightGradientSides sides(k.call);
  const cuda::FewRowsGradientCall call{.rows = rows_of(k.call["x"]),
                                       .left_columns = k.in_shape(sides.left).back(),
                                       .right_columns = k.in_shape(sides.right).back(),
                                       .left = k.in(sides.left),
                                       .right = k.in(sides.right),
                                       .addend = k.in("addend"),
                                       .dw = k.out("dw"),
                                       .dbias = k.out_if_given("dbias"),
                                       .type = k.in_scalar("x"),
                                       .dw_type = k.out_scalar("dw"),
                                       .left_is_dy = sides.left == "dy"};
  return launched(k, cuda::few_rows_gradient(call, k.stream));
}

Status launch_narrow_gradient(const CudaCall& k) {
  const cuda::NarrowGradientCall call{.sizes = narrow_sizes(k.call["x"], k.call["dy"]),
                                      .x = k.in("x"),
                                      .dy = k.in("dy"),
                                      .addend = k.in("addend"),
                                      .dw = k.out("dw"),
                                      .dbias = k.out_if_given("dbias"),
                                      .workspace = k.scratch<float>(),
                                      .type = k.in_scalar("x"),
                                      .dw_type = k.out_scalar("dw"),
                                      .transpose_w = k.call.get_int("transpose_w") != 0};
  return launched(k, cuda::narrow_gradient(call, k.stream));
}

// What `columns` of dy make of dw, from the first one on: rows of it, or columns.
Matmul weight_gradient_of(const CudaCall& k, int64_t first, int64_t columns) {
  Matmul matmul = weight_gradient(k);
  if (k.call.get_int("transpose_w")) {
    matmul.y.rows = matmul.a.columns = columns;
    matmul.y_at = first * matmul.y.step;
  } else {
    matmul.y.columns = matmul.b.columns = columns;
    matmul.y_at = first;
  }
  return matmul;
}

int64_t columns_of(const CudaCall& k) { return k.call.get_int("columns"); }

// An odd number of columns as a number that the library is fast at, and the few that are left.
struct SplitWeightGradient : CudaPrepared {
  PreparedMatmul most, rest;
};

Result<std::unique_ptr<CudaPrepared>> prepare_split(CudaLibraries& libraries, const CudaCall& k) {
  auto prepared = std::make_unique<SplitWeightGradient>();
  const int64_t all = columns_of(k), most = aligned_columns(all);
  if (Status s = prepared->most.create(libraries, weight_gradient_of(k, 0, most), k.workspace_bytes, k.algorithm))
    return s;
  if (Status s = prepared->rest.create(libraries, weight_gradient_of(k, most, all - most), k.workspace_bytes, 0))
    return s;
  return prepared;
}

Status launch_split(const CudaCall& k) {
  auto* prepared = static_cast<SplitWeightGradient*>(k.prepared);
  const bool dy_is_left = k.call.get_int("transpose_w") != 0;
  const auto* x = k.in<std::byte>("x");
  auto run_from = [&](PreparedMatmul& matmul, int64_t first) {
    const auto* dy = k.in<std::byte>("dy") + first * dtype_bytes(k.call["dy"].dtype);
    return matmul.run(k, dy_is_left ? dy : x, dy_is_left ? x : dy, k.in("addend"));
  };
  if (Status s = run_from(prepared->most, 0)) return s;
  return run_from(prepared->rest, aligned_columns(columns_of(k)));
}

// ---- linear_f8 ----

Matmul f8_matmul(const CudaCall& k) {
  const Type &x = k.call["x"], &w = k.call["w"], &y = k.result("y").type;
  const auto scales_of = [&](const Type& codes, PortKey scales) {
    return *f8_scales_of(k.call[scales], rows_of(codes), codes.shape.back());
  };
  return {.y = {rows_of(y), y.shape.back()},
          .a = {rows_of(x), x.shape.back()},
          .b = {w.shape[0], w.shape[1], true},
          .type = x.dtype,
          .b_type = w.dtype,
          .y_type = y.dtype,
          .epilogue = k.has("bias") ? Epilogue::Bias : Epilogue::None,
          .epilogue_data = k.in("bias"),
          .a_scale = k.in<float>("x_scale"),
          .b_scale = k.in<float>("w_scale"),
          .a_scales = scales_of(x, "x_scale"),
          .b_scales = scales_of(w, "w_scale"),
          .fast_sums = k.call.get_int("fast_sums") != 0};
}

constexpr CudaLauncher matmul_table[] = {
    {op_matmul, "cublaslt", launch_matmul, prepare<plain_matmul>},
    {op_matmul, "few_rows", launch_few_rows_product},
    {op_matmul, "warpgroup_left", launch_left_product, prepare_left_product},
    {op_matmul_sum, "warpgroup", launch_left_gradient, prepare_left_gradient},
    {op_linear, "cublaslt", launch_linear, prepare<linear_with_bias>},
    {op_linear, "narrow", launch_narrow},
    {op_linear, "warpgroup", launch_short_sums, prepare_tiles},
    {op_linear_gelu, "cublaslt", launch_before_gelu, prepare<linear_with_bias>},
    {op_linear_gelu, "warpgroup_gelu", launch_warpgroup_linear_gelu, prepare_tiles},
    {op_linear_gelu_grad, "cublaslt_dgelu", launch_dgelu, prepare<linear_with_dgelu>},
    {op_linear_gelu_grad, "cublaslt", launch_before_gelu_grad, prepare<linear_matmul>},
    {op_linear_gelu_grad, "warpgroup_gelu", launch_warpgroup_gelu, prepare_tiles},
    {op_linear_f8, "cublaslt", launch_linear, prepare<f8_matmul>},
    {op_linear_f8, "cublaslt_scales", launch_linear, prepare<f8_matmul>},
    {op_linear_dw, "cublaslt", launch_linear_dw, prepare<weight_gradient>},
    {op_linear_dw, "cublaslt_split", launch_split, prepare_split},
    {op_linear_dw, "cublaslt_bgrad", launch_bgrad, prepare<weight_gradient_with_sums>},
    {op_linear_dw, "warpgroup_bgrad", launch_weight_gradient, prepare_weight_gradient},
    {op_linear_dw, "few_rows", launch_few_rows},
    {op_linear_dw, "narrow", launch_narrow_gradient},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> matmul_launchers() { return matmul_table; }

}  // namespace plimsoll
