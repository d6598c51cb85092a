#include "passes/pass/pass_manager.h"

// Reads and writes pipelines. Steps are separated by commas, options inside braces by blanks.

#include "llvm/ADT/StringExtras.h"

namespace plimsoll {
namespace {

// The name closest to a mistyped one, as "; did you mean 'x'?"; empty when none is close.
template <typename Names>
std::string suggestion(llvm::StringRef wrong, const Names& names) {
  std::string nearest;
  unsigned least = std::max<unsigned>(2, static_cast<unsigned>(wrong.size()) / 3) + 1;
  for (llvm::StringRef name : names)
    if (unsigned distance = wrong.edit_distance(name); distance < least) {
      least = distance;
      nearest = "; did you mean '" + name.str() + "'?";
    }
  return nearest;
}

Result<PipelineStep> find_step(llvm::StringRef name) {
  const PassInfo* pass = find_pass(name);
  if (pass) return PipelineStep{pass, {}};
  std::vector<llvm::StringRef> names;
  for (const PassInfo* known : all_passes()) names.push_back(known->name);
  return usage_error("there is no pass '" + name + "'" + suggestion(name, names));
}

Status parse_options(PipelineStep& step, llvm::StringRef text) {
  std::vector<llvm::StringRef> names;
  for (const PassOption& option : step.pass->options) names.push_back(option.name);
  llvm::SmallVector<llvm::StringRef, 4> parts;
  text.split(parts, ' ', -1, false);
  for (llvm::StringRef part : parts) {
    auto [name, value] = part.split('=');
    if (!llvm::is_contained(names, name))
      return usage_error(step.pass->name + " has no option '" + name + "'" + suggestion(name, names));
    if (!step.options.try_emplace(name.str(), value.str()).second)
      return usage_error(step.pass->name + ": option '" + name + "' is given twice");
  }
  return Status::success();
}

Status check_order(const Pipeline& pipeline) {
  for (size_t later = 0; later < pipeline.steps.size(); ++later)
    for (size_t earlier = 0; earlier < later; ++earlier) {
      const PassInfo &first = *pipeline.steps[earlier].pass, &second = *pipeline.steps[later].pass;
      if (llvm::is_contained(second.never_after, first.name))
        return usage_error(second.name + " cannot run after " + first.name + ": it would undo it");
    }
  return Status::success();
}

}  // namespace

std::string Pipeline::to_text() const {
  std::string text;
  for (const PipelineStep& step : steps) {
    text += (text.empty() ? "" : ", ") + step.pass->name.str();
    if (step.options.empty()) continue;
    text += '{';
    llvm::ListSeparator blank(" ");
    for (const auto& [name, value] : step.options) text += llvm::StringRef(blank).str() + name + "=" + value;
    text += '}';
  }
  return text;
}

Result<Pipeline> parse_pipeline(llvm::StringRef text) {
  Pipeline pipeline;
  for (llvm::StringRef rest = text.trim(); !rest.empty();) {
    size_t name_end = std::min(rest.find_first_of(",{"), rest.size());
    Result<PipelineStep> step = find_step(rest.take_front(name_end).trim());
    if (!step) return step.takeError();
    rest = rest.drop_front(name_end);
    if (rest.consume_front("{")) {
      size_t close = rest.find('}');
      if (close == llvm::StringRef::npos) return usage_error(step->pass->name + ": '{' without '}'");
      if (Status s = parse_options(*step, rest.take_front(close))) return s;
      rest = rest.drop_front(close + 1).ltrim();
    }
    if (!rest.empty() && !rest.consume_front(",")) return usage_error("expected ',' before '" + rest + "'");
    pipeline.steps.push_back(std::move(*step));
    rest = rest.ltrim();
  }
  if (Status s = check_order(pipeline)) return s;
  return pipeline;
}

}  // namespace plimsoll
