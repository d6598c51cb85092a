#include "frontend/log/line_file.h"
#include "frontend/log/run_log.h"
#include "ir/support/json_text.h"

#include "llvm/Support/JSON.h"

#include <cmath>

// A JSON object per record and line; an evaluation's numbers are in an object of their own.

namespace plimsoll {
namespace {

// JSON has no NaN and no infinity.
llvm::json::Value json_of(const LogField& field) {
  return std::visit(
      [](auto value) -> llvm::json::Value {
        if constexpr (std::is_same_v<decltype(value), double>)
          if (!std::isfinite(value)) return nullptr;
        return value;
      },
      field.value);
}

std::string line_of(const LogRecord& record) {
  std::string text;
  llvm::raw_string_ostream out(text);
  llvm::json::OStream line(out);
  const auto write_fields = [&] {
    for (const LogField& field : record.fields) line.attribute(field.name, json_of(field));
  };
  line.object([&] {
    line.attribute("step", record.step);
    if (record.is_evaluation)
      line.attributeObject("evaluation", write_fields);
    else
      write_fields();
  });
  return out.str();
}

std::optional<int64_t> step_of(llvm::StringRef line) {
  Result<llvm::json::Value> value = parse_json(line);
  const llvm::json::Object* object = value ? value->getAsObject() : nullptr;
  if (!value) llvm::consumeError(value.takeError());
  return integer_field(object, "step");
}

class JsonLines : public LogWriter {
 public:
  explicit JsonLines(LineFile file) : file_(std::move(file)) {}
  Status write(const LogRecord& record) override { return file_.write(line_of(record)); }

 private:
  LineFile file_;
};

}  // namespace

Result<std::unique_ptr<LogWriter>> open_json_lines(llvm::StringRef path, int64_t done) {
  Result<LineFile> file = LineFile::open(path, done, step_of);
  if (!file) return file.takeError();
  return std::make_unique<JsonLines>(std::move(*file));
}

}  // namespace plimsoll
