#pragma once

// Measured times of kernels: what `run --profile` and `compile --tune` find out on a device, for plans that are made
// anywhere. A file of JSON lines that may be joined with others.

#include "ir/machine/kernel_catalog.h"

#include "llvm/ADT/StringMap.h"

#include <memory>

namespace plimsoll {

class TimingCache {
 public:
  // Times of other devices are read and kept, for save().
  static Result<TimingCache> load(llvm::StringRef path);
  // No times where there is no such file yet.
  static Result<TimingCache> load_if_there(llvm::StringRef path);
  Status save(llvm::StringRef path) const;

  // Later times of the same call replace earlier ones.
  void add(llvm::StringRef device, llvm::StringRef op, llvm::StringRef kernel, const OpCall& call, double microseconds);
  std::optional<double> find(llvm::StringRef device, llvm::StringRef op, llvm::StringRef kernel,
                             const OpCall& call) const;
  size_t size() const { return times_.size(); }

 private:
  llvm::StringMap<double> times_;  // "h200 linear/cublaslt (bf16[2,3], bf16[4,3]) {transpose_w=1}"
};

// The candidates of `base` with their measured times. Those of a call that were measured change places so that the
// fastest of them comes first; others keep theirs, since a prediction beside a measured time may only be too short.
std::unique_ptr<KernelCatalog> timed_catalog(std::unique_ptr<KernelCatalog> base, std::string device,
                                             std::shared_ptr<const TimingCache> times);

}  // namespace plimsoll
