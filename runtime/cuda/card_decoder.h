#pragma once

#include "runtime/data/image_decoder.h"

#include <memory>

namespace plimsoll {

// Decodes JPEGs on the card of this rank, with nvJPEG, in the memory that ir/machine/image_decoding.h states. Errors
// where nvJPEG, the memory or the card is missing.
Result<std::shared_ptr<ImageDecoder>> open_card_decoder();

}  // namespace plimsoll
