#pragma once

#include "runtime/cuda/compiled_kernels.h"

#include <map>

namespace plimsoll {

// The generated kernels of a plan, loaded on the card. Not before a card is chosen.
class GeneratedKernels {
 public:
  GeneratedKernels() = default;
  GeneratedKernels(const GeneratedKernels&) = delete;
  ~GeneratedKernels();

  // Compiles and loads those of the sources that are not loaded yet, all at once.
  Status compile(llvm::ArrayRef<FusedSource> sources, int compute_capability);
  // The driver's handle of a kernel that was compiled, or of another one in its text.
  Result<void*> function(const std::string& name, const char* suffix = "") const;

 private:
  std::map<std::string, void*> modules_;  // by the kernel's name
};

}  // namespace plimsoll
