#pragma once

// NumPy's files: .npy holds one array, .npz is a zip archive of them.

#include "ir/type.h"

#include <vector>

namespace plimsoll {

struct NamedTensor {
  std::string name;  // "" for an .npy file; the member's name without ".npy" for .npz
  Tensor tensor;
};

// C order only; little-endian numbers and bools. Archive members are stored or deflated.
Result<std::vector<NamedTensor>> read_numpy(llvm::StringRef path);

}  // namespace plimsoll
