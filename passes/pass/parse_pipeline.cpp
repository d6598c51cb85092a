#include "passes/pass/pass_manager.h"

#include "ir/support/did_you_mean.h"
#include "ir/support/units.h"

#include "llvm/ADT/StringExtras.h"

namespace plimsoll {
namespace {

std::string suggestion(llvm::StringRef wrong, llvm::ArrayRef<llvm::StringRef> names) {
  std::vector<std::string> near = did_you_mean(wrong, names, 1);
  return near.empty() ? "" : "; did you mean '" + near.front() + "'?";
}

Result<const PassInfo*> known_pass(llvm::StringRef name) {
  if (const PassInfo* pass = find_pass(name)) return pass;
  std::vector<llvm::StringRef> names;
  for (const PassInfo* pass : all_passes()) names.push_back(pass->name);
  return usage_error("there is no pass '" + name + "'" + suggestion(name, names));
}

Result<const PassOption*> known_option(const PassInfo& pass, llvm::StringRef name) {
  std::vector<llvm::StringRef> names;
  for (const PassOption& option : pass.options) {
    if (option.name == name) return &option;
    names.push_back(option.name);
  }
  return usage_error(pass.name + " has no option '" + name + "'" + suggestion(name, names));
}

Result<int64_t> number_of(const PassOption& option, llvm::StringRef text) {
  const std::string assigned = (option.name + "=" + text).str();
  int64_t number = 0;
  if (text.getAsInteger(10, number)) {
    Result<int64_t> bytes = parse_bytes(text);
    if (!bytes) return llvm::consumeError(bytes.takeError()), usage_error(assigned + " is not a number");
    number = *bytes;
  }
  if (number < option.min) return usage_error(assigned + " is below " + llvm::Twine(option.min));
  if (number > option.max) return usage_error(assigned + " is above " + llvm::Twine(option.max));
  return number;
}

class PipelineParser {
 public:
  explicit PipelineParser(llvm::StringRef text) : rest_(text.trim()) {}

  Result<Pipeline> parse() {
    Pipeline pipeline;
    while (!rest_.empty()) {
      Result<PipelineStep> step = parse_step();
      if (!step) return step.takeError();
      pipeline.steps.push_back(std::move(*step));
      rest_ = rest_.ltrim();
      if (!rest_.empty() && !rest_.consume_front(",")) return usage_error("expected ',' before '" + rest_ + "'");
      rest_ = rest_.ltrim();
    }
    return pipeline;
  }

 private:
  llvm::StringRef take_until(llvm::StringRef ends) {
    llvm::StringRef word = rest_.take_front(rest_.find_first_of(ends));
    rest_ = rest_.drop_front(word.size());
    return word;
  }

  Result<PipelineStep> parse_step() {
    Result<const PassInfo*> pass = known_pass(take_until(",{").trim());
    if (!pass) return pass.takeError();
    PipelineStep step{*pass, {}};
    if (!rest_.consume_front("{")) return step;
    while (!(rest_ = rest_.ltrim()).consume_front("}")) {
      if (rest_.empty()) return usage_error((*pass)->name + ": '{' without '}'");
      if (Status s = parse_option(step)) return s;
    }
    return step;
  }

  Status parse_option(PipelineStep& step) {
    const PassInfo& pass = *step.pass;
    Result<const PassOption*> option = known_option(pass, take_until("= }"));
    if (!option) return option.takeError();
    rest_.consume_front("=");
    Result<std::string> text = parse_value();
    if (!text) return in_context(pass.name, text.takeError());
    OptionValue value = *text;
    if (std::holds_alternative<int64_t>((*option)->otherwise)) {
      Result<int64_t> number = number_of(**option, *text);
      if (!number) return in_context(pass.name, number.takeError());
      value = *number;
    }
    if (step.options.try_emplace((*option)->name.str(), std::move(value)).second) return Status::success();
    return usage_error(pass.name + ": option '" + (*option)->name + "' is given twice");
  }

  Result<std::string> parse_value() {
    if (!rest_.consume_front("\"")) return take_until(" }").str();
    std::string value;
    for (;;) {
      size_t quote = rest_.find('"');
      if (quote == llvm::StringRef::npos) return usage_error("a value in quotes does not end");
      value += rest_.take_front(quote).str();
      rest_ = rest_.drop_front(quote + 1);
      if (!rest_.consume_front("\"")) return value;
      value += '"';
    }
  }

  llvm::StringRef rest_;
};

}  // namespace

std::string option_text(llvm::StringRef value) {
  if (!value.empty() && value.find_first_of(" \n{},\"") == llvm::StringRef::npos) return value.str();
  std::string quoted = "\"";
  for (char c : value) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

std::string Pipeline::to_text() const {
  std::string text;
  for (const PipelineStep& step : steps) {
    text += (text.empty() ? "" : ", ") + step.pass->name.str();
    if (step.options.empty()) continue;
    text += '{';
    llvm::ListSeparator blank(" ");
    for (const auto& [name, value] : step.options) {
      const auto* number = std::get_if<int64_t>(&value);
      text += llvm::StringRef(blank).str() + name + "=";
      text += number ? std::to_string(*number) : option_text(std::get<std::string>(value));
    }
    text += '}';
  }
  return text;
}

Result<Pipeline> parse_pipeline(llvm::StringRef text) { return PipelineParser(text).parse(); }

}  // namespace plimsoll
