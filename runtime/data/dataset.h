#pragma once

// What training data are to the loader, wherever they come from: a number of samples with the same fields, any of which
// can be read at any time.

#include "ir/support/philox.h"
#include "runtime/data/batch_source.h"
#include "runtime/data/image_decoder.h"

namespace plimsoll {

struct Field {
  std::string name;
  Type type;               // of one sample, without a dimension of the batch
  bool per_sample = true;  // false: one tensor for all samples
  bool varies = false;     // samples differ in length: `type` is that of one element of a sample's first dimension
};

// Room that one reading thread reuses from sample to sample.
struct ReadBuffers {
  std::vector<uint8_t> file, sample;
  Image image;
  std::vector<float> row, planes;
  std::vector<std::vector<uint8_t>> files;  // of samples that are read together
  std::vector<JpegJob> jobs;
};

// A row of a batch: which sample it shows, and where its bytes go.
struct SampleRow {
  int64_t sample = 0;
  RandomStream random;
  TensorView into;
};

// PyTorch's losses ignore this label unless they are told otherwise.
inline constexpr int64_t ignored_label = -100;

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t samples() const = 0;
  virtual llvm::ArrayRef<Field> fields() const = 0;
  virtual std::string where() const = 0;  // for messages: the file or folder
  // For messages: the file of the sample and its place there.
  virtual std::string where_is(int64_t sample) const { return where() + ": sample " + std::to_string(sample); }
  // What the reader of the run should know of how inputs are filled; empty: nothing.
  virtual std::string note() const { return ""; }

  // Of a field that varies: the length of the sample's first dimension.
  virtual int64_t length(int64_t sample, size_t field) const { return 0; }
  // Of a sample whose rows may be shorter than the plan's longest inputs: how long they must be at least; none: they
  // cannot be shorter.
  virtual std::optional<int64_t> least_length(int64_t sample) const { return std::nullopt; }
  // Whether read() gives the field at any length of at least this.
  virtual bool fits_lengths(size_t field) const { return false; }
  // Tokens of the sample that are no padding; none: the data do not know.
  virtual std::optional<int64_t> tokens_in(int64_t sample) const { return std::nullopt; }

  // Writes a field of the sample to `into`, which has the field's type, of one that varies with its length. Random
  // transforms of the sample draw from `random`, which differs from epoch to epoch. Several threads may call this at
  // once. A field that is not per sample is read with any sample.
  virtual Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream& random,
                      ReadBuffers& buffers) const = 0;

  // The same of several rows, of samples that a data set may read together more quickly than one by one.
  virtual Status read_rows(size_t field, llvm::ArrayRef<SampleRow> rows, ReadBuffers& buffers) const {
    for (const SampleRow& row : rows)
      if (Status s = read(row.sample, field, row.into, row.random, buffers)) return s;
    return Status::success();
  }
  // How many rows read_rows() likes to be given.
  virtual int64_t rows_together() const { return 1; }

  // Called once all rows of a batch are read, with a tensor per input in the order in which the set was opened for
  // them: what a transform does with several samples at once.
  virtual void mix(llvm::ArrayRef<TensorView> batch, const RandomStream& random) const {}
  // Whether labels are made from other numbers, which are checked as they are read.
  virtual bool makes_labels() const { return false; }
  // What the cache of decoded samples did, for people; empty: there is none.
  virtual std::string describe_cache() const { return ""; }
  virtual std::string describe_decoding() const { return ""; }  // as BatchSource's
  // How many threads should read; 0: as is_computed() says.
  virtual int threads_wanted() const { return 0; }
  // Whether a sample takes so long to read that every core should help.
  virtual bool is_computed() const { return false; }
};

}  // namespace plimsoll
