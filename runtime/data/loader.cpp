#include "runtime/data/loader.h"

#include "ir/plan/plan.h"
#include "runtime/data/batch_order.h"
#include "runtime/data/check_numbers.h"
#include "runtime/data/match_inputs.h"
#include "runtime/data/padding.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

namespace plimsoll {
namespace {

// The stream of a batch's own random numbers; those of its rows have the rows' numbers.
constexpr int64_t mix_stream = -1;

// A thread reads or copies so much in a few milliseconds, or takes so many samples' values of one input from a file.
constexpr int64_t bytes_per_thread = int64_t{16} << 20, reads_per_thread = 4096;

int64_t bytes_of(llvm::ArrayRef<InputSpec> inputs) {
  int64_t bytes = 0;
  for (const InputSpec& input : inputs) bytes += input.type.bytes();
  return bytes;
}

// By at most so many threads.
void copy_bytes(char* to, const char* from, int64_t bytes, int threads) {
  const int64_t part = std::max(
      bytes_per_thread, static_cast<int64_t>(llvm::divideCeil(static_cast<uint64_t>(bytes), std::max(threads, 1))));
  std::vector<std::thread> others;
  for (int64_t first = part; first < bytes; first += part)
    others.emplace_back(
        [=] { std::memcpy(to + first, from + first, static_cast<size_t>(std::min(part, bytes - first))); });
  std::memcpy(to, from, static_cast<size_t>(std::min(part, bytes)));
  for (std::thread& other : others) other.join();
}

struct Feed {
  size_t field;
  bool per_sample;
  std::optional<int64_t> no_label;  // of integer labels: what a row without a sample gets, which counts nothing
  std::vector<Type> rows;           // of one sample, as the plan's steps have it, the longest last
};

// The first input with a row per sample; null where none has.
const InputSpec* first_of_samples(llvm::ArrayRef<InputSpec> inputs) {
  const auto* found = llvm::find_if(inputs, [&](const InputSpec& input) { return has_rows_of_samples(input, inputs); });
  return found == inputs.end() ? nullptr : found;
}

// Integer batches of [rows, time] are counted in tokens.
bool counts_tokens(llvm::ArrayRef<InputSpec> inputs) {
  const InputSpec* first = first_of_samples(inputs);
  return first && first->type.rank() == 2 && !is_float(first->type.dtype);
}

int64_t tokens_of(llvm::ArrayRef<InputSpec> inputs) { return first_of_samples(inputs)->type.elements(); }

// The input that is zero where a batch of tokens is padded: it is called a mask and has their shape.
std::optional<size_t> padding_mask_of(llvm::ArrayRef<InputSpec> inputs) {
  if (!counts_tokens(inputs)) return std::nullopt;
  const Shape& tokens = first_of_samples(inputs)->type.shape;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].type.shape == tokens && llvm::StringRef(llvm::StringRef(inputs[i].name).lower()).contains("mask"))
      return i;
  return std::nullopt;
}

int64_t next_only_batch() {
  static std::atomic<int64_t> next = 0;
  return next++;
}

int64_t samples_of_batch(llvm::ArrayRef<InputSpec> inputs, const DataOptions& options) {
  return options.samples > 0 ? options.samples : rows_of_batch(inputs) * options.ranks;
}

class Loader : public BatchSource {
 public:
  Loader(std::unique_ptr<Dataset> data, std::vector<InputSpec> inputs, std::vector<Feed> feeds, BatchOrder order,
         const DataOptions& options, int threads)
      : data_(std::move(data)),
        inputs_(std::move(inputs)),
        feeds_(std::move(feeds)),
        order_(std::move(order)),
        seed_(options.seed),
        rows_(rows_of_batch(inputs_)),
        samples_(samples_of_batch(inputs_, options)),
        first_row_(options.rank * rows_),
        hides_labels_(options.last_batch == LastBatch::Pad),
        padding_mask_(padding_mask_of(inputs_)),
        only_batch_(order_.has_one_batch() && !data_->is_computed() ? std::optional(next_only_batch()) : std::nullopt),
        rows_per_task_(data_->is_computed() ? std::min(rows_, data_->rows_together())
                                            : (rows_ + threads - 1) / threads) {
    for (const ShorterInputs& shorter : options.shorter) lengths_.push_back(shorter.length);
    for (RingBatch& batch : ring_) {
      for (const InputSpec& input : inputs_) batch.tensors.emplace_back(input.type);
      for (const Tensor& tensor : batch.tensors) batch.views.push_back(tensor.view());
    }
    for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~Loader() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  std::optional<int64_t> next_length() const override {
    const size_t length = order_.length_of(next_);
    return length < lengths_.size() ? std::optional(lengths_[length]) : std::nullopt;
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ring_of(next_).is_ready || failure_; });
  }

  Status next(llvm::ArrayRef<TensorView> inputs) override {
    std::unique_lock lock(mutex_);
    const RingBatch& batch = ring_of(next_);
    auto is_over = [&] { return batch.is_ready || failure_; };
    if (!is_over()) {
      const auto start = std::chrono::steady_clock::now();
      changed_.wait(lock, is_over);
      waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    if (!batch.is_ready) return llvm::make_error<Diag>(*failure_);
    lock.unlock();
    for (size_t i = 0; i < inputs.size(); ++i)
      copy_bytes(inputs[i].as<char>(), batch.tensors[i].view().as<char>(), inputs[i].type.bytes(), threads());
    lock.lock();
    if (!only_batch_) ring_of(next_).is_ready = false;
    items_read_ += batch.items;
    ++next_;
    lock.unlock();
    changed_.notify_all();
    return Status::success();
  }

  std::optional<int64_t> only_batch() const override { return only_batch_; }

  // What was read ahead is dropped.
  Status seek(int64_t batch) override {
    {
      std::unique_lock lock(mutex_);
      if (batch == next_) return Status::success();
      if (only_batch_) return next_ = batch, Status::success();
      paused_ = true;
      changed_.wait(lock, [&] { return busy_ == 0; });
      paused_ = false;
      next_ = next_task_batch_ = batch;
      next_task_row_ = 0;
      for (RingBatch& ring : ring_) ring.rows_read = 0, ring.is_ready = false;
    }
    changed_.notify_all();
    return Status::success();
  }

  int64_t batches_per_epoch() const override { return order_.batches_per_epoch(); }
  int64_t samples_in(int64_t batch) const override { return order_.samples_in(batch); }
  int64_t samples_per_batch() const override { return samples_; }
  double waited_s() const override {
    std::lock_guard lock(mutex_);
    return waited_s_;
  }
  std::string note() const override { return data_->note(); }
  std::string describe_cache() const override { return data_->describe_cache(); }
  std::string describe_decoding() const override { return data_->describe_decoding(); }
  int threads() const override { return static_cast<int>(workers_.size()); }
  int64_t items_read() const override { return items_read_; }
  llvm::StringRef item_name() const override { return counts_tokens(inputs_) ? "tokens" : "samples"; }

 private:
  struct RingBatch {
    std::vector<Tensor> tensors;  // one an input
    std::vector<TensorView> views;
    int64_t rows_read = 0;
    int64_t items = 0;  // samples, or tokens that are not padding
    bool is_ready = false;
    bool has_shared = false;  // what all samples share has been read and checked, and stays
  };
  struct Task {
    int64_t batch, row, rows;
  };
  // What one reading thread reuses from task to task.
  struct Scratch {
    ReadBuffers buffers;
    std::vector<Tensor> tensors;  // by input, of the data's dtype where it is not the plan's
    std::vector<SampleRow> rows;
  };

  RingBatch& ring_of(int64_t batch) {
    return only_batch_ ? ring_.front() : ring_[static_cast<size_t>(batch % batches_read_ahead)];
  }

  void work() {
    Scratch scratch;
    for (const Feed& feed : feeds_) scratch.tensors.emplace_back(data_->fields()[feed.field].type);
    scratch.rows.reserve(static_cast<size_t>(rows_per_task_));
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || has_task(); });
      if (stop_) return;
      const Task task = take_task();
      lock.unlock();
      Status status = read(task, scratch);
      lock.lock();
      if (!status)
        finish_rows(task, lock);
      else if (!failure_)
        failure_ = take_diag(std::move(status));
      else
        llvm::consumeError(std::move(status));
      --busy_;
      changed_.notify_all();
    }
  }

  // The thread that reads the last row of a batch mixes its rows, which nobody else sees meanwhile.
  void finish_rows(const Task& task, std::unique_lock<std::mutex>& lock) {
    RingBatch& batch = ring_of(task.batch);
    batch.rows_read += task.rows;
    if (batch.rows_read < rows_) return;
    lock.unlock();
    data_->mix(batch.views, {static_cast<int64_t>(seed_), task.batch, mix_stream});
    batch.items = items_in(batch, task.batch);
    lock.lock();
    batch.rows_read = 0;
    batch.is_ready = batch.has_shared = true;
  }

  // Rows that the batch was filled up with count nothing.
  int64_t items_in(const RingBatch& batch, int64_t number) const {
    const int64_t rows = std::clamp<int64_t>(order_.samples_in(number) - first_row_, 0, rows_);
    const int64_t items = counts_tokens(inputs_) ? tokens_of(inputs_) / rows_ * rows : rows;
    if (!counts_tokens(inputs_)) return items;
    if (const std::optional<int64_t> tokens = tokens_in_rows(number, rows)) return *tokens;
    if (!padding_mask_) return items;
    const TensorView& mask = batch.views[*padding_mask_];
    int64_t tokens = 0;
    for (int64_t i = 0; i < items; ++i) tokens += mask.get(i) != 0;
    return tokens;
  }

  // What the data know of the first rows' tokens; none: nothing.
  std::optional<int64_t> tokens_in_rows(int64_t batch, int64_t rows) const {
    int64_t tokens = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const std::optional<int64_t> own = data_->tokens_in(order_.sample(batch, first_row_ + row));
      if (!own) return std::nullopt;
      tokens += *own;
    }
    return tokens;
  }

  bool has_task() const {
    return !failure_ && !paused_ && next_task_batch_ < (only_batch_ ? 1 : next_ + batches_read_ahead);
  }

  Task take_task() {
    const Task task{next_task_batch_, next_task_row_, std::min(rows_per_task_, rows_ - next_task_row_)};
    ++busy_;
    next_task_row_ += task.rows;
    if (next_task_row_ == rows_) {
      next_task_row_ = 0;
      ++next_task_batch_;
    }
    return task;
  }

  Status read(const Task& task, Scratch& scratch) {
    for (size_t i = 0; i < feeds_.size(); ++i)
      if (Status s = read_input(task, i, scratch)) return s;
    return Status::success();
  }

  Status read_input(const Task& task, size_t input, Scratch& scratch) {
    const Feed& feed = feeds_[input];
    if (!feed.per_sample && lengths_.empty() && ring_of(task.batch).has_shared) return Status::success();
    const size_t length = order_.length_of(task.batch);
    scratch.rows.clear();
    for (int64_t row = task.row; row < task.row + task.rows; ++row) {
      if (!feed.per_sample && row > 0) continue;
      const int64_t of_all = first_row_ + row;
      scratch.rows.push_back({order_.sample(task.batch, of_all % samples_),
                              {static_cast<int64_t>(seed_), task.batch, of_all % samples_},
                              row_of(input, row, ring_of(task.batch), length)});
    }
    if (scratch.rows.empty()) return Status::success();
    if (Status s = read_rows(input, scratch)) return s;
    for (const SampleRow& row : scratch.rows)
      if (Status s = check_numbers(inputs_[input], row.into, [&] { return data_->where_is(row.sample); })) return s;
    const int64_t samples = order_.samples_in(task.batch);
    for (size_t i = 0; hides_labels_ && i < scratch.rows.size(); ++i)
      if (first_row_ + task.row + static_cast<int64_t>(i) >= samples) hide_label(feed, scratch.rows[i].into);
    return Status::success();
  }

  // Rows of a shorter batch follow each other without gaps too.
  TensorView row_of(size_t input, int64_t row, const RingBatch& batch, size_t length) const {
    const Feed& feed = feeds_[input];
    const Type& type = feed.rows[length];
    return {type, batch.tensors[input].view().as<char>() + (feed.per_sample ? row * type.bytes() : 0)};
  }

  Status read_rows(size_t input, Scratch& scratch) const {
    const size_t field = feeds_[input].field;
    const Tensor& own_dtype = scratch.tensors[input];
    if (own_dtype.type().dtype == inputs_[input].type.dtype)
      return data_->read_rows(field, scratch.rows, scratch.buffers);
    for (const SampleRow& row : scratch.rows) {
      const TensorView own{Type(own_dtype.type().dtype, row.into.type.shape), own_dtype.view().data};
      if (Status s = data_->read(row.sample, field, own, row.random, scratch.buffers)) return s;
      if (Status s = convert(own, row.into))
        return in_context(data_->where_is(row.sample) + ": input '" + inputs_[input].name + "'", std::move(s));
    }
    return Status::success();
  }

  static void hide_label(const Feed& feed, const TensorView& row) {
    if (!feed.no_label) return;
    for (int64_t i = 0; i < row.elements(); ++i) row.set_int(i, *feed.no_label);
  }

  const std::unique_ptr<Dataset> data_;
  const std::vector<InputSpec> inputs_;
  const std::vector<Feed> feeds_;
  const BatchOrder order_;
  const uint64_t seed_;
  const int64_t rows_, samples_, first_row_;  // rows of this rank; samples of all; first_row_ in the batch of all
  const bool hides_labels_;
  std::vector<int64_t> lengths_;              // of shorter batches
  const std::optional<size_t> padding_mask_;  // index of an input
  const std::optional<int64_t> only_batch_;
  const int64_t rows_per_task_;

  mutable std::mutex mutex_;  // guards everything below, but for the tensors of batches that somebody has taken
  std::condition_variable changed_;
  std::array<RingBatch, batches_read_ahead> ring_;  // batch n at n % batches_read_ahead; the only batch is the first
  int64_t next_ = 0;                                // the batch that next() gives
  int64_t next_task_batch_ = 0, next_task_row_ = 0;
  int64_t items_read_ = 0;  // of the batches that next() gave
  int busy_ = 0;            // workers that read
  bool stop_ = false, paused_ = false;
  std::optional<Diag> failure_;
  double waited_s_ = 0;
  std::vector<std::thread> workers_;  // last: they use everything above
};

int thread_count(const Dataset& data, llvm::ArrayRef<InputSpec> inputs, const DataOptions& options) {
  if (options.threads > 0) return options.threads;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (data.threads_wanted() > 0) return data.threads_wanted();
  if (data.is_computed()) return cores;
  return threads_for_batch(bytes_of(inputs), rows_of_batch(inputs) * static_cast<int64_t>(inputs.size()), cores);
}

Type row_type(const Type& input, bool per_sample) {
  return Type(input.dtype, llvm::ArrayRef<int64_t>(input.shape).drop_front(per_sample));
}

Result<std::vector<Feed>> feeds_of(const Dataset& data, llvm::ArrayRef<InputSpec> inputs,
                                   llvm::ArrayRef<size_t> matches, llvm::ArrayRef<ShorterInputs> shorter) {
  std::vector<Feed> feeds;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputSpec& input = inputs[i];
    const bool per_sample = data.fields()[matches[i]].per_sample;
    const bool is_label = per_sample && holds_class_labels(input);
    Feed feed{matches[i], per_sample, is_label ? std::optional(ignored_label_of(input)) : std::nullopt, {}};
    for (const ShorterInputs& step : shorter) {
      feed.rows.push_back(row_type(step.inputs[i].type, per_sample));
      if (step.inputs[i].type == input.type || data.fits_lengths(matches[i])) continue;
      return usage_error(data.where() + ": '" + input.name + "' has one length, the plan's step for length " +
                         llvm::Twine(step.length) + " takes " + to_string(step.inputs[i].type) +
                         "; lengths are for samples that differ in length");
    }
    feed.rows.push_back(row_type(input.type, per_sample));
    feeds.push_back(std::move(feed));
  }
  return feeds;
}

Status check_enough(const Dataset& data, const SamplePart& part, int64_t rows, llvm::ArrayRef<Feed> feeds,
                    const DataOptions& options) {
  const bool held_out = part.samples() < data.samples();
  const std::string have = data.where() + ": has " + std::to_string(part.samples()) + " samples" +
                           (!held_out                                    ? ""
                            : options.part == SamplePart::Kind::Training ? " to train with"
                                                                         : " held out");
  if (part.samples() == 0) return model_error(have);
  if (part.samples() < rows && options.last_batch == LastBatch::Drop)
    return model_error(have + ", one batch needs " + llvm::Twine(rows));
  const bool is_padded = options.last_batch == LastBatch::Pad && part.samples() % rows != 0;
  if (is_padded && options.part == SamplePart::Kind::Training &&
      llvm::none_of(feeds, [](const Feed& feed) { return feed.no_label.has_value(); }))
    return usage_error(data.where() +
                       ": the last batch cannot be padded: no input holds integer labels that the loss "
                       "could ignore");
  return Status::success();
}

}  // namespace

int threads_for_batch(int64_t bytes, int64_t reads, int cores) {
  const int64_t wanted = std::max(bytes / bytes_per_thread, reads / reads_per_thread);
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max(1, cores / 2)));
}

Result<std::unique_ptr<BatchSource>> load_batches(std::unique_ptr<Dataset> data, llvm::ArrayRef<InputSpec> inputs,
                                                  const DataOptions& options) {
  Result<std::vector<size_t>> matches = match_inputs(*data, inputs);
  if (!matches) return matches.takeError();
  const SamplePart part(data->samples(), options.hold_out, options.part, options.seed);
  const int64_t rows = samples_of_batch(inputs, options);
  Result<std::vector<Feed>> feeds = feeds_of(*data, inputs, *matches, options.shorter);
  if (!feeds) return feeds.takeError();
  if (Status s = check_enough(*data, part, rows, *feeds, options)) return s;
  if (Status s = check_labels(*data, inputs, *matches)) return s;
  const int threads = thread_count(*data, inputs, options);
  BatchOrder order(*data, part, rows, options);
  return std::make_unique<Loader>(std::move(data), std::vector<InputSpec>(inputs.begin(), inputs.end()),
                                  std::move(*feeds), std::move(order), options, threads);
}

}  // namespace plimsoll
