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

bool is_f8(DType dtype) { return dtype == DType::F8E4M3 || dtype == DType::F8E5M2; }

Result<PrecisionRule> parse_rule(llvm::StringRef line) {
  auto [left, right] = line.rsplit('=');
  if (left.trim() == "gradients") {
    const std::optional<DType> codes = parse_dtype(right.trim());
    if (!codes || !is_f8(*codes)) return usage_error("'" + line + "': gradients are f8e5m2 or f8e4m3");
    return PrecisionRule{PrecisionRule::Subject::Gradients, "", *codes, line.str()};
  }
  if (left.trim() == "scales") {
    const std::optional<F8Scales> scales = parse_f8_scales(right.trim());
    if (!scales || *scales == F8Scales::Tiles) return usage_error("'" + line + "': scales are tensor, rows or blocks");
    return PrecisionRule{PrecisionRule::Subject::Scales, "", DType::F8E4M3, line.str(), *scales};
  }
  auto [subject_name, pattern] = left.trim().split(':');
  std::optional<PrecisionRule::Subject> subject = parse_subject(subject_name);
  std::optional<DType> dtype = parse_precision(right.trim());
  if (!subject || pattern.empty() || !dtype)
    return usage_error("'" + line +
                       "': expected op:NAME, node:NAME or module:REGEX, then = and fp32, bf16, fp16 or fp8");
  PrecisionRule rule{*subject, pattern.str(), *dtype, line.str()};
  if (Status s = check_pattern(rule)) return s;
  return rule;
}

bool matches(const PrecisionRule& rule, const Graph& graph, const Node& node) {
  if (rule.subject == PrecisionRule::Subject::Gradients || rule.subject == PrecisionRule::Subject::Scales) return false;
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
  if (name == "fp8") return DType::F8E4M3;
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

DType f8_gradients(llvm::ArrayRef<PrecisionRule> rules) {
  for (const PrecisionRule& rule : llvm::reverse(rules))
    if (rule.subject == PrecisionRule::Subject::Gradients) return rule.dtype;
  return DType::F8E5M2;
}

F8Scales f8_scales(llvm::ArrayRef<PrecisionRule> rules) {
  for (const PrecisionRule& rule : llvm::reverse(rules))
    if (rule.subject == PrecisionRule::Subject::Scales) return rule.scales;
  return F8Scales::Tensor;
}

const PrecisionRule* find_rule(llvm::ArrayRef<PrecisionRule> rules, const Graph& graph, const Node& node) {
  for (const PrecisionRule& rule : llvm::reverse(rules))
    if (matches(rule, graph, node)) return &rule;
  return nullptr;
}

std::optional<DType> stored_precision(llvm::StringRef name) {
  return name == "fp8" ? std::optional(DType::BF16) : parse_precision(name);
}

bool is_mixed(llvm::StringRef precision) { return precision == "bf16" || precision == "fp16" || precision == "fp8"; }

Status check_precision(const Graph& graph, const TrainingRequest& request) {
  const std::string& precision = request.precision;
  constexpr llvm::StringLiteral known[] = {"exported", "fp32", "tf32", "bf16", "fp16", "fp8"};
  if (!llvm::is_contained(known, llvm::StringRef(precision)))
    return usage_error("precision " + precision + " is not known; known are exported, fp32, tf32, bf16, fp16 and fp8");
  if (!is_mixed(precision) && !request.precision_rules.empty())
    return usage_error("precision rules need precision bf16, fp16 or fp8, not " + precision);
  Result<std::vector<PrecisionRule>> rules = parse_precision_rules(request.precision_rules);
  if (!rules) return rules.takeError();
  for (const PrecisionRule& rule : *rules)
    if (is_f8(rule.dtype) && precision != "fp8")
      return usage_error("'" + rule.text + "': 8 bits need precision fp8, not " + precision);
  if (precision == "exported") return Status::success();
  std::optional<DType> wanted = stored_precision(precision);  // none: tf32
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
