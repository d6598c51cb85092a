#include "ir/ops/common/divide.h"
#include "ir/ops/common/reference_math.h"

#include <algorithm>
#include <cmath>

// Softmax, its logarithm and its limit along one axis, shifted by the largest element so that no exponential
// overflows; the arithmetic is f32 for 16-bit floats too. Both gradients read the result, so the input need not be
// kept.

namespace plimsoll {
namespace {

Result<Types> infer_along_axis(const OpCall& call) {
  for (size_t i = 0; i < call.count(); ++i) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_type(call, i, call.operand(0))) return s;
  }
  if (Status s = need_axis(call.attrs, "axis", call.operand(0).rank())) return s;
  return Types{call.operand(0)};
}

using Row = std::vector<double>;

// change(row, other) replaces each row of operand 0 along the axis; other is that row of operand 1, where there is one.
template <auto change>
void change_rows(const ReferenceCall& call) {
  AxisView view = along_axis(call.operand(0).shape, call.get_int("axis"));
  if (view.length == 0) return;
  std::vector<double> first = call.load(0), second = call.count() > 1 ? call.load(1) : Row();
  Row row(static_cast<size_t>(view.length)), other(second.empty() ? 0 : row.size());
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t i = 0; i < view.inner; ++i) {
      for (size_t k = 0; k < row.size(); ++k) row[k] = first[view.at(o, static_cast<int64_t>(k), i)];
      for (size_t k = 0; k < other.size(); ++k) other[k] = second[view.at(o, static_cast<int64_t>(k), i)];
      change(row, other);
      for (size_t k = 0; k < row.size(); ++k) call.results[0].set(view.at(o, static_cast<int64_t>(k), i), row[k]);
    }
}

double log_sum_exp(const Row& row) {
  double largest = *std::max_element(row.begin(), row.end()), sum = 0;
  for (double x : row) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

void softmax_row(Row& row, const Row&) {
  double lse = log_sum_exp(row);
  for (double& x : row) x = std::exp(x - lse);
}

void log_softmax_row(Row& row, const Row&) {
  double lse = log_sum_exp(row);
  for (double& x : row) x -= lse;
}

// dx = y * (dy - sum(y * dy))
void softmax_grad_row(Row& y, const Row& dy) {
  double sum = 0;
  for (size_t k = 0; k < y.size(); ++k) sum += y[k] * dy[k];
  for (size_t k = 0; k < y.size(); ++k) y[k] *= dy[k] - sum;
}

// dx = dy - exp(y) * sum(dy)
void log_softmax_grad_row(Row& y, const Row& dy) {
  double sum = 0;
  for (double d : dy) sum += d;
  for (size_t k = 0; k < y.size(); ++k) y[k] = dy[k] - std::exp(y[k]) * sum;
}

void hardmax_row(Row& row, const Row&) {
  auto first = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
  for (size_t k = 0; k < row.size(); ++k) row[k] = k == first;
}

void softmax_gradient(GradContext& g) {
  g.add("x", g.b.emit("softmax_grad", {g.result("y"), g.out_grad()}, g.attrs()));
}

void log_softmax_gradient(GradContext& g) {
  g.add("x", g.b.emit("log_softmax_grad", {g.result("y"), g.out_grad()}, g.attrs()));
}

std::vector<Sample> one_operand_samples() {
  using namespace samples;
  return {
      {{distinct({3, 5})}, {{"axis", 1}}},
      {{distinct({2, 4, 3})}, {{"axis", 1}}},
      {{distinct({6})}, {{"axis", 0}}},
      {{distinct({3, 5}, DType::BF16)}, {{"axis", 1}}},
  };
}

std::optional<DividedCall> divide_across_axis(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t) {
  std::string letters = pass_through(call["x"].rank());
  letters[static_cast<size_t>(call.get_int("axis"))] = '.';
  return divide_letters(call, {{letters}, {letters}}, known);
}

std::optional<ChunkCall> gradient_chunk(const OpCall& call, Chunk) {
  return call.get_int("axis") == 0 ? std::nullopt : std::optional<ChunkCall>(cut_operands(call, {"y", "dy"}));
}

std::vector<Sample> two_operand_samples() {
  using namespace samples;
  return {
      {{unit({3, 5}), normal({3, 5})}, {{"axis", 1}}},
      {{unit({2, 4, 3}), normal({2, 4, 3})}, {{"axis", 1}}},
      {{unit({3, 5}, DType::BF16), normal({3, 5}, DType::BF16)}, {{"axis", 1}}},
  };
}

}  // namespace

constinit const OpDef op_softmax{
    .name = "softmax",
    .summary = "exp(x) / sum(exp(x)) along {axis}",
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_along_axis,
    .gradient = Gradient::rule(softmax_gradient),
    .precision = Precision::Follow,  // the sum of exponentials is f32 whatever x is
    .dim_order = DimOrder::Axis,
    .in_place = {{"y", "x"}},
    .chunk = chunk_across_axis,
    .divide = divide_across_axis,
    .reference = change_rows<softmax_row>,
    .samples = one_operand_samples,
};

constinit const OpDef op_softmax_grad{
    .name = "softmax_grad",
    .summary = "y * (dy - sum(y * dy)) along {axis}, y being the softmax",
    .operands = {"y", "dy"},
    .results = {"dx"},
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_along_axis,
    .gradient = no_second_derivative,
    .precision = Precision::Follow,  // the sum of exponentials is f32 whatever x is
    .in_place = {{"dx", "y"}, {"dx", "dy"}},
    .chunk = gradient_chunk,
    .linear = {"sum(dy)"},
    .reference = change_rows<softmax_grad_row>,
    .samples = two_operand_samples,
};

constinit const OpDef op_log_softmax{
    .name = "log_softmax",
    .summary = "x - log(sum(exp(x))) along {axis}",
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_along_axis,
    .gradient = Gradient::rule(log_softmax_gradient),
    .precision = Precision::Full,
    .dim_order = DimOrder::Axis,
    .in_place = {{"y", "x"}},
    .chunk = chunk_across_axis,
    .divide = divide_across_axis,
    .reference = change_rows<log_softmax_row>,
    .samples = one_operand_samples,
};

constinit const OpDef op_log_softmax_grad{
    .name = "log_softmax_grad",
    .summary = "dy - exp(y) * sum(dy) along {axis}, y being the log_softmax",
    .operands = {"y", "dy"},
    .results = {"dx"},
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_along_axis,
    .gradient = no_second_derivative,
    .precision = Precision::Full,
    .in_place = {{"dx", "y"}, {"dx", "dy"}},
    .chunk = gradient_chunk,
    .linear = {"sum(dy)"},
    .reference = change_rows<log_softmax_grad_row>,
    .samples = two_operand_samples,
};

constinit const OpDef op_hardmax{
    .name = "hardmax",
    .summary = "1 at the first largest element along {axis}, 0 elsewhere",
    .attrs = {{"axis", AttrKind::Int}},
    .infer = infer_along_axis,
    .gradient = Gradient::zero(),
    .reference = change_rows<hardmax_row>,
    .samples = one_operand_samples,
};

}  // namespace plimsoll
