#pragma once

// Saves a base of 4-bit codes for other programs.

#include "runtime/session.h"

namespace plimsoll {

// Checks before hours of training that `path` can be written, is none of `inputs`, and that the plan has weights in
// NF4: bitsandbytes' files have no other codes of ours.
Status check_quantized_target(const std::string& path, const Plan& plan, llvm::ArrayRef<llvm::StringRef> inputs);

// Writes the model's weights as the plan stores them to a .safetensors file: codes, scales, code books and settings of
// quantised ones under the names and in the bytes of bitsandbytes' files, all others in the plan's types. Weights that
// the model's file has transposed are turned in it. --weights reads such a file, as does transformers.
// Every rank calls it; the first one writes.
Status save_quantized(Session& session, const std::string& path);

}  // namespace plimsoll
