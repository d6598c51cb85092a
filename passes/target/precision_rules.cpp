#include "passes/target/precision_rules.h"

#include "ir/op_def.h"
#include "ir/support/regex_text.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

std::optional<PrecisionRule::Subject> parse_subject(llvm::StringRef name) {
  constexpr llvm::StringLiteral names[] = {"op", "node", "module"};
  for (size_t i = 0; i < std::size(names); ++i)
    if (names[i] == name) return static_cast<PrecisionRule::Subject>(i);
  return std::nullopt;
}

Status check_pattern(const PrecisionRule& rule) {
  if (rule.subject == PrecisionRule::Subject::Module)
    if (Result<llvm::Regex> regex = parse_regex(rule.pattern, /*whole=*/true); !regex) return regex.takeError();
  if (rule.subject == PrecisionRule::Subject::Op && !find_op(rule.pattern))
    return usage_error("'" + rule.text + "': there is no op '" + rule.pattern + "'");
  return Status::success();
}

Result<PrecisionRule> parse_rule(llvm::StringRef line) {
  auto [left, right] = line.rsplit('=');
  auto [subject_name, pattern] = left.trim().split(':');
  std::optional<PrecisionRule::Subject> subject = parse_subject(subject_name);
  std::optional<DType> dtype = parse_precision(right.trim());
  if (!subject || pattern.empty() || !dtype)
    return usage_error("'" + line + "': expected op:NAME, node:NAME or module:REGEX, then = and fp32, bf16 or fp16");
  PrecisionRule rule{*subject, pattern.str(), *dtype, line.str()};
  if (Status s = check_pattern(rule)) return s;
  return rule;
}

bool matches(const PrecisionRule& rule, const Graph& graph, const Node& node) {
  if (rule.subject == PrecisionRule::Subject::Op) return node.op->name == rule.pattern;
  if (node.origin == OriginId::None) return false;
  const Origin& origin = graph.origins[index_of(node.origin)];
  if (rule.subject == PrecisionRule::Subject::Node) return origin.node == rule.pattern;
  return llvm::Regex("^(" + rule.pattern + ")$").match(origin.module);
}

}  // namespace

std::optional<DType> parse_precision(llvm::StringRef name) {
  if (name == "fp32") return DType::F32;
  if (name == "bf16") return DType::BF16;
  if (name == "fp16") return DType::F16;
  return std::nullopt;
}

Result<std::vector<PrecisionRule>> parse_precision_rules(llvm::StringRef text) {
  std::vector<PrecisionRule> rules;
  while (!text.empty()) {
    size_t end = std::min(text.find_first_of("\n;"), text.size());
    llvm::StringRef line = text.take_front(end).split('#').first.trim();
    text = text.drop_front(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    Result<PrecisionRule> rule = parse_rule(line);
    if (!rule) return rule.takeError();
    rules.push_back(std::move(*rule));
  }
  return rules;
}

const PrecisionRule* find_rule(llvm::ArrayRef<PrecisionRule> rules, const Graph& graph, const Node& node) {
  for (const PrecisionRule& rule : llvm::reverse(rules))
    if (matches(rule, graph, node)) return &rule;
  return nullptr;
}

bool is_mixed(llvm::StringRef precision) { return precision == "bf16" || precision == "fp16"; }

Status check_precision(const Graph& graph, const TrainingRequest& request) {
  const std::string& precision = request.precision;
  constexpr llvm::StringLiteral known[] = {"exported", "fp32", "tf32", "bf16", "fp16"};
  if (!llvm::is_contained(known, llvm::StringRef(precision)))
    return usage_error("precision " + precision + " is not known; known are exported, fp32, tf32, bf16 and fp16");
  if (!is_mixed(precision) && !request.precision_rules.empty())
    return usage_error("precision rules need precision bf16 or fp16, not " + precision);
  if (precision == "exported") return Status::success();
  std::optional<DType> wanted = parse_precision(precision);  // none: tf32
  for (const State& state : graph.states) {
    const DType dtype = graph.type(state.value).dtype;
    if (is_float(dtype) && dtype != DType::F32 && dtype != wanted)
      return model_error("precision " + precision + ": " + graph.value(state.value).name + " was exported as " +
                         to_string(graph.type(state.value)) +
                         "; export the model in float32, or train it in precision 'exported'");
  }
  return Status::success();
}

}  // namespace plimsoll
