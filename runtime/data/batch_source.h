#pragma once

// Where a step's inputs come from: one batch repeated, or windows of a token file, prepared by a reader
// thread while the previous step computes.

#include "ir/type.h"

#include <memory>
#include <vector>

namespace plimsoll {

// A graph input as the plan wants it.
struct InputSpec {
  std::string name;
  Type type;
  bool whole = false;  // of several ranks all read it alike; of other inputs each has its own rows, which `type` counts
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Copies the next batch, one tensor an input in the order of the specs, into `inputs`. Allocates nothing.
  virtual Status next(llvm::ArrayRef<TensorView> inputs) = 0;
  // What a batch counts as in "per second": tokens, or samples when the data are not tokens.
  virtual int64_t items_per_batch() const = 0;
  virtual llvm::StringRef item_name() const = 0;  // "tokens", "samples"
};

struct DataOptions {
  uint64_t seed = 0;  // which windows of a token file, in which order
  // Of several ranks each reads its rows of the same batches.
  int64_t rank = 0, ranks = 1;
  bool may_have_no_inputs = false;
};

// By the file's name: .safetensors, .npz and .npy hold one tensor an input; everything else is a token file
// (.u32 or .uint32 in the name: uint32, else uint16). Errors name the input, what it has and what the plan needs.
// A stage of a pipeline may have no inputs; then nothing is read.
Result<std::unique_ptr<BatchSource>> open_data(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                               const DataOptions& options);

}  // namespace plimsoll
