#include "ir/support/free_memory.h"

#include "ir/support/strings.h"
#include "ir/support/units.h"

#include <sys/mman.h>

namespace plimsoll {

Status check_free_memory(int64_t bytes, llvm::StringRef what) {
  if (bytes <= 0) return Status::success();
  const auto size = static_cast<size_t>(bytes);
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    return system_error("this machine has too little free memory for " + what + ", which may take " +
                        format_bytes(bytes));
  munmap(at, size);
  return Status::success();
}

}  // namespace plimsoll
