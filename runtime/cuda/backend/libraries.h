#pragma once

// The handles of NVIDIA's libraries, made once for a plan, and what launchers may ask about the card.

#include "ir/status.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

struct cudnnContext;

namespace plimsoll {

class CudaLibraries {
 public:
  CudaLibraries() = default;
  CudaLibraries(const CudaLibraries&) = delete;
  ~CudaLibraries();
  // `tf32`: products of f32 matrices may round their operands to TF32.
  Status create(bool tf32);

  cublasLtHandle_t lt() const { return lt_; }
  // Made when first asked for: plans without convolution or attention do not pay for it.
  Result<cudnnContext*> cudnn();
  bool tf32() const { return tf32_; }
  const cudaDeviceProp& card() const { return card_; }

 private:
  cublasLtHandle_t lt_ = nullptr;
  cudnnContext* cudnn_ = nullptr;
  cudaDeviceProp card_{};
  bool tf32_ = false;
};

}  // namespace plimsoll
