#pragma once

#include "runtime/data/image_transforms.h"

namespace plimsoll {

// The section [transforms] of a TOML file, or of a file without sections all of it: docs/data.md has the names. Names
// that are not known and values that make no sense are errors.
Result<ImageTransforms> read_transforms(const std::string& path);

}  // namespace plimsoll
