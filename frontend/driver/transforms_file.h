#pragma once

#include "runtime/data/batch_source.h"

namespace plimsoll {

// What a file says; none where it has no line about that.
struct Transforms {
  std::optional<ImageTransforms> image;
  std::optional<Padding> padding;
};

// The section [transforms] of a TOML file, or of a file without sections all of it: docs/data.md has the names. Names
// that are not known and values that make no sense are errors.
Result<Transforms> read_transforms(const std::string& path);

}  // namespace plimsoll
