#include "runtime/data/token_reader.h"

#include "ir/support/philox.h"
#include "runtime/data/input_file.h"
#include "runtime/data/token_file_check.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Path.h"

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

namespace plimsoll {
namespace {

enum class Fill : uint8_t { Tokens, Labels, Ones, Positions };

Fill fill_for(const InputSpec& input) {
  if (input.index && input.index->is_label) return input.index->is_token ? Fill::Tokens : Fill::Labels;
  std::string lower = llvm::StringRef(input.name).lower();
  auto says = [&](llvm::StringRef word) { return llvm::StringRef(lower).contains(word); };
  if (says("label") || says("target")) return Fill::Labels;
  if (says("mask")) return Fill::Ones;
  if (says("position")) return Fill::Positions;
  return Fill::Tokens;
}

// How many tokens the labels are ahead of the window.
Result<int64_t> label_offset(llvm::ArrayRef<InputSpec> inputs, LabelTokens choice) {
  if (choice != LabelTokens::ByModel) return choice == LabelTokens::Next ? 1 : 0;
  const auto* labels = llvm::find_if(inputs, [](const InputSpec& input) { return fill_for(input) == Fill::Labels; });
  if (labels == inputs.end()) return 0;
  const std::optional<int64_t> shift = labels->index ? labels->index->shift : std::nullopt;
  if (shift == 0 || shift == 1) return 1 - *shift;
  return model_error(
      "the plan does not show whether the model's loss shifts '" + labels->name +
      "' itself; say --labels same if it does (the model compares the prediction at a position with the label after "
      "it), or --labels next if it does not");
}

// The input whose shape says how many windows there are, and how long.
const InputSpec& windows_of(llvm::ArrayRef<InputSpec> inputs) {
  const auto* found = llvm::find_if(inputs, [](const InputSpec& input) {
    return fill_for(input) == Fill::Tokens || fill_for(input) == Fill::Labels;
  });
  return found == inputs.end() ? inputs.front() : *found;
}

// Positions and masks may have one row for all samples: [1, time] or [time].
bool fits_windows(const InputSpec& input, const Shape& windows) {
  const Shape& shape = input.type.shape;
  if (is_float(input.type.dtype)) return false;
  if (shape == windows) return true;
  const Fill fill = fill_for(input);
  const bool same_for_all = fill == Fill::Ones || fill == Fill::Positions;
  return same_for_all && (shape == Shape{windows[1]} || shape == Shape{1, windows[1]});
}

class TokenReader : public BatchSource {
 public:
  TokenReader(InputFile file, std::vector<InputSpec> inputs, int64_t token_bytes, int64_t label_offset,
              const DataOptions& options)
      : file_(std::move(file)),
        inputs_(std::move(inputs)),
        token_bytes_(token_bytes),
        label_offset_(label_offset),
        seed_(options.seed),
        rows_(windows_of(inputs_).type.shape[0]),
        first_row_(options.rank * rows_),
        time_(windows_of(inputs_).type.shape[1]),
        window_(static_cast<size_t>((time_ + 1) * token_bytes)) {
    for (const InputSpec& input : inputs_) ready_.emplace_back(input.type);
    reader_ = std::thread([this] { read_ahead(); });
  }

  ~TokenReader() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    reader_.join();
  }

  Status next(llvm::ArrayRef<TensorView> inputs) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return filled_; });
    if (error_) return llvm::make_error<Diag>(*error_);
    for (size_t i = 0; i < inputs.size(); ++i)
      std::memcpy(inputs[i].data, ready_[i].data(), static_cast<size_t>(inputs[i].type.bytes()));
    filled_ = false;
    lock.unlock();
    changed_.notify_all();
    return Status::success();
  }

  // What was read ahead is dropped.
  Status seek(int64_t batch) override {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return filled_; });
      batch_ = batch;
      filled_ = false;
    }
    changed_.notify_all();
    return Status::success();
  }

  int64_t items_per_batch() const override { return rows_ * time_; }
  llvm::StringRef item_name() const override { return "tokens"; }

  std::string note() const override {
    const auto labels = llvm::find_if(inputs_, [](const InputSpec& input) { return fill_for(input) == Fill::Labels; });
    if (labels == inputs_.end()) return note_without_labels();
    return "'" + labels->name + "' holds " +
           (label_offset_ == 1 ? "the token after each position; the model does not shift it"
                               : "the token at each position; the model shifts it by one itself");
  }

 private:
  // A model whose only input is the tokens predicts what its own shift says.
  std::string note_without_labels() const {
    for (const InputSpec& input : inputs_)
      if (input.index && input.index->is_label && input.index->shift && *input.index->shift != 1)
        return "the loss compares the prediction at each position with the token " +
               (*input.index->shift == 0 ? std::string("at that position")
                                         : std::to_string(*input.index->shift) + " positions on") +
               " of '" + input.name + "', and not with the next token";
    return "";
  }

  void read_ahead() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !filled_ || stop_; });
      if (stop_) return;
      if (Status s = fill_batch(batch_++)) error_ = take_diag(std::move(s));
      filled_ = true;
      lock.unlock();
      changed_.notify_all();
    }
  }

  Status fill_batch(int64_t batch) {
    int64_t windows = file_.bytes() / token_bytes_ - time_;
    RandomStream stream{static_cast<int64_t>(seed_), batch, 0};
    for (int64_t row = 0; row < rows_; ++row) {
      auto start =
          std::min(windows - 1, static_cast<int64_t>(stream.uniform(first_row_ + row) * static_cast<double>(windows)));
      if (Status s = file_.read_at(start * token_bytes_, window_.data(), (time_ + 1) * token_bytes_)) return s;
      if (Status s = check_window(start)) return s;
      for (size_t i = 0; i < inputs_.size(); ++i) fill_row(i, row);
    }
    return Status::success();
  }

  // Every token of the window from `start` on must be one that the inputs which it fills can name.
  Status check_window(int64_t start) const {
    for (const InputSpec& input : inputs_) {
      const Fill fill = fill_for(input);
      if (!input.index || input.index->count == 0 || (fill != Fill::Tokens && fill != Fill::Labels)) continue;
      const int64_t first = fill == Fill::Labels ? label_offset_ : 0;
      for (int64_t t = first; t < first + time_; ++t)
        if (token(t) >= input.index->count)
          return model_error(file_.path() + ": token " + llvm::Twine(start + t) + " (byte " +
                             llvm::Twine((start + t) * token_bytes_) + ") is " + llvm::Twine(token(t)) + ", but '" +
                             input.name + "' of the model has " + llvm::Twine(input.index->count) +
                             " different tokens; the file is of another tokenizer or of another width than " +
                             llvm::Twine(8 * token_bytes_) + " bits");
    }
    return Status::success();
  }

  int64_t token(int64_t at) const {
    if (token_bytes_ == 2) {
      uint16_t value;
      std::memcpy(&value, window_.data() + at * 2, 2);
      return value;
    }
    uint32_t value;
    std::memcpy(&value, window_.data() + at * 4, 4);
    return value;
  }

  void fill_row(size_t input, int64_t row) {
    TensorView out = ready_[input].view();
    if (row * time_ >= out.elements()) return;
    Fill fill = fill_for(inputs_[input]);
    for (int64_t t = 0; t < time_; ++t) {
      int64_t value = fill == Fill::Tokens   ? token(t)
                      : fill == Fill::Labels ? token(t + label_offset_)
                      : fill == Fill::Ones   ? 1
                                             : t;
      out.set_int(row * time_ + t, value);
    }
  }

  InputFile file_;
  std::vector<InputSpec> inputs_;
  int64_t token_bytes_, label_offset_;
  uint64_t seed_;
  int64_t rows_, first_row_, time_;  // first_row_: of the batch of all ranks
  std::vector<char> window_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::vector<Tensor> ready_;
  int64_t batch_ = 0;  // the one that is read next
  bool filled_ = false, stop_ = false;
  std::optional<Diag> error_;
  std::thread reader_;
};

}  // namespace

int64_t bytes_per_token(llvm::StringRef path) {
  const llvm::StringRef name = llvm::sys::path::filename(path);
  return name.contains("u32") || name.contains("uint32") ? 4 : 2;
}

Result<std::unique_ptr<BatchSource>> open_token_file(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                                     const DataOptions& options) {
  if (inputs.empty()) return model_error(path + ": the plan has no inputs to feed");
  const Type& windows = windows_of(inputs).type;
  for (const InputSpec& input : inputs)
    if (windows.rank() != 2 || !fits_windows(input, windows.shape))
      return model_error(path + ": a token file feeds integer inputs of one shape [rows, time]; '" + input.name +
                         "' is " + to_string(input.type));
  if (Status s = check_name_of_token_file(path)) return s;
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  const int64_t token_bytes = bytes_per_token(path);
  if (Status s = check_bytes_of_token_file(*file, token_bytes)) return s;
  Result<int64_t> offset = label_offset(inputs, options.labels);
  if (!offset) return in_context(path, offset.takeError());
  int64_t need = windows.shape[1] + 1, have = file->bytes() / token_bytes;
  if (file->bytes() % token_bytes != 0)
    return model_error(path + ": " + llvm::Twine(file->bytes()) + " bytes are no whole number of " +
                       llvm::Twine(token_bytes * 8) + "-bit tokens");
  if (have < need)
    return model_error(path + ": has " + llvm::Twine(have) + " tokens, one window needs " + llvm::Twine(need));
  return std::make_unique<TokenReader>(std::move(*file), std::vector<InputSpec>(inputs.begin(), inputs.end()),
                                       token_bytes, *offset, options);
}

}  // namespace plimsoll
