#pragma once

// nvJPEG, opened when images are decoded on the card. Its functions are named here by hand, as nvjpeg.h 13.0 declares
// them, so that building needs no nvJPEG.

#include "ir/support/status.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace plimsoll {

struct nvjpegHandle;
struct nvjpegJpegState;
struct nvjpegJpegStream;

enum class NvjpegResult : int { Success = 0, AllocatorFailure = 5 };
enum class NvjpegBackend : int { GpuHybrid = 2, Hardware = 3 };
enum class NvjpegOutput : int { InterleavedRgb = 5 };
// Smooths colors that the file has at half the resolution, as libjpeg does.
inline constexpr unsigned nvjpeg_interpolates = 1 << 5;

struct NvjpegImage {
  unsigned char* channel[4];
  size_t pitch[4];
};

struct NvjpegAllocator {
  int (*take)(void* owner, void** at, size_t bytes, cudaStream_t stream);
  int (*give_back)(void* owner, void* at, size_t bytes, cudaStream_t stream);
  void* owner;
};

struct NvjpegFunctions {
  NvjpegResult (*create)(NvjpegBackend backend, NvjpegAllocator* device, NvjpegAllocator* pinned, unsigned flags,
                         nvjpegHandle** handle);
  NvjpegResult (*destroy)(nvjpegHandle* handle);
  NvjpegResult (*create_state)(nvjpegHandle* handle, nvjpegJpegState** state);
  NvjpegResult (*destroy_state)(nvjpegJpegState* state);
  NvjpegResult (*create_stream)(nvjpegHandle* handle, nvjpegJpegStream** stream);
  NvjpegResult (*destroy_stream)(nvjpegJpegStream* stream);
  NvjpegResult (*parse)(nvjpegHandle* handle, const unsigned char* data, size_t bytes, int save_metadata,
                        int save_stream, nvjpegJpegStream* stream);
  // Sets `unsupported` to 0 where a batch may have the image.
  NvjpegResult (*supports)(nvjpegHandle* handle, nvjpegJpegStream* stream, int* unsupported);
  NvjpegResult (*begin_batches)(nvjpegHandle* handle, nvjpegJpegState* state, int images, int threads,
                                NvjpegOutput output);
  NvjpegResult (*decode_batch)(nvjpegHandle* handle, nvjpegJpegState* state, const unsigned char* const* data,
                               const size_t* bytes, NvjpegImage* images, cudaStream_t stream);
};

// Errors where the library is not found. The functions stay.
Result<const NvjpegFunctions*> open_nvjpeg_functions();

}  // namespace plimsoll
