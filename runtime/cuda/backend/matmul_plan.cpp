#include "runtime/cuda/backend/matmul_plan.h"

namespace plimsoll {
namespace {

constexpr int max_choices = 4;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::F64: return CUDA_R_64F;
    case DType::BF16: return CUDA_R_16BF;
    case DType::F16: return CUDA_R_16F;
    case DType::F8E4M3: return CUDA_R_8F_E4M3;
    case DType::F8E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

// The operands change places, so b is the library's A and y's columns are its rows.
cublasLtEpilogue_t library_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::None: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::Bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::GeluGradient: return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::RowSumsOfA: return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::ColumnSumsOfB: return CUBLASLT_EPILOGUE_BGRADA;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

#if CUBLAS_VERSION >= 120900
cublasLtMatmulMatrixScale_t library_scales(F8Scales scales) {
  switch (scales) {
    case F8Scales::Tensor: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case F8Scales::Rows: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case F8Scales::Blocks: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case F8Scales::Tiles: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}
#endif

Status refused(const llvm::Twine& what, cublasStatus_t status) {
  return system_error("cuBLASLt: " + what + ": " + cublasLtGetStatusString(status));
}

// Row-major [rows, columns] is column-major [columns, rows] with the rows' distance as its leading dimension.
Status create_layout(cublasLtMatrixLayout_t& layout, const Matrix& m, DType dtype, int64_t batch, int64_t step) {
  cublasStatus_t status = cublasLtMatrixLayoutCreate(&layout, data_type(dtype), static_cast<uint64_t>(m.columns),
                                                     static_cast<uint64_t>(m.rows), m.step);
  if (status != CUBLAS_STATUS_SUCCESS) return refused("matrix", status);
  if (batch <= 1) return Status::success();
  const auto count = static_cast<int32_t>(batch);
  cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
  cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
  return Status::success();
}

}  // namespace

PreparedMatmul::~PreparedMatmul() {
  if (operation_) cublasLtMatmulDescDestroy(operation_);
  for (cublasLtMatrixLayout_t layout : {a_, b_, y_})
    if (layout) cublasLtMatrixLayoutDestroy(layout);
}

Status PreparedMatmul::create(CudaLibraries& libraries, const Matmul& matmul, int64_t workspace_bytes, int rank) {
  lt_ = libraries.lt();
  type_ = matmul.type;
  y_bytes_ = dtype_bytes(matmul.y_type);
  y_at_ = matmul.y_at;
  if (Status s = describe(libraries, matmul)) return s;
  return choose(workspace_bytes, rank);
}

Status PreparedMatmul::describe(CudaLibraries& libraries, const Matmul& p) {
  const bool f64 = p.type == DType::F64;
  const bool tf32 = p.type == DType::F32 && libraries.tf32();
  cublasComputeType_t compute = f64 ? CUBLAS_COMPUTE_64F : tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  if (cublasStatus_t status = cublasLtMatmulDescCreate(&operation_, compute, f64 ? CUDA_R_64F : CUDA_R_32F))
    return refused("operation", status);
  const cublasOperation_t first = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
  cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
  if (Status s = describe_epilogue(p)) return s;
  if (Status s = describe_scales(p)) return s;
  batch_ = collapse(p.batch);
  outer_ = batch_.iterations();
  // The innermost dimension of the batch is a strided batch of one call; those around it are calls of their own.
  const int64_t count = batch_.sizes[batch_.rank - 1];
  outer_ /= count;
  const auto& steps = batch_.strides;
  const int inner = batch_.rank - 1;
  if (Status s = create_layout(a_, p.b, p.b_type, count, steps[2][inner])) return s;
  if (Status s = create_layout(b_, p.a, p.type, count, steps[1][inner])) return s;
  return create_layout(y_, p.y, p.y_type, count, steps[0][inner]);
}

// Everything but None and Bias is refused by cards and types that the library has no kernel for, here or in choose().
Status PreparedMatmul::describe_epilogue(const Matmul& p) {
  const cublasLtEpilogue_t epilogue = library_epilogue(p.epilogue);
  auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    const cublasStatus_t status = cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value);
    return status == CUBLAS_STATUS_SUCCESS ? Status::success() : refused("epilogue", status);
  };
  if (Status s = set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)) return s;
  if (p.epilogue == Epilogue::None) return Status::success();
  if (p.epilogue != Epilogue::GeluGradient) return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.epilogue_data);
  if (Status s = set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.y.columns)) return s;
  return set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.epilogue_data);
}

// b is the library's A.
Status PreparedMatmul::describe_scales(const Matmul& p) {
  if (!p.a_scale) return Status::success();
  const int8_t fast = p.fast_sums ? 1 : 0;
  for (cublasStatus_t status :
       {cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p.b_scale, sizeof p.b_scale),
        cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p.a_scale, sizeof p.a_scale),
        cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast)})
    if (status != CUBLAS_STATUS_SUCCESS) return refused("scales", status);
  if (p.a_scales == F8Scales::Tensor && p.b_scales == F8Scales::Tensor) return Status::success();
#if CUBLAS_VERSION >= 120900
  const cublasLtMatmulMatrixScale_t first = library_scales(p.b_scales), second = library_scales(p.a_scales);
  for (cublasStatus_t status :
       {cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &first, sizeof first),
        cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &second, sizeof second)})
    if (status != CUBLAS_STATUS_SUCCESS) return refused("scales of rows or blocks", status);
  return Status::success();
#else
  return system_error("cuBLASLt: scales of rows or blocks need version 12.9, this build has " +
                      llvm::Twine(CUBLAS_VERSION / 10000) + "." + llvm::Twine(CUBLAS_VERSION / 100 % 100));
#endif
}

// Ranks are the library's own reckoning, the best first: they depend on shapes, card and version alone, so that a plan
// gives the same bits again.
Status PreparedMatmul::choose(int64_t workspace_bytes, int rank) {
  cublasLtMatmulPreference_t preference = nullptr;
  if (cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference)) return refused("preference", status);
  const auto most = static_cast<uint64_t>(workspace_bytes);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
  int found = 0;
  cublasLtMatmulHeuristicResult_t choices[max_choices];
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(lt_, operation_, a_, b_, y_, y_, preference, rank + 1, choices, &found);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || found <= rank)
    return refused("no algorithm of rank " + llvm::Twine(rank + 1), status);
  choice_ = choices[rank];
  return Status::success();
}

Status PreparedMatmul::run(const CudaCall& k, const void* a, const void* b, const void* addend) {
  Status failed = Status::success();
  walk_outer(batch_, batch_.rank > 0 ? 1 : 0, 0, outer_, [&](const std::array<int64_t, 3>& at) {
    if (!failed) failed = run_one(k, at, a, b, addend);
  });
  return failed;
}

// y = a b + beta c: without an addend beta is 0, and c is not read.
Status PreparedMatmul::run_one(const CudaCall& k, const std::array<int64_t, 3>& at, const void* a, const void* b,
                               const void* addend) {
  const float one = 1, beta = addend ? 1 : 0;
  const double one64 = 1, beta64 = beta;
  const bool f64 = type_ == DType::F64;
  const int64_t bytes = dtype_bytes(type_);
  const int64_t y_offset = (y_at_ + at[0]) * y_bytes_;
  std::byte* y = k.out<std::byte>(0) + y_offset;
  const std::byte* c = addend ? static_cast<const std::byte*>(addend) + y_offset : y;
  cublasStatus_t status = cublasLtMatmul(
      lt_, operation_, f64 ? static_cast<const void*>(&one64) : &one, static_cast<const std::byte*>(b) + at[2] * bytes,
      a_, static_cast<const std::byte*>(a) + at[1] * bytes, b_, f64 ? static_cast<const void*>(&beta64) : &beta, c, y_,
      y, y_, &choice_.algo, k.workspace, static_cast<size_t>(k.workspace_bytes), k.stream);
  return status == CUBLAS_STATUS_SUCCESS ? Status::success() : refused("launch", status);
}

Result<std::unique_ptr<CudaPrepared>> prepare_matmul_plan(CudaLibraries& libraries, const CudaCall& k,
                                                          const Matmul& matmul) {
  auto prepared = std::make_unique<PreparedMatmul>();
  if (Status s = prepared->create(libraries, matmul, k.workspace_bytes, k.algorithm)) return s;
  return prepared;
}

}  // namespace plimsoll
