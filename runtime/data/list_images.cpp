#include "ir/support/json_text.h"
#include "ir/support/strings.h"
#include "runtime/data/image_files.h"
#include "runtime/data/input_file.h"
#include "runtime/data/tar_file.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

// Labels as the files have them, numbers or names.
using LabelTexts = llvm::StringMap<std::string>;

Result<std::string> read_text(llvm::StringRef path) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return file.takeError();
  std::string text(static_cast<size_t>(file->bytes()), '\0');
  if (Status s = file->read_at(0, text.data(), file->bytes())) return s;
  return text;
}

std::string text_of(const llvm::json::Value& value) {
  if (const auto number = value.getAsInteger()) return std::to_string(*number);
  const auto text = value.getAsString();
  return text ? text->str() : "";
}

llvm::StringRef unquoted(llvm::StringRef cell) {
  cell = cell.trim();
  return cell.size() >= 2 && cell.front() == '"' && cell.back() == '"' ? cell.drop_front().drop_back() : cell;
}

// Two columns; the first line has titles.
Result<LabelTexts> read_csv(llvm::StringRef path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.takeError();
  LabelTexts labels;
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(*text).split(lines, '\n');
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].trim().empty()) continue;
    const auto [file, label] = lines[i].rsplit(',');
    if (unquoted(file).empty() || unquoted(label).empty())
      return model_error(path + ": line " + llvm::Twine(i + 1) + " is not FILE,LABEL");
    labels[unquoted(file)] = unquoted(label).str();
  }
  return labels;
}

Result<LabelTexts> read_json(llvm::StringRef path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.takeError();
  Result<llvm::json::Value> json = parse_json(*text);
  if (!json) return model_error(path + ": " + llvm::toString(json.takeError()));
  const llvm::json::Object* object = json->getAsObject();
  if (!object) return model_error(path + ": is not an object of file names and labels");
  LabelTexts labels;
  for (const auto& [file, label] : *object) labels[file] = text_of(label);
  return labels;
}

Result<std::vector<std::string>> files_under(llvm::StringRef folder) {
  std::vector<std::string> files;
  std::error_code failure;
  for (llvm::sys::fs::recursive_directory_iterator at(folder, failure), end; !failure && at != end;
       at.increment(failure))
    files.push_back(at->path());
  if (failure) return system_error(folder + ": " + failure.message());
  std::sort(files.begin(), files.end());
  return files;
}

// Texts that are all numbers stay these numbers; others are names, which are numbered in their order.
Status number_labels(llvm::ArrayRef<std::string> texts, ImageList& list) {
  std::map<std::string, int64_t> names;
  bool all_numbers = true;
  for (size_t i = 0; i < texts.size(); ++i) {
    int64_t number = 0;
    if (texts[i].empty()) continue;
    if (llvm::StringRef(texts[i]).getAsInteger(10, number)) all_numbers = false;
    list.items[i].label = number;
    names[texts[i]] = 0;
  }
  if (all_numbers) return Status::success();
  for (auto& [name, number] : names) {
    number = static_cast<int64_t>(list.classes.size());
    list.classes.push_back(name);
  }
  for (size_t i = 0; i < texts.size(); ++i)
    if (!texts[i].empty()) list.items[i].label = names[texts[i]];
  return Status::success();
}

Result<ImageList> list_folder(llvm::StringRef folder, llvm::ArrayRef<std::string> files) {
  ImageList list;
  std::optional<LabelTexts> labels;
  for (llvm::StringRef name : {"labels.csv", "labels.json"}) {
    const std::string path = (folder + "/" + name).str();
    if (!llvm::sys::fs::exists(path)) continue;
    Result<LabelTexts> read = name == "labels.csv" ? read_csv(path) : read_json(path);
    if (!read) return read.takeError();
    labels = std::move(*read);
    list.labels_from = name.str();
    break;
  }
  std::vector<std::string> texts;
  for (const std::string& file : files) {
    if (!is_image_name(file)) continue;
    list.items.push_back({file});
    const llvm::StringRef inside = llvm::StringRef(file).drop_front(folder.size()).ltrim('/');
    if (!labels) {
      texts.push_back(llvm::sys::path::parent_path(inside).str());
      continue;
    }
    const auto found = labels->find(inside);
    if (found == labels->end()) return model_error(folder + "/" + list.labels_from + ": has no label of " + inside);
    texts.push_back(found->second);
  }
  if (!labels) list.labels_from = "folders";
  if (Status s = number_labels(texts, list)) return s;
  return list;
}

// What WebDataset calls a sample: members with one name up to the first dot behind the folders.
struct TarSample {
  std::optional<TarMember> image, label;
};

Result<std::string> label_of(llvm::StringRef shard, const InputFile& file, const TarMember& member) {
  std::string text(static_cast<size_t>(member.bytes), '\0');
  if (Status s = file.read_at(member.offset, text.data(), member.bytes)) return s;
  if (!ends_with(member.name, ".json")) return llvm::StringRef(text).trim().str();
  Result<llvm::json::Value> json = parse_json(text);
  if (!json) return model_error(shard + ": " + member.name + ": " + llvm::toString(json.takeError()));
  if (const llvm::json::Object* object = json->getAsObject())
    for (llvm::StringRef key : {"label", "cls"})
      if (const llvm::json::Value* value = object->get(key)) return text_of(*value);
  return std::string();
}

Status add_shard(llvm::StringRef shard, ImageList& list, std::vector<std::string>& texts) {
  Result<std::vector<TarMember>> members = list_tar(shard);
  if (!members) return members.takeError();
  Result<InputFile> file = InputFile::open(shard);
  if (!file) return file.takeError();
  std::vector<TarSample> samples;
  llvm::StringMap<size_t> by_key;
  for (TarMember& member : *members) {
    const size_t folder = llvm::StringRef(member.name).rfind('/') + 1;  // npos + 1 is 0
    const std::string key = member.name.substr(0, member.name.find('.', folder));
    const auto at = by_key.try_emplace(key, samples.size()).first->second;
    if (at == samples.size()) samples.emplace_back();
    if (is_image_name(member.name))
      samples[at].image = std::move(member);
    else if (ends_with(member.name, ".cls") || ends_with(member.name, ".json"))
      samples[at].label = std::move(member);
  }
  for (const TarSample& sample : samples) {
    if (!sample.image) continue;
    list.items.push_back({shard.str(), sample.image->offset, sample.image->bytes});
    Result<std::string> text = sample.label ? label_of(shard, *file, *sample.label) : Result<std::string>("");
    if (!text) return text.takeError();
    texts.push_back(std::move(*text));
  }
  return Status::success();
}

Result<ImageList> list_shards(llvm::ArrayRef<std::string> shards) {
  ImageList list;
  list.labels_from = "the shards' .cls and .json members";
  std::vector<std::string> texts;
  for (const std::string& shard : shards)
    if (Status s = add_shard(shard, list, texts)) return s;
  if (Status s = number_labels(texts, list)) return s;
  return list;
}

bool is_tar(llvm::StringRef path) { return ends_with(path, ".tar"); }

}  // namespace

bool has_images(llvm::StringRef path) {
  if (!llvm::sys::fs::is_directory(path)) return is_tar(path);
  std::error_code failure;
  for (llvm::sys::fs::recursive_directory_iterator at(path, failure), end; !failure && at != end; at.increment(failure))
    if (is_image_name(at->path()) || is_tar(at->path())) return true;
  return false;
}

Result<ImageList> list_images(llvm::StringRef path) {
  if (!llvm::sys::fs::is_directory(path)) return list_shards(path.str());
  Result<std::vector<std::string>> files = files_under(path.rtrim('/'));
  if (!files) return files.takeError();
  std::vector<std::string> shards;
  llvm::copy_if(*files, std::back_inserter(shards), is_tar);
  Result<ImageList> list = shards.empty() ? list_folder(path.rtrim('/'), *files) : list_shards(shards);
  if (list && list->items.empty()) return model_error(path + ": has no JPEG or PNG images");
  return list;
}

}  // namespace plimsoll
