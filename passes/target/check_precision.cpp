#include "passes/target/check_precision.h"

#include "passes/target/precision_rules.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

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
