#include "passes/target/padding_numbers.h"

#include "ir/evaluate.h"
#include "passes/rewrite/match.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>

namespace plimsoll {
namespace {

bool all_are_float(const Graph& graph, const Node& node) {
  const auto is_float_value = [&](ValueId value) {
    return value != ValueId::None && is_float(graph.type(value).dtype);
  };
  return llvm::all_of(node.operands, is_float_value) && llvm::all_of(node.results, is_float_value);
}

double padding_of(const Graph& graph, const PaddedCall& each, const PaddingNumbers& numbers, size_t operand) {
  const auto known = numbers.find({graph.node(each.node).operands[operand], each.call.operands[operand]->dim});
  return known == numbers.end() ? 0 : known->second;
}

// The same in all operands, which may become one result.
std::optional<double> behind_move(const Graph& graph, const PaddedCall& each, const PaddingNumbers& numbers) {
  std::optional<double> number;
  for (size_t i = 0; i < graph.node(each.node).operands.size(); ++i) {
    if (!each.call.operands[i]) return std::nullopt;
    const double here = padding_of(graph, each, numbers, i);
    if (number && *number != here) return std::nullopt;
    number = here;
  }
  return number;
}

// A factor with zeros in the padding makes zeros there, and adds zeros to sums. A bias and an addend come to that.
std::optional<double> behind_product(const Graph& graph, const PaddedCall& each, const PaddingNumbers& numbers) {
  const Node& node = graph.node(each.node);
  bool has_zeros = false;
  for (size_t i = 0; i < 2; ++i) has_zeros |= each.call.operands[i] && padding_of(graph, each, numbers, i) == 0;
  if (!has_zeros) return std::nullopt;
  double number = 0;
  for (size_t i = 2; i < node.operands.size() && !each.call.sums; ++i) {
    if (node.operands[i] == ValueId::None) continue;
    if (!each.call.operands[i]) return std::nullopt;
    number += padding_of(graph, each, numbers, i);
  }
  return number;
}

// NaN where the op cannot be called with numbers.
double elementwise_of(const Graph& graph, const PaddedCall& each, llvm::ArrayRef<double> numbers) {
  std::vector<Tensor> tensors;
  for (double number : numbers) tensors.push_back(Tensor::scalar(number, DType::F64));
  llvm::SmallVector<const Tensor*, 4> operands;
  for (const Tensor& tensor : tensors) operands.push_back(&tensor);
  Result<std::vector<Tensor>> made = evaluate_node(*graph.node(each.node).op, each.call.attrs, operands);
  if (made) return made->front().get(0);
  llvm::consumeError(made.takeError());
  return NAN;
}

// Gradients that reach the padding are finite until they are cut off, where slopes are.
bool has_finite_slopes(const Graph& graph, const PaddedCall& each, llvm::ArrayRef<double> numbers) {
  constexpr double step = 1e-9, max_slope = 1e3;
  const double here = elementwise_of(graph, each, numbers);
  for (size_t i = 0; i < numbers.size(); ++i)
    for (double by : {-step, step}) {
      std::vector<double> near(numbers.begin(), numbers.end());
      near[i] += by;
      const bool is_finite = std::fabs(elementwise_of(graph, each, near) - here) <= max_slope * step;
      if (each.call.operands[i] && !is_finite) return false;
    }
  return true;
}

std::optional<double> behind_elementwise(const Graph& graph, const PaddedCall& each, const PaddingNumbers& numbers) {
  const Node& node = graph.node(each.node);
  std::vector<double> operands;
  bool any_zero = false, all_known = true;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const std::optional<double> number = each.call.operands[i]
                                             ? std::optional<double>(padding_of(graph, each, numbers, i))
                                             : splat_value(graph, node.operands[i]);
    any_zero |= each.call.operands[i] && *number == 0;
    all_known &= number.has_value();
    operands.push_back(number.value_or(1));
  }
  if (!all_known) return node.op->name == "mul" && any_zero ? std::optional<double>(0) : std::nullopt;
  const double number = elementwise_of(graph, each, operands);
  return std::isfinite(number) && has_finite_slopes(graph, each, operands) ? std::optional(number) : std::nullopt;
}

}  // namespace

PaddedKind padded_kind(const Graph& graph, const Node& node) {
  constexpr llvm::StringLiteral moves[] = {"reshape", "transpose", "split", "concat", "slice"};
  if (node.op->name == "linear" || node.op->name == "matmul") {
    const bool has_own_rules = node.attrs.has("f8") || node.attrs.has("f8_grad");
    return has_own_rules || !is_float(graph.type(node.results[0]).dtype) ? PaddedKind::None : PaddedKind::Product;
  }
  if (llvm::is_contained(moves, node.op->name)) return PaddedKind::Move;
  const bool is_elementwise =
      node.op->elementwise && !node.op->divide && !node.operands.empty() && node.results.size() == 1;
  return is_elementwise && all_are_float(graph, node) ? PaddedKind::Elementwise : PaddedKind::None;
}

std::optional<double> padding_behind(const Graph& graph, const PaddedCall& each, const PaddingNumbers& numbers) {
  switch (padded_kind(graph, graph.node(each.node))) {
    case PaddedKind::Product: return behind_product(graph, each, numbers);
    case PaddedKind::Move: return behind_move(graph, each, numbers);
    case PaddedKind::Elementwise: return behind_elementwise(graph, each, numbers);
    case PaddedKind::None: break;
  }
  return std::nullopt;
}

}  // namespace plimsoll
