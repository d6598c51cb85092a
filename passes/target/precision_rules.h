#pragma once

// Precision rules say which nodes compute in another precision than their op's record would have it.
//
//   # the last line that matches decides
//   op:exp = bf16
//   node:/lm_head/MatMul = fp32
//   module:transformer\.h\.(0|1)\..* = fp32     a regular expression over the whole module path
//
// and of precision fp8 alone
//
//   module:lm_head = fp8       products of this layer read 8-bit operands
//   gradients = f8e4m3         what gradients of results are for products, f8e5m2 without this line
//   scales = rows              operands of products have a scale for each row, or by "blocks" one for each 128 numbers
//   of
//                              a row and for each 128 x 128 of a weight; "tensor" is one for all, as without this line

#include "ir/f8_scales.h"
#include "ir/graph.h"
#include "passes/job.h"

namespace plimsoll {

struct PrecisionRule {
  enum class Subject : uint8_t { Op, Node, Module, Gradients, Scales } subject = Subject::Op;
  std::string pattern;
  DType dtype = DType::F32;
  std::string text;  // as written, for reports
  F8Scales scales = F8Scales::Tensor;
};

// "fp32" | "bf16" | "fp16" | "fp8", which is f8e4m3; none for any other word.
std::optional<DType> parse_precision(llvm::StringRef name);

// The type that values have in that precision: of "fp8" bf16, since only operands of products have 8 bits.
std::optional<DType> stored_precision(llvm::StringRef name);

// Lines end at a newline or a semicolon. Errors: Fault::Usage, naming the line.
Result<std::vector<PrecisionRule>> parse_precision_rules(llvm::StringRef text);

// What gradients are cast to for products of 8-bit floats.
DType f8_gradients(llvm::ArrayRef<PrecisionRule> rules);

// Which numbers of an operand of such products share a scale. Blocks stand for tiles of weights.
F8Scales f8_scales(llvm::ArrayRef<PrecisionRule> rules);

// The rule that decides for `node`; null when none matches.
const PrecisionRule* find_rule(llvm::ArrayRef<PrecisionRule> rules, const Graph& graph, const Node& node);

// 16-bit compute over f32 parameters: "bf16", "fp16" or "fp8".
bool is_mixed(llvm::StringRef precision);

// Errors: Fault::Usage for an unknown precision and for rules nobody reads, Fault::Model where the model was
// exported in a dtype that is not the one asked for.
Status check_precision(const Graph& graph, const TrainingRequest& request);

}  // namespace plimsoll
