#pragma once

// Machine code of generated kernels, made by NVRTC. That needs no GPU: a plan's kernels can be compiled wherever the
// library is. Code is kept in a folder of the user's, by a hash of the text, the architecture and NVRTC's version, so
// that a plan is compiled once on a machine.

#include "runtime/kernels/fused_source.h"

namespace plimsoll {

struct KernelCode {
  std::string name;   // of the function in it
  std::string cubin;  // for the architecture that was asked for
};

// Code for each source, in their order; `compute_capability` is 90 for 9.0. What is not in the folder is compiled in
// parallel. Errors where NVRTC is missing, does not know the architecture, or refuses a text.
Result<std::vector<KernelCode>> compile_kernels(llvm::ArrayRef<FusedSource> sources, int compute_capability);

// Whether NVRTC can be opened here.
bool has_nvrtc();

}  // namespace plimsoll
