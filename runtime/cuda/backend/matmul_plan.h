#pragma once

// One matmul through cuBLASLt: y = a b, plus an addend, then an epilogue, for a batch. Its matrices are
// column-major, so each row-major matmul is asked for as y^T = b^T a^T: the operands change places and nothing is
// moved.

#include "ir/f8_scales.h"
#include "kernels/strides.h"
#include "runtime/cuda/backend/launcher.h"
#include "runtime/cuda/backend/libraries.h"

namespace plimsoll {

// A row-major matrix in memory, or its transpose.
struct Matrix {
  int64_t rows, columns;  // as stored
  bool transposed = false;
  int64_t step = columns;  // elements from one row to the next
};

enum class Epilogue : uint8_t {
  None,
  Bias,          // plus epilogue_data [columns of y]
  GeluGradient,  // times the slope of gelu's tanh form at epilogue_data, which lies as y does
  RowSumsOfA,    // and epilogue_data [rows of y] takes the sums of a's rows
  ColumnSumsOfB  // and epilogue_data [columns of y] takes the sums of b's columns
};

// y [rows, columns] = a b. `batch` walks over y, a and b; a 0 step repeats a matrix.
struct Matmul {
  Matrix y, a, b;
  DType type, b_type = type, y_type;
  Epilogue epilogue = Epilogue::None;
  const void* epilogue_data = nullptr;
  LoopNest<3> batch{};
  // Of 8-bit floats: what a and b are multiplied by, and whether the library may sum with fewer bits than f32 has. Both
  // lie as if the dimension that is summed over were the last one.
  const float *a_scale = nullptr, *b_scale = nullptr;
  F8Scales a_scales = F8Scales::Tensor, b_scales = F8Scales::Tensor;
  bool fast_sums = false;
  int64_t y_at = 0;  // elements of result 0, and of the addend, that lie before y
};

class PreparedMatmul : public CudaPrepared {
 public:
  PreparedMatmul() = default;
  PreparedMatmul(const PreparedMatmul&) = delete;
  ~PreparedMatmul() override;

  // Takes cuBLASLt's choice of that rank among the algorithms that need no more workspace; fails where it has fewer.
  Status create(CudaLibraries& libraries, const Matmul& matmul, int64_t workspace_bytes, int rank);
  // y lies in result 0 of the call, which may be the addend's bytes.
  Status run(const CudaCall& k, const void* a, const void* b, const void* addend);

 private:
  Status describe(CudaLibraries& libraries, const Matmul& matmul);
  Status describe_epilogue(const Matmul& matmul);
  Status describe_scales(const Matmul& matmul);
  Status choose(int64_t workspace_bytes, int rank);
  Status run_one(const CudaCall& k, const std::array<int64_t, 3>& at, const void* a, const void* b, const void* addend);

  cublasLtHandle_t lt_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, y_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
  LoopNest<3> batch_{};
  int64_t outer_ = 1, y_bytes_ = 4, y_at_ = 0;
  DType type_ = DType::F32;
};

Result<std::unique_ptr<CudaPrepared>> prepare_matmul_plan(CudaLibraries& libraries, const CudaCall& k,
                                                          const Matmul& matmul);

}  // namespace plimsoll
