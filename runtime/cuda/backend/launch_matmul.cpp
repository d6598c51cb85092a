#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/reduce/reduce.h"
#include "runtime/cuda/backend/launched.h"
#include "runtime/cuda/backend/matmul_plan.h"

// matmul, linear, linear's weight gradient and linear with gelu's gradient behind it, through cuBLASLt. What the
// library can do in a product's epilogue our own kernels can do after it: both are candidates, and which is faster is
// measured.

namespace plimsoll {
namespace {

Status run(const CudaCall& k, size_t a, size_t b, const void* addend = nullptr) {
  return static_cast<PreparedProduct*>(k.prepared)->run(k, k.in(a), k.in(b), addend);
}

// ---- matmul ----

Matrix last_two(const Type& type, bool transposed) {
  return {type.shape[type.shape.size() - 2], type.shape[type.shape.size() - 1], transposed};
}

// Steps of whole matrices over the batch of the result.
Shape batch_steps(const Type& type, llvm::ArrayRef<int64_t> batch) {
  llvm::ArrayRef<int64_t> own = llvm::ArrayRef<int64_t>(type.shape).drop_back(2);
  Shape steps(batch.size(), 0), dense = row_major_strides(own);
  const size_t shift = batch.size() - own.size();
  const int64_t matrix = type.shape[type.shape.size() - 1] * type.shape[type.shape.size() - 2];
  for (size_t d = 0; d < own.size(); ++d)
    if (own[d] != 1) steps[d + shift] = dense[d] * matrix;
  return steps;
}

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_matmul(CudaLibraries& libraries, const CudaCall& k) {
  const Type &a = k.operands[0].type, &b = k.operands[1].type, &y = k.results[0].type;
  Product product{.y = last_two(y, false),
                  .a = last_two(a, k.call.attrs.get_int("transpose_a")),
                  .b = last_two(b, k.call.attrs.get_int("transpose_b")),
                  .type = a.dtype,
                  .y_type = y.dtype};
  llvm::ArrayRef<int64_t> batch = llvm::ArrayRef<int64_t>(y.shape).drop_back(2);
  const Shape y_steps = batch_steps(y, batch), a_steps = batch_steps(a, batch), b_steps = batch_steps(b, batch);
  for (size_t d = 0; d < batch.size(); ++d) product.batch.add_dimension(batch[d], {y_steps[d], a_steps[d], b_steps[d]});
  return prepare_product(libraries, k, product, rank);
}

Status launch_matmul(const CudaCall& k) { return run(k, 0, 1); }

// ---- linear ----

int64_t rows_of(const Type& x) { return element_count(llvm::ArrayRef<int64_t>(x.shape).drop_back()); }

// A product of x, or dy, and w.
Product linear_product(const CudaCall& k) {
  const Type &x = k.operands[0].type, &w = k.operands[1].type, &y = k.results[0].type;
  return {.y = {rows_of(y), y.shape.back()},
          .a = {rows_of(x), x.shape.back()},
          .b = {w.shape[0], w.shape[1], k.call.attrs.get_int("transpose_w") != 0},
          .type = x.dtype,
          .y_type = y.dtype};
}

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_linear(CudaLibraries& libraries, const CudaCall& k) {
  Product product = linear_product(k);
  if (k.has(2)) {
    product.epilogue = Epilogue::Bias;
    product.epilogue_data = k.in(2);
  }
  return prepare_product(libraries, k, product, rank);
}

Status launch_linear(const CudaCall& k) { return run(k, 0, 1, k.in(3)); }

// ---- linear_gelu_grad ----

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_dgelu(CudaLibraries& libraries, const CudaCall& k) {
  Product product = linear_product(k);
  product.epilogue = Epilogue::GeluGradient;
  product.epilogue_data = k.in(2);
  return prepare_product(libraries, k, product, rank);
}

Status launch_dgelu(const CudaCall& k) { return run(k, 0, 1); }

Result<std::unique_ptr<CudaPrepared>> prepare_before_gelu_grad(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_product(libraries, k, linear_product(k), 0);
}

Status launch_before_gelu_grad(const CudaCall& k) {
  if (Status s = run(k, 0, 1)) return s;
  const bool tanh_form = k.call.attrs.get_string("approximate", "none") == "tanh";
  return launched(
      k, cuda::map_unary_grad(tanh_form ? cuda::UnaryGrad::GeluTanh : cuda::UnaryGrad::Gelu, k.out_scalar(0), k.out(0),
                              k.in(2), k.out(0), k.results[0].elements(), k.stream));
}

// ---- linear_dw ----

// dW [K, N] = x^T dy, or transposed [N, K] = dy^T x: the left matrix is read down its columns either way.
Product weight_gradient(const CudaCall& k) {
  const bool transposed = k.call.attrs.get_int("transpose_w");
  const Type &left = k.operands[transposed ? 1 : 0].type, &right = k.operands[transposed ? 0 : 1].type;
  const Type& dw = k.results[0].type;
  return {.y = {dw.shape[0], dw.shape[1]},
          .a = {rows_of(left), dw.shape[0], true, left.shape.back()},
          .b = {rows_of(right), dw.shape[1], false, right.shape.back()},
          .type = left.dtype,
          .y_type = dw.dtype};
}

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_linear_dw(CudaLibraries& libraries, const CudaCall& k) {
  return prepare_product(libraries, k, weight_gradient(k), rank);
}

// The product itself sums dy for the bias.
template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_bgrad(CudaLibraries& libraries, const CudaCall& k) {
  Product product = weight_gradient(k);
  product.epilogue = k.call.attrs.get_int("transpose_w") ? Epilogue::RowSumsOfA : Epilogue::ColumnSumsOfB;
  product.epilogue_data = k.out(1);
  return prepare_product(libraries, k, product, rank);
}

Status launch_bgrad(const CudaCall& k) {
  const bool transposed = k.call.attrs.get_int("transpose_w");
  return run(k, transposed ? 1 : 0, transposed ? 0 : 1, k.in(2));
}

// The sum takes over the product's workspace.
Status launch_linear_dw(const CudaCall& k) {
  if (Status s = launch_bgrad(k)) return s;
  if (k.results.size() == 1) return Status::success();
  const Type& dy = k.operands[1].type;
  cuda::AlternatingShape shape;
  shape.add(rows_of(dy), true);
  shape.add(dy.shape.back(), false);
  return launched(k, cuda::reduce({.reduction = cuda::Reduction::Sum,
                                   .shape = shape,
                                   .x = k.in(1),
                                   .y = k.out(1),
                                   .x_type = k.in_scalar(1),
                                   .y_type = k.out_scalar(1),
                                   .workspace = static_cast<float*>(k.workspace)},
                                  k.stream));
}

// The library's second to fourth choices are there to be timed.
constexpr CudaLauncher launchers[] = {
    {"matmul", "cublaslt", launch_matmul, prepare_matmul<0>},
    {"matmul", "cublaslt_2", launch_matmul, prepare_matmul<1>},
    {"matmul", "cublaslt_3", launch_matmul, prepare_matmul<2>},
    {"matmul", "cublaslt_4", launch_matmul, prepare_matmul<3>},
    {"linear", "cublaslt", launch_linear, prepare_linear<0>},
    {"linear", "cublaslt_2", launch_linear, prepare_linear<1>},
    {"linear", "cublaslt_3", launch_linear, prepare_linear<2>},
    {"linear", "cublaslt_4", launch_linear, prepare_linear<3>},
    {"linear_gelu_grad", "cublaslt_dgelu", launch_dgelu, prepare_dgelu<0>},
    {"linear_gelu_grad", "cublaslt_dgelu_2", launch_dgelu, prepare_dgelu<1>},
    {"linear_gelu_grad", "cublaslt", launch_before_gelu_grad, prepare_before_gelu_grad},
    {"linear_dw", "cublaslt", launch_linear_dw, prepare_linear_dw<0>},
    {"linear_dw", "cublaslt_2", launch_linear_dw, prepare_linear_dw<1>},
    {"linear_dw", "cublaslt_3", launch_linear_dw, prepare_linear_dw<2>},
    {"linear_dw", "cublaslt_4", launch_linear_dw, prepare_linear_dw<3>},
    {"linear_dw", "cublaslt_bgrad", launch_bgrad, prepare_bgrad<0>},
    {"linear_dw", "cublaslt_bgrad_2", launch_bgrad, prepare_bgrad<1>},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_product_launchers() { return launchers; }

}  // namespace plimsoll
