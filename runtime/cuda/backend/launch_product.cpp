#include "kernels/strides.h"
#include "runtime/cuda/backend/device_memory.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"

// matmul, linear and linear's weight gradient through cuBLASLt. Its matrices are column-major, so each row-major
// product y = a b is asked for as y^T = b^T a^T: the operands change places and nothing is moved.

namespace plimsoll {
namespace {

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::F64: return CUDA_R_64F;
    case DType::BF16: return CUDA_R_16BF;
    case DType::F16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

// A row-major matrix in memory, or its transpose.
struct Matrix {
  int64_t rows, columns;  // as stored
  bool transposed = false;
};

// y [rows, columns] = a b, plus bias and addend where a call has them, for a batch: `batch` walks over y, a and b, a 0 step repeats a matrix.
struct Product {
  Matrix y, a, b;
  DType type, y_type;
  bool bias = false;
  LoopNest<3> batch{};
};

constexpr int most_choices = 4;

Status refused(const llvm::Twine& what, cublasStatus_t status) {
  return system_error("cuBLASLt: " + what + ": " + cublasLtGetStatusString(status));
}

class PreparedProduct : public CudaPrepared {
 public:
  PreparedProduct() = default;
  ~PreparedProduct() override {
    if (operation_) cublasLtMatmulDescDestroy(operation_);
    for (cublasLtMatrixLayout_t layout : {a_, b_, y_})
      if (layout) cublasLtMatrixLayoutDestroy(layout);
  }

  Status create(CudaLibraries& libraries, const Product& product, int64_t workspace_bytes, int rank) {
    lt_ = libraries.lt();
    type_ = product.type;
    y_bytes_ = dtype_bytes(product.y_type);
    if (Status s = describe(libraries, product)) return s;
    return choose(workspace_bytes, rank);
  }

  Status run(const CudaCall& k, const void* a, const void* b, const void* bias, const void* addend) {
    if (bias)
      if (cublasStatus_t status = cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias))
        return refused("bias", status);
    Status failed = Status::success();
    walk_outer(batch_, batch_.rank > 0 ? 1 : 0, 0, outer_, [&](const std::array<int64_t, 3>& at) {
      if (!failed) failed = run_one(k, at, a, b, addend);
    });
    return failed;
  }

 private:
  Status describe(CudaLibraries& libraries, const Product& p) {
    const bool f64 = p.type == DType::F64;
    const bool tf32 = p.type == DType::F32 && libraries.tf32();
    cublasComputeType_t compute = f64 ? CUBLAS_COMPUTE_64F : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (cublasStatus_t status = cublasLtMatmulDescCreate(&operation_, compute, f64 ? CUDA_R_64F : CUDA_R_32F))
      return refused("operation", status);
    const cublasOperation_t first = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    batch_ = collapse(p.batch);
    outer_ = batch_.iterations();
    // The innermost dimension of the batch is a strided batch of one call; those around it are calls of their own.
    const int64_t count = batch_.sizes[batch_.rank - 1];
    outer_ /= count;
    const auto& steps = batch_.strides;
    const int inner = batch_.rank - 1;
    if (Status s = layout(a_, p.b, p.type, count, steps[2][inner])) return s;
    if (Status s = layout(b_, p.a, p.type, count, steps[1][inner])) return s;
    return layout(y_, p.y, p.y_type, count, steps[0][inner]);
  }

  // Row-major [rows, columns] is column-major [columns, rows] with the row length as its leading dimension.
  static Status layout(cublasLtMatrixLayout_t& layout, const Matrix& m, DType dtype, int64_t batch, int64_t step) {
    cublasStatus_t status = cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<uint64_t>(m.columns),
                                                       static_cast<uint64_t>(m.rows), m.columns);
    if (status != CUBLAS_STATUS_SUCCESS) return refused("matrix", status);
    if (batch <= 1) return Status::success();
    const auto count = static_cast<int32_t>(batch);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
    return Status::success();
  }

  // The library's choice of that rank, the best by its own reckoning first: it depends on shapes, card and version alone, so that a plan gives the same bits again.
  Status choose(int64_t workspace_bytes, int rank) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference)) return refused("preference", status);
    const auto most = static_cast<uint64_t>(workspace_bytes);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    int found = 0;
    cublasLtMatmulHeuristicResult_t choices[most_choices];
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt_, operation_, a_, b_, y_, y_, preference, rank + 1, choices, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || found <= rank) return refused("no algorithm of rank " + llvm::Twine(rank + 1), status);
    choice_ = choices[rank];
    return Status::success();
  }

  // y = a b + beta c: without an addend beta is 0, and c is not read.
  Status run_one(const CudaCall& k, const std::array<int64_t, 3>& at, const void* a, const void* b, const void* addend) {
    const float one = 1, beta = addend ? 1 : 0;
    const double one64 = 1, beta64 = beta;
    const bool f64 = type_ == DType::F64;
    const int64_t bytes = dtype_bytes(type_);
    std::byte* y = k.out<std::byte>(0) + at[0] * y_bytes_;
    const std::byte* c = addend ? static_cast<const std::byte*>(addend) + at[0] * y_bytes_ : y;
    cublasStatus_t status = cublasLtMatmul(
        lt_, operation_, f64 ? static_cast<const void*>(&one64) : &one, static_cast<const std::byte*>(b) + at[2] * bytes, a_,
        static_cast<const std::byte*>(a) + at[1] * bytes, b_, f64 ? static_cast<const void*>(&beta64) : &beta, c, y_, y, y_,
        &choice_.algo, k.workspace, static_cast<size_t>(k.workspace_bytes), k.stream);
    return status == CUBLAS_STATUS_SUCCESS ? Status::success() : refused("launch", status);
  }

  cublasLtHandle_t lt_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, y_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
  LoopNest<3> batch_{};
  int64_t outer_ = 1, y_bytes_ = 4;
  DType type_ = DType::F32;
};

Result<std::unique_ptr<CudaPrepared>> prepare(CudaLibraries& libraries, const CudaCall& k, const Product& product, int rank) {
  auto prepared = std::make_unique<PreparedProduct>();
  if (Status s = prepared->create(libraries, product, k.workspace_bytes, rank)) return s;
  return prepared;
}

Status run(const CudaCall& k, size_t a, size_t b, const void* bias = nullptr, const void* addend = nullptr) {
  return static_cast<PreparedProduct*>(k.prepared)->run(k, k.in(a), k.in(b), bias, addend);
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
  return prepare(libraries, k, product, rank);
}

Status launch_matmul(const CudaCall& k) { return run(k, 0, 1); }

// ---- linear ----

int64_t rows_of(const Type& x) { return element_count(llvm::ArrayRef<int64_t>(x.shape).drop_back()); }

template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_linear(CudaLibraries& libraries, const CudaCall& k) {
  const Type &x = k.operands[0].type, &w = k.operands[1].type, &y = k.results[0].type;
  return prepare(libraries, k,
                 {.y = {rows_of(y), y.shape.back()},
                  .a = {rows_of(x), x.shape.back()},
                  .b = {w.shape[0], w.shape[1], k.call.attrs.get_int("transpose_w") != 0},
                  .type = x.dtype,
                  .y_type = y.dtype,
                  .bias = k.has(2)},
                 rank);
}

Status launch_linear(const CudaCall& k) { return run(k, 0, 1, k.in(2), k.in(3)); }

// dW [K, N] = x^T dy, or transposed [N, K] = dy^T x: the left matrix is read down its columns either way.
template <int rank>
Result<std::unique_ptr<CudaPrepared>> prepare_linear_dw(CudaLibraries& libraries, const CudaCall& k) {
  const bool transposed = k.call.attrs.get_int("transpose_w");
  const Type &left = k.operands[transposed ? 1 : 0].type, &right = k.operands[transposed ? 0 : 1].type;
  const Type& dw = k.results[0].type;
  return prepare(libraries, k,
                 {.y = {dw.shape[0], dw.shape[1]},
                  .a = {rows_of(left), left.shape.back(), true},
                  .b = {rows_of(right), right.shape.back()},
                  .type = left.dtype,
                  .y_type = dw.dtype},
                 rank);
}

Status launch_linear_dw(const CudaCall& k) {
  const bool transposed = k.call.attrs.get_int("transpose_w");
  return run(k, transposed ? 1 : 0, transposed ? 0 : 1, nullptr, k.in(2));
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
    {"linear_dw", "cublaslt", launch_linear_dw, prepare_linear_dw<0>},
    {"linear_dw", "cublaslt_2", launch_linear_dw, prepare_linear_dw<1>},
    {"linear_dw", "cublaslt_3", launch_linear_dw, prepare_linear_dw<2>},
    {"linear_dw", "cublaslt_4", launch_linear_dw, prepare_linear_dw<3>},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_product_launchers() { return launchers; }

}  // namespace plimsoll
