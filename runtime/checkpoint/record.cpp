#include "runtime/checkpoint/record.h"

#include "ir/support/json_text.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/xxhash.h"

#include <cmath>

namespace plimsoll {
namespace {

using llvm::json::Array;
using llvm::json::Object;
using llvm::json::Value;

std::string hex(uint64_t number) {
  const std::string digits = llvm::utohexstr(number, /*LowerCase=*/true);
  return std::string(16 - digits.size(), '0') + digits;
}

// The checksum is of the record's fields without the checksum, in one line and in the order of their names. A changed
// digit is found wherever it is; spaces may change.
std::string checksum_of(const Object& fields) {
  Object others;
  for (const auto& [name, value] : fields)
    if (name != "checksum") others[name.str()] = value;
  return hex(llvm::xxHash64(llvm::formatv("{0}", Value(std::move(others))).str()));
}

Object numbers(const std::map<std::string, double>& values) {
  Object object;
  for (const auto& [name, value] : values)
    if (std::isfinite(value)) object[name] = value;
  return object;
}

std::map<std::string, double> numbers(const Object* object) {
  std::map<std::string, double> values;
  if (object)
    for (const auto& [name, value] : *object)
      if (const auto number = value.getAsNumber()) values[name.str()] = *number;
  return values;
}

Status lacks(const char* field) { return model_error(llvm::Twine("has no field '") + field + "' of the right kind"); }

Result<CheckpointFile> parse_file(const Value& value) {
  const Object* object = value.getAsObject();
  const std::optional<llvm::StringRef> name = text_field(object, "name");
  const std::optional<llvm::StringRef> sum = text_field(object, "xxh64");
  const std::optional<int64_t> bytes = integer_field(object, "bytes");
  CheckpointFile file;
  if (!name || !bytes || !sum || sum->getAsInteger(16, file.xxh64)) return lacks("files");
  // A name is a file of the folder and no way out of it.
  if (*name != checkpoint_weights_file && *name != checkpoint_states_file)
    return model_error("names an unknown file '" + *name + "'");
  file.name = name->str();
  file.bytes = *bytes;
  return file;
}

Status parse_fields(const Object& object, CheckpointRecord& record) {
  const Object* reader = object.getObject("reader");
  const struct {
    const char* name;
    const Object* in;
    int64_t& number;
  } required[] = {{"step", &object, record.step},
                  {"sequence", &object, record.sequence},
                  {"batches", reader, record.batches},
                  {"samples_per_batch", reader, record.batch_samples}};
  for (const auto& field : required) {
    const std::optional<int64_t> number = integer_field(field.in, field.name);
    if (!number || *number < 0) return lacks(field.name);
    field.number = *number;
  }
  const std::optional<int64_t> seed = integer_field(&object, "seed");
  if (!seed) return lacks("seed");
  record.seed = static_cast<uint64_t>(*seed);
  for (auto [name, text] : {std::pair("time", &record.time), std::pair("model", &record.model),
                            std::pair("weights_hash", &record.weights_hash)})
    if (const auto found = text_field(&object, name)) *text = found->str();
  if (const Object* plan = object.getObject("plan"))
    for (const auto& [name, value] : *plan)
      if (const auto text = value.getAsString()) record.plan[name.str()] = text->str();
  record.schedule = numbers(object.getObject("schedule"));
  record.metrics = numbers(object.getObject("metrics"));
  return Status::success();
}

}  // namespace

std::string to_json(const CheckpointRecord& record) {
  Array files;
  for (const CheckpointFile& file : record.files)
    files.push_back(Object{{"name", file.name}, {"bytes", file.bytes}, {"xxh64", hex(file.xxh64)}});
  Object plan;
  for (const auto& [name, text] : record.plan) plan[name] = text;
  Object fields{{"format_version", checkpoint_format_version},
                {"step", record.step},
                {"sequence", record.sequence},
                {"time", record.time},
                {"model", record.model},
                {"weights_hash", record.weights_hash},
                {"seed", static_cast<int64_t>(record.seed)},
                {"reader", Object{{"batches", record.batches}, {"samples_per_batch", record.batch_samples}}},
                {"plan", std::move(plan)},
                {"schedule", numbers(record.schedule)},
                {"metrics", numbers(record.metrics)},
                {"files", std::move(files)}};
  fields["checksum"] = checksum_of(fields);
  return llvm::formatv("{0:2}\n", Value(std::move(fields))).str();
}

Result<CheckpointRecord> parse_checkpoint_record(llvm::StringRef text) {
  Result<Value> json = parse_json(text);
  if (!json) return model_error("is no JSON: " + llvm::toString(json.takeError()));
  const Object* object = json->getAsObject();
  if (!object) return model_error("is no JSON object");
  const std::optional<int64_t> version = integer_field(object, "format_version");
  if (!version) return lacks("format_version");
  if (*version != checkpoint_format_version)
    return model_error("has format version " + llvm::Twine(*version) + ", this program reads " +
                       llvm::Twine(checkpoint_format_version));
  if (text_field(object, "checksum") != checksum_of(*object)) return model_error("differs from its own checksum");
  CheckpointRecord record;
  if (Status s = parse_fields(*object, record)) return s;
  const Array* files = object->getArray("files");
  if (!files) return lacks("files");
  for (const Value& value : *files) {
    Result<CheckpointFile> file = parse_file(value);
    if (!file) return file.takeError();
    record.files.push_back(std::move(*file));
  }
  if (record.files.size() != 2) return lacks("files");
  return record;
}

}  // namespace plimsoll
