#include "runtime/data/describe.h"

#include "ir/support/units.h"
#include "runtime/data/image_files.h"
#include "runtime/data/input_file.h"
#include "runtime/data/tensor_files.h"
#include "runtime/data/token_file_check.h"
#include "runtime/data/token_windows.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <limits>
#include <map>

namespace plimsoll {
namespace {

using Lines = std::vector<std::string>;

// Enough to see what a field holds, and read in a moment.
constexpr int64_t samples_looked_at = 1000;

// "3 to 120 long, mean 45.2; "
std::string lengths_of(const Dataset& data, size_t field) {
  int64_t least = std::numeric_limits<int64_t>::max(), largest = 0;
  double sum = 0;
  for (int64_t sample = 0; sample < data.samples(); ++sample) {
    const int64_t length = data.length(sample, field);
    least = std::min(least, length);
    largest = std::max(largest, length);
    sum += static_cast<double>(length);
  }
  std::string text;
  llvm::raw_string_ostream(text) << least << " to " << largest << " long, mean "
                                 << llvm::format("%.4g; ", sum / static_cast<double>(data.samples()));
  return text;
}

// "0 to 9, mean 4.5"
Result<std::string> range_of(const Dataset& data, size_t field) {
  const Field& what = data.fields()[field];
  Tensor value(what.type);
  ReadBuffers buffers;
  double least = std::numeric_limits<double>::infinity(), largest = -least, sum = 0;
  int64_t count = 0;
  const int64_t samples = what.per_sample ? std::min(samples_looked_at, data.samples()) : 1;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t sample = i * (data.samples() / samples);  // spread over all
    if (what.varies) {
      Type whole = what.type;
      whole.shape.insert(whole.shape.begin(), data.length(sample, field));
      value = Tensor(whole);
    }
    if (Status s = data.read(sample, field, value.view(), {0, 0, 0}, buffers)) return s;
    for (int64_t at = 0; at < value.type().elements(); ++at, ++count) {
      const double number = value.get(at);
      least = std::min(least, number);
      largest = std::max(largest, number);
      sum += number;
    }
  }
  if (count == 0) return std::string("empty");
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.4g to %.4g, mean %.4g", least, largest,
                                                 sum / static_cast<double>(count));
  return text;
}

Result<Lines> describe_tensors(llvm::StringRef path) {
  Result<std::unique_ptr<Dataset>> data = open_tensor_files(path, {});
  if (!data) return data.takeError();
  Lines lines = {"tensors: " + format_count((*data)->samples()) + " samples"};
  size_t widest = 0;
  for (const Field& field : (*data)->fields()) widest = std::max(widest, field.name.size());
  for (size_t i = 0; i < (*data)->fields().size(); ++i) {
    const Field& field = (*data)->fields()[i];
    Result<std::string> range = range_of(**data, i);
    if (!range) return range.takeError();
    lines.push_back("  " + field.name + std::string(widest - field.name.size() + 2, ' ') + to_string(field.type) +
                    (field.varies       ? " per element: " + lengths_of(**data, i)
                     : field.per_sample ? " per sample: "
                                        : " for all samples: ") +
                    *range);
  }
  return lines;
}

Result<Lines> describe_images(llvm::StringRef path) {
  Result<ImageList> list = list_images(path);
  if (!list) return list.takeError();
  std::map<int64_t, int64_t> counts;
  for (const ImageItem& item : list->items) ++counts[item.label];
  Lines lines = {"images: " + format_count(static_cast<int64_t>(list->items.size())) + " samples, labels from " +
                 list->labels_from};
  constexpr size_t classes_shown = 20;
  size_t shown = 0;
  for (const auto& [label, count] : counts) {
    if (shown++ == classes_shown) {
      lines.push_back("  and " + std::to_string(counts.size() - classes_shown) + " more classes");
      break;
    }
    const bool has_name = label >= 0 && label < static_cast<int64_t>(list->classes.size());
    lines.push_back("  " + (label < 0 ? "no label" : "class " + std::to_string(label)) +
                    (has_name ? " (" + list->classes[static_cast<size_t>(label)] + ")" : "") + ": " +
                    format_count(count));
  }
  return lines;
}

// Of long files the first part says enough of the numbers.
Result<Lines> describe_tokens(llvm::StringRef path) {
  if (Status s = check_name_of_token_file(path)) return s;
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  const int64_t token_bytes = bytes_per_token(path);
  if (Status s = check_bytes_of_token_file(*file, token_bytes)) return s;
  const int64_t tokens = file->bytes() / token_bytes;
  constexpr int64_t tokens_looked_at = int64_t{1} << 24;
  std::vector<char> bytes(static_cast<size_t>(std::min(tokens, tokens_looked_at) * token_bytes));
  if (Status s = file->read_at(0, bytes.data(), static_cast<int64_t>(bytes.size()))) return s;
  const TensorView numbers{
      Type(token_bytes == 4 ? DType::U32 : DType::U16, {static_cast<int64_t>(bytes.size()) / token_bytes}),
      bytes.data()};
  int64_t largest = 0;
  for (int64_t i = 0; i < numbers.elements(); ++i) largest = std::max(largest, numbers.get_int(i));
  return Lines{"token numbers of " + std::to_string(8 * token_bytes) + " bits: " + format_count(tokens) +
               ", the largest is " + std::to_string(largest) +
               (tokens > tokens_looked_at ? " in the first " + format_count(tokens_looked_at) : "")};
}

// One line for each of several.
Result<Lines> describe_token_files(llvm::ArrayRef<NamedTokenFile> files) {
  Lines lines = {std::to_string(files.size()) + (files.size() == 1 ? " token file" : " token files")};
  for (const NamedTokenFile& file : files) {
    if (!llvm::sys::fs::exists(file.path)) return system_error(file.path + ": no such file or folder");
    Result<Lines> described = describe_tokens(file.path);
    if (!described) return described;
    std::string& line = lines.emplace_back("  " + file.path + ": " + described->front());
    if (file.weight != 1) line += llvm::formatv("; an epoch reads each window {0:f2} times", file.weight).str();
  }
  return lines;
}

}  // namespace

Result<Lines> describe_data(llvm::StringRef path) {
  if (!llvm::sys::fs::exists(path)) {
    Result<std::vector<NamedTokenFile>> files = token_files_named(path);
    return files ? describe_token_files(*files) : files.takeError();
  }
  if (has_images(path)) return describe_images(path);
  if (is_tensor_file(path) || llvm::sys::fs::is_directory(path)) return describe_tensors(path);
  return describe_tokens(path);
}

}  // namespace plimsoll
