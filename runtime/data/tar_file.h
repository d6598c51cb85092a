#pragma once

// The members of a tar archive, which stay where they are: an index of names and places, for reading at random.

#include "ir/support/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll {

struct TarMember {
  std::string name;
  int64_t offset = 0, bytes = 0;  // of its content in the archive
};

// Regular files of a POSIX (ustar, pax) or GNU archive that is not compressed, in their order.
Result<std::vector<TarMember>> list_tar(llvm::StringRef path);

}  // namespace plimsoll
