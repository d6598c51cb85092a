#pragma once

#include "runtime/cuda/backend_abi.h"

namespace plimsoll {

// As CudaBackend::make_jpeg_decoder.
CudaOutcome make_jpeg_decoder(int card, std::unique_ptr<CudaJpegDecoder>& decoder);

}  // namespace plimsoll
