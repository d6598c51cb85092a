#pragma once

// Where a step's inputs come from: samples of a data set in an order that a seed decides, prepared by threads while
// earlier steps compute.

#include "ir/index_input.h"
#include "ir/type.h"
#include "runtime/data/image_transforms.h"
#include "runtime/data/sample_order.h"

#include <memory>
#include <vector>

namespace plimsoll {

class ImageDecoder;  // runtime/data/image_decoder.h

// A graph input as the plan wants it.
struct InputSpec {
  std::string name;
  Type type;
  bool whole = false;  // of several ranks all read it alike; of other inputs each has its own rows, which `type` counts
  std::optional<IndexInput> index;  // what the model does with integers; none: the plan does not say
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // The length of the batch that next() gives, of DataOptions::shorter; none: that of the longest inputs.
  virtual std::optional<int64_t> next_length() const { return std::nullopt; }
  // Returns once the next batch is read; its failure is next()'s.
  virtual void wait() {}
  // Copies the next batch, one tensor an input in the order of the specs, into `inputs`. Allocates nothing. Without
  // `inputs` the batch only counts as given.
  virtual Status next(llvm::ArrayRef<TensorView> inputs) = 0;
  // A number that no other batch of the program has, where next() always gives the same one; none: batches differ.
  virtual std::optional<int64_t> only_batch() const { return std::nullopt; }
  // The following next() gives the batch of this number, counted from 0 over all epochs: what a batch holds depends on
  // its number and the options alone, so that one integer says how far a run has read.
  virtual Status seek(int64_t batch) = 0;

  // 0: the source has no epochs.
  virtual int64_t batches_per_epoch() const { return 0; }
  // Samples of the batch of all ranks; the others of its rows repeat samples and have no label.
  virtual int64_t samples_in(int64_t batch) const { return samples_per_batch(); }
  virtual int64_t samples_per_batch() const { return 1; }  // rows of all ranks
  // For how long next() has waited for data so far, and how many threads read them.
  virtual double waited_s() const { return 0; }
  virtual int threads() const { return 0; }

  // What "per second" counts of the rank's rows that next() gave so far: tokens that are not padding, or samples when
  // the data are not tokens. 0: the source does not count.
  virtual int64_t items_read() const { return 0; }
  virtual llvm::StringRef item_name() const = 0;  // "tokens", "samples"
  // What the reader of the run should know of how inputs are filled; empty: nothing.
  virtual std::string note() const { return ""; }
  // What the cache of decoded samples did so far, for people; empty: there is none.
  virtual std::string describe_cache() const { return ""; }
  // How many images DataOptions::decoder decoded so far, for people; empty: there is no decoder.
  virtual std::string describe_decoding() const { return ""; }
};

// What becomes of samples that are left over when an epoch is no whole number of batches.
enum class LastBatch : uint8_t {
  Drop,  // they are not read; in the next epoch they are others
  Pad,   // the batch is filled with samples whose labels count nothing
  Fill,  // the batch is filled with samples as they are, for readers that ask samples_in how many count
};

// What a token file gives the labels at a position: by what the plan says of the model's loss, the token at that
// position for a model that shifts labels itself, or the one after it.
enum class LabelTokens : uint8_t { ByModel, Same, Next };

enum class PadSide : uint8_t { Right, Left };

// What becomes of a sample that is longer than the plan's input.
enum class LongSample : uint8_t {
  Refuse,
  Cut,    // its beginning is used
  Split,  // of documents in token files: it becomes several samples
};

// How samples of differing lengths become rows of one length.
struct Padding {
  std::optional<double> value;       // of padding; none: 0, of token files the token that ends a document
  std::optional<int64_t> label;      // of labels there; none: the one that the loss ignores
  PadSide side = PadSide::Right;     // where the padding is
  std::optional<LongSample> longer;  // none: Refuse, of token files Split
  // Inputs that are made from the padding, as NAME or NAME:OF with the input whose padding it is; none: those that are
  // named like masks and that the data lack.
  std::vector<std::string> masks;
};

// Inputs of a plan's step for shorter samples.
struct ShorterInputs {
  int64_t length = 0;
  std::vector<InputSpec> inputs;  // in the order of those of the longest step
};

struct DataOptions {
  uint64_t seed = 0;  // decides what is held out, and the order in which samples are read
  // Of several ranks each reads its rows of the same batches.
  int64_t rank = 0, ranks = 1;
  // Of a batch of all ranks. Where they have more rows, those behind the last sample repeat the first ones, and the
  // plan counts them nothing; 0: as many as there are rows.
  int64_t samples = 0;
  bool may_have_no_inputs = false;
  double hold_out = 0;  // share of the samples that training does not read, in [0, 1)
  SamplePart::Kind part = SamplePart::Kind::Training;
  bool shuffle = true;  // false: in the order of the files
  LastBatch last_batch = LastBatch::Drop;
  // By length, ascending. A batch is as short as the longest of its samples allows, and holds samples of about one
  // length; empty: all batches have the same length.
  std::vector<ShorterInputs> shorter;
  std::optional<ImageTransforms> transforms;  // of images; without them the center is shown, in [0, 1]
  std::optional<Padding> padding;             // of samples of differing lengths; without it as Padding() says
  int64_t document_end = -1;              // token that ends a document: no window of a token file crosses it; -1: none
  int64_t cache_bytes = 0;                // of memory, in which decoded images are kept from epoch to epoch
  std::shared_ptr<ImageDecoder> decoder;  // of JPEGs; null: the threads that read decode them
  int threads = 0;                        // that read; 0: one, or as many as there are cores where samples are decoded
  LabelTokens labels = LabelTokens::ByModel;
};

// By the name: .safetensors, .npz and .npy hold a tensor per input whose first dimension counts samples, and a folder
// holds such files as shards; a .tar file, a folder of such, and a folder of images hold images with labels; everything
// else is a token file (.u32 or .uint32 in the name: uint32, else uint16).
// Samples that are exactly one batch are used in every step, in the order of the file. Errors name the input, what the
// file has and what the plan needs. A stage of a pipeline may have no inputs; then nothing is read.
Result<std::unique_ptr<BatchSource>> open_data(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                               const DataOptions& options);

}  // namespace plimsoll
