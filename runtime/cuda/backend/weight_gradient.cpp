#include "runtime/cuda/backend/weight_gradient.h"

#include "kernels/cuda/matmul/weight_gradient.h"
#include "runtime/cuda/backend/libraries.h"
#include "runtime/cuda/find_symbol.h"
#include "runtime/kernels/matmul.h"

#include <cuda.h>
#include <dlfcn.h>

namespace plimsoll {
namespace {

struct PreparedWeightGradient : CudaPrepared {
  explicit PreparedWeightGradient(const cuda::WeightGradientTiles& tiles) : tiles(tiles) {}

  cuda::WeightGradientTiles tiles;
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
};

// Operand [depth, width], which `width` elements of 16 bits apart lie row after row.
Status encode_map(const PreparedWeightGradient& prepared, CUtensorMap& map, const CudaCall& k, llvm::StringRef name,
                  int64_t width) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(prepared.tiles.sizes.depth)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(width * dtype_bytes(k.call[name].dtype))};
  const cuuint32_t every_element[] = {1, 1};
  const CUtensorMapDataType type =
      k.call[name].dtype == DType::BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result =
      prepared.encode(&map, type, 2, const_cast<void*>(k.in(name)), sizes, row_bytes, cuda::weight_gradient_box,
                      every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::success();
  return system_error("the driver refuses the map of " + llvm::Twine(name) + " with error " + llvm::Twine(result));
}

}  // namespace

// On a card unlike the plan's, tiles are chosen anew within the plan's workspace; on one like it they are the same.
Result<std::unique_ptr<CudaPrepared>> prepare_weight_gradient(CudaLibraries& libraries, const CudaCall& k) {
  auto prepared = std::make_unique<PreparedWeightGradient>(
      cuda::choose_weight_gradient_tiles(weight_gradient_sizes(k.call), libraries.card().multiProcessorCount,
                                         k.workspace_bytes / static_cast<int64_t>(sizeof(float))));
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver || !find_symbol(driver, "cuTensorMapEncodeTiled", prepared->encode))
    return system_error("NVIDIA's driver has no cuTensorMapEncodeTiled, which Hopper's copies of tiles need");
  return prepared;
}

Status launch_weight_gradient(const CudaCall& k) {
  const auto& prepared = *static_cast<const PreparedWeightGradient*>(k.prepared);
  const WeightGradientSides sides(k.call);
  cuda::WeightGradientCall call{.tiles = prepared.tiles,
                                .type = k.in_scalar("x"),
                                .y_type = k.out_scalar("dw"),
                                .dw = k.out("dw"),
                                .dbias = k.out("dbias"),
                                .addend = k.in("addend"),
                                .workspace = k.scratch<float>()};
  if (Status s = encode_map(prepared, call.left, k, sides.left, prepared.tiles.sizes.rows)) return s;
  if (Status s = encode_map(prepared, call.right, k, sides.right, prepared.tiles.sizes.columns)) return s;
  return launched(k, cuda::weight_gradient(call, k.stream));
}

}  // namespace plimsoll
