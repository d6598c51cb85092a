#include "runtime/data/token_windows.h"

#include "runtime/data/input_file.h"
#include "runtime/data/loader.h"
#include "runtime/data/match_inputs.h"
#include "runtime/data/padding.h"
#include "runtime/data/token_file_check.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <cstring>

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

const InputSpec* labels_of(llvm::ArrayRef<InputSpec> inputs) {
  const auto* found = llvm::find_if(inputs, [](const InputSpec& input) { return fill_for(input) == Fill::Labels; });
  return found == inputs.end() ? nullptr : found;
}

// How many tokens the labels are ahead of the window.
Result<int64_t> label_offset(llvm::ArrayRef<InputSpec> inputs, LabelTokens choice) {
  if (choice != LabelTokens::ByModel) return choice == LabelTokens::Next ? 1 : 0;
  const InputSpec* labels = labels_of(inputs);
  if (!labels) return 0;
  const std::optional<int64_t> shift = labels->index ? labels->index->shift : std::nullopt;
  if (shift == 0 || shift == 1) return 1 - *shift;
  return model_error(
      "the plan does not show whether the model's loss shifts '" + labels->name +
      "' itself; say --labels same if it does (the model compares the prediction at a position with the label after "
      "it), or --labels next if it does not");
}

// The input whose shape says how long windows are.
const InputSpec& windows_of(llvm::ArrayRef<InputSpec> inputs) {
  const auto* found = llvm::find_if(inputs, [](const InputSpec& input) {
    return fill_for(input) == Fill::Tokens || fill_for(input) == Fill::Labels;
  });
  return found == inputs.end() ? inputs.front() : *found;
}

bool is_same_for_all(const InputSpec& input, const Shape& windows) {
  const Fill fill = fill_for(input);
  if (fill != Fill::Ones && fill != Fill::Positions) return false;
  const Shape& shape = input.type.shape;
  return shape == Shape{windows[1]} || (shape == Shape{1, windows[1]} && (windows[0] > 1 || input.whole));
}

struct TokenFile {
  InputFile file;
  int64_t token_bytes;
  double weight;  // how often an epoch reads each window

  int64_t tokens() const { return file.bytes() / token_bytes; }
};

struct WindowPlace {
  int64_t file, start, tokens;  // in tokens; fewer than a window needs where the document ends
};

class TokenWindows : public Dataset {
 public:
  TokenWindows(std::string path, std::vector<TokenFile> files, std::vector<InputSpec> inputs, int64_t offset,
               int64_t document_end, Padding padding)
      : path_(std::move(path)),
        files_(std::move(files)),
        inputs_(std::move(inputs)),
        offset_(offset),
        document_end_(document_end),
        padding_(std::move(padding)),
        time_(windows_of(inputs_).type.shape[1]) {
    for (const InputSpec& input : inputs_) {
      const bool per_sample = !is_same_for_all(input, windows_of(inputs_).type.shape);
      const Type type(input.type.dtype, llvm::ArrayRef<int64_t>(input.type.shape).drop_front(per_sample));
      fields_.push_back({input.name, type, per_sample});
    }
  }

  // Finds the windows, of documents by reading the files once.
  Status find_windows() {
    for (size_t f = 0; f < files_.size(); ++f)
      if (Status s = document_end_ < 0 ? count_windows(f) : find_documents(f)) return s;
    return Status::success();
  }

  int64_t samples() const override {
    return document_end_ >= 0 ? static_cast<int64_t>(places_.size()) : ends_.empty() ? 0 : ends_.back();
  }
  llvm::ArrayRef<Field> fields() const override { return fields_; }
  std::string where() const override { return path_; }
  bool makes_labels() const override { return true; }

  Status read(int64_t sample, size_t field, const TensorView& into, const RandomStream&,
              ReadBuffers& buffers) const override {
    const Fill fill = fill_for(inputs_[field]);
    if (fill == Fill::Positions || (fill == Fill::Ones && (document_end_ < 0 || !fields_[field].per_sample))) {
      for (int64_t t = 0; t < into.elements(); ++t) into.set_int(t, fill == Fill::Positions ? t : 1);
      return Status::success();
    }
    const WindowPlace place = place_of(sample);
    if (Status s = read_tokens(place, buffers.file)) return s;
    return fill_row(field, fill, place, buffers.file, into);
  }

  std::optional<int64_t> least_length(int64_t sample) const override {
    return document_end_ >= 0 ? tokens_in(sample) : std::nullopt;
  }
  bool fits_lengths(size_t) const override { return true; }
  std::optional<int64_t> tokens_in(int64_t sample) const override { return std::min(time_, place_of(sample).tokens); }

  std::string note() const override {
    const InputSpec* labels = labels_of(inputs_);
    if (!labels) return note_without_labels();
    return "'" + labels->name + "' holds " +
           (offset_ == 1 ? "the token after each position; the model does not shift it"
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

  int64_t windows_in(const TokenFile& file) const { return (file.tokens() - offset_) / time_; }

  Status count_windows(size_t f) {
    const int64_t windows = windows_in(files_[f]);
    if (windows < 1)
      return model_error(files_[f].file.path() + ": has " + llvm::Twine(files_[f].tokens()) +
                         " tokens, one window needs " + llvm::Twine(time_ + offset_));
    const auto read = static_cast<int64_t>(files_[f].weight * static_cast<double>(windows));
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + std::max<int64_t>(read, 1));
    return Status::success();
  }

  Status find_documents(size_t f) {
    constexpr int64_t tokens_at_once = 1 << 18;
    const TokenFile& file = files_[f];
    std::vector<uint8_t> bytes(static_cast<size_t>(tokens_at_once * file.token_bytes));
    int64_t first = 0;
    for (int64_t at = 0; at < file.tokens(); at += tokens_at_once) {
      const int64_t count = std::min(tokens_at_once, file.tokens() - at);
      if (Status s = file.file.read_at(at * file.token_bytes, bytes.data(), count * file.token_bytes)) return s;
      for (int64_t i = 0; i < count; ++i)
        if (token(bytes, file.token_bytes, i) == document_end_) {
          if (Status s = add_document(static_cast<int64_t>(f), first, at + i + 1)) return s;
          first = at + i + 1;
        }
    }
    return add_document(static_cast<int64_t>(f), first, file.tokens());
  }

  // Windows of the document, or one that has its beginning.
  Status add_document(int64_t file, int64_t first, int64_t end) {
    const LongSample longer = padding_.longer.value_or(LongSample::Split);
    if (longer == LongSample::Refuse && end - first > time_ + offset_)
      return model_error(files_[static_cast<size_t>(file)].file.path() + ": the document at token " +
                         llvm::Twine(first) + " has " + llvm::Twine(end - first) + " tokens, a window has " +
                         llvm::Twine(time_ + offset_) + "; longer = \"cut\" or \"split\" in [transforms] allows it");
    for (int64_t start = first; start + offset_ < end; start += time_) {
      places_.push_back({file, start, std::min(time_ + offset_, end - start)});
      if (longer == LongSample::Cut) break;
    }
    return Status::success();
  }

  WindowPlace place_of(int64_t sample) const {
    if (document_end_ >= 0) return places_[static_cast<size_t>(sample)];
    const auto file = std::upper_bound(ends_.begin(), ends_.end(), sample) - ends_.begin();
    const int64_t first = file == 0 ? 0 : ends_[static_cast<size_t>(file - 1)];
    const int64_t window = (sample - first) % windows_in(files_[static_cast<size_t>(file)]);
    return {file, window * time_, time_ + offset_};
  }

  Status read_tokens(const WindowPlace& place, std::vector<uint8_t>& bytes) const {
    const TokenFile& file = files_[static_cast<size_t>(place.file)];
    bytes.resize(static_cast<size_t>(place.tokens * file.token_bytes));
    return file.file.read_at(place.start * file.token_bytes, bytes.data(), place.tokens * file.token_bytes);
  }

  static int64_t token(const std::vector<uint8_t>& bytes, int64_t token_bytes, int64_t at) {
    uint32_t value = 0;
    std::memcpy(&value, bytes.data() + at * token_bytes, static_cast<size_t>(token_bytes));
    return value;
  }

  // Around a document there are no tokens.
  Status fill_row(size_t field, Fill fill, const WindowPlace& place, const std::vector<uint8_t>& bytes,
                  const TensorView& into) const {
    const TokenFile& file = files_[static_cast<size_t>(place.file)];
    const InputSpec& input = inputs_[field];
    const int64_t count = input.index ? input.index->count : 0, ahead = fill == Fill::Labels ? offset_ : 0;
    const int64_t time = into.elements(),
                  first = padding_.side == PadSide::Left ? time - std::min(time, place.tokens) : 0;
    const int64_t pad = fill == Fill::Labels
                            ? padding_.label.value_or(ignored_label_of(input))
                            : static_cast<int64_t>(padding_.value.value_or(static_cast<double>(document_end_)));
    for (int64_t t = 0; t < time; ++t) {
      const int64_t at = t - first + ahead;
      const bool is_padding = t < first || at >= place.tokens;
      if (fill == Fill::Ones) {
        into.set_int(t, is_padding ? 0 : 1);
      } else if (is_padding) {
        into.set_int(t, pad);
      } else {
        const int64_t value = token(bytes, file.token_bytes, at);
        if (count > 0 && value >= count) return unknown_token(file, place.start + at, value, input);
        into.set_int(t, value);
      }
    }
    return Status::success();
  }

  static Status unknown_token(const TokenFile& file, int64_t at, int64_t value, const InputSpec& input) {
    return model_error(file.file.path() + ": token " + llvm::Twine(at) + " (byte " +
                       llvm::Twine(at * file.token_bytes) + ") is " + llvm::Twine(value) + ", but '" + input.name +
                       "' of the model has " + llvm::Twine(input.index->count) +
                       " different tokens; the file is of another tokenizer or of another width than " +
                       llvm::Twine(8 * file.token_bytes) + " bits");
  }

  std::string path_;
  std::vector<TokenFile> files_;
  std::vector<InputSpec> inputs_;
  std::vector<Field> fields_;
  int64_t offset_, document_end_;
  Padding padding_;
  int64_t time_;
  std::vector<int64_t> ends_;        // of each file, how many windows an epoch has read with it and those before it
  std::vector<WindowPlace> places_;  // of documents
};

Result<TokenFile> open_file(llvm::StringRef path, double weight) {
  if (Status s = check_name_of_token_file(path)) return s;
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  const int64_t token_bytes = bytes_per_token(path);
  if (Status s = check_bytes_of_token_file(*file, token_bytes)) return s;
  if (file->bytes() % token_bytes != 0)
    return model_error(path + ": " + llvm::Twine(file->bytes()) + " bytes are no whole number of " +
                       llvm::Twine(token_bytes * 8) + "-bit tokens");
  return TokenFile{std::move(*file), token_bytes, weight};
}

Result<std::vector<TokenFile>> open_files(llvm::StringRef path) {
  Result<std::vector<NamedTokenFile>> named = token_files_named(path);
  if (!named) return named.takeError();
  std::vector<TokenFile> files;
  for (const NamedTokenFile& each : *named) {
    Result<TokenFile> file = open_file(each.path, each.weight);
    if (!file) return file.takeError();
    files.push_back(std::move(*file));
  }
  return files;
}

Status check_options(llvm::StringRef path, llvm::ArrayRef<TokenFile> files, const DataOptions& options) {
  const bool is_weighted = llvm::any_of(files, [](const TokenFile& file) { return file.weight != 1; });
  if (is_weighted && options.hold_out > 0)
    return usage_error(path + ": --hold-out and weights: what is held out could be read again; hold out another file");
  if (options.padding && options.document_end < 0)
    return usage_error(path + ": [transforms] pads documents, and --document-end says where they end");
  if (is_weighted && options.document_end >= 0)
    return usage_error(path + ": --document-end and weights exclude each other");
  return Status::success();
}

}  // namespace

int64_t bytes_per_token(llvm::StringRef path) {
  const llvm::StringRef name = llvm::sys::path::filename(path);
  return name.contains("u32") || name.contains("uint32") ? 4 : 2;
}

Result<std::vector<NamedTokenFile>> token_files_named(llvm::StringRef text) {
  std::vector<NamedTokenFile> files;
  llvm::SmallVector<llvm::StringRef> parts;
  llvm::sys::fs::exists(text) ? parts.push_back(text) : text.split(parts, ',');
  for (llvm::StringRef part : parts) {
    double weight = 1;
    const auto [name, number] = part.rsplit(':');
    const bool has_weight = !llvm::sys::fs::exists(part) && !number.empty() && !number.getAsDouble(weight);
    if (!(weight > 0 && weight <= 1000))
      return usage_error(part + ": a weight is above 0 and at most 1000: how often an epoch reads each window");
    files.push_back({(has_weight ? name : part).str(), weight});
  }
  return files;
}

Result<std::unique_ptr<Dataset>> open_token_files(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                                  const DataOptions& options) {
  if (inputs.empty()) return model_error(path + ": the plan has no inputs to feed");
  const Type& windows = windows_of(inputs).type;
  for (const InputSpec& input : inputs) {
    const bool fits = windows.rank() == 2 && !is_float(input.type.dtype) &&
                      (input.type.shape == windows.shape || is_same_for_all(input, windows.shape));
    if (!fits)
      return model_error(path + ": a token file feeds integer inputs of one shape [rows, time]; '" + input.name +
                         "' is " + to_string(input.type));
  }
  Result<std::vector<TokenFile>> files = open_files(path);
  if (!files) return files.takeError();
  if (Status s = check_options(path, *files, options)) return s;
  Result<int64_t> offset = label_offset(inputs, options.labels);
  if (!offset) return in_context(path, offset.takeError());
  auto data = std::make_unique<TokenWindows>(path.str(), std::move(*files),
                                             std::vector<InputSpec>(inputs.begin(), inputs.end()), *offset,
                                             options.document_end, options.padding.value_or(Padding()));
  if (Status s = data->find_windows()) return s;
  if (data->samples() == 0) return model_error(path + ": has no documents");
  return data;
}

}  // namespace plimsoll
