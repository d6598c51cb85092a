#pragma once

// What training data are to the loader, wherever they come from: a number of samples with the same fields, any of which
// can be read at any time.

#include "ir/support/philox.h"
#include "runtime/data/batch_source.h"

namespace plimsoll {

struct Field {
  std::string name;
  Type type;               // of one sample, without a dimension of the batch
  bool per_sample = true;  // false: one tensor for all samples
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t samples() const = 0;
  virtual llvm::ArrayRef<Field> fields() const = 0;
  virtual std::string where() const = 0;  // for messages: the file or folder

  // Writes a field of the sample to `into`, which has the field's type. Random transforms of the sample draw from
  // `random`, which differs from epoch to epoch. Several threads may call this at once. A field that is not per sample
  // is read with any sample.
  virtual Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream& random) const = 0;

  // Whether a sample takes so long to read that every core should help.
  virtual bool is_computed() const { return false; }
};

}  // namespace plimsoll
