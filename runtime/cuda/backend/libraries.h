#pragma once

// The handles of NVIDIA's libraries, made once for a plan, and what launchers may ask about the card.

#include "runtime/cuda/backend/cudnn_plans.h"
#include "runtime/cuda/backend/generated_kernels.h"
#include "runtime/cuda/backend/nccl.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace plimsoll {

class CudaLibraries {
 public:
  CudaLibraries() = default;
  CudaLibraries(const CudaLibraries&) = delete;
  ~CudaLibraries();
  // `tf32`: products of f32 matrices may round their operands to TF32.
  Status create(bool tf32);
  // Instead of create(): cuDNN plans for a card that is not here, and nothing else.
  void plan_for(const CudnnCard& card) { cudnn_card_ = card; }

  cublasLtHandle_t lt() const { return lt_; }
  // Its handle is made when first asked for: plans without convolution or attention do not pay for it.
  Result<CudnnCard> cudnn();
  Nccl& nccl(MeshAxis axis) { return nccl_[static_cast<size_t>(axis)]; }
  CudnnPlans& cudnn_plans() { return cudnn_plans_; }
  GeneratedKernels& generated() { return generated_; }
  bool tf32() const { return tf32_; }
  const cudaDeviceProp& card() const { return card_; }

 private:
  cublasLtHandle_t lt_ = nullptr;
  CudnnCard cudnn_card_;
  CudnnPlans cudnn_plans_;
  GeneratedKernels generated_;
  std::array<Nccl, mesh_axis_count> nccl_;  // by axis of the mesh
  cudaDeviceProp card_{};
  bool tf32_ = false;
};

}  // namespace plimsoll
