#include "frontend/log/line_file.h"
#include "frontend/log/run_log.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Format.h"

// A table with a row per record. Its columns are fixed when the run starts: those of steps, then those of evaluations
// with a prefix. A row leaves empty what its record does not have.

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral evaluation_prefix = "evaluation_";

std::string text_of(const LogField& field) {
  return std::visit(
      [](auto value) {
        std::string text;
        llvm::raw_string_ostream out(text);
        if constexpr (std::is_same_v<decltype(value), double>)
          out << llvm::format("%.9g", value);
        else
          out << static_cast<int64_t>(value);
        return out.str();
      },
      field.value);
}

// Names of outputs come from the model.
std::string quoted(llvm::StringRef name) {
  if (name.find_first_of(",\"\n\r") == llvm::StringRef::npos) return name.str();
  std::string text = "\"";
  for (char c : name) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + "\"";
}

std::vector<std::string> columns_of(const LogFields& fields) {
  std::vector<std::string> columns;
  for (const LogField& field : fields.of_steps) columns.push_back(field.name);
  for (const LogField& field : fields.of_evaluations) columns.push_back(evaluation_prefix.str() + field.name);
  return columns;
}

std::optional<int64_t> step_of(llvm::StringRef line) {
  int64_t step = 0;
  return line.split(',').first.getAsInteger(10, step) ? std::nullopt : std::optional(step);
}

class Csv : public LogWriter {
 public:
  Csv(LineFile file, std::vector<std::string> columns) : file_(std::move(file)), columns_(std::move(columns)) {}

  // A file that goes on has to have the same columns.
  Status begin() {
    std::string header = "step";
    for (llvm::StringRef column : columns_) header += "," + quoted(column);
    if (file_.first_line().empty()) return file_.write(header);
    if (file_.first_line() == header) return Status::success();
    return usage_error(file_.path() + ": has other columns than this run writes; give another file");
  }

  Status write(const LogRecord& record) override {
    std::string line = std::to_string(record.step);
    const llvm::StringRef prefix = record.is_evaluation ? llvm::StringRef(evaluation_prefix) : "";
    for (llvm::StringRef column : columns_) {
      const auto field =
          llvm::find_if(record.fields, [&](const LogField& each) { return column == (prefix + each.name).str(); });
      line += "," + (field == record.fields.end() ? "" : text_of(*field));
    }
    return file_.write(line);
  }

 private:
  LineFile file_;
  std::vector<std::string> columns_;
};

}  // namespace

Result<std::unique_ptr<LogWriter>> open_csv(llvm::StringRef path, int64_t done, const LogFields& fields) {
  Result<LineFile> file = LineFile::open(path, done, step_of);
  if (!file) return file.takeError();
  auto csv = std::make_unique<Csv>(std::move(*file), columns_of(fields));
  if (Status s = csv->begin()) return s;
  return csv;
}

}  // namespace plimsoll
