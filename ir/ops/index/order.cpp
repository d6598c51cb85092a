// Ops that look for the largest or smallest along an axis: top_k, arg_max, arg_min. NaN counts as the
// extreme; of equal elements the first comes first.

#include "ir/ops/elementwise/elementwise.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

using namespace samples;

template <typename T>
bool precedes(T a, T b, bool largest) {
  if (a != a || b != b) return a != a && b == b;
  return largest ? a > b : a < b;
}

Status need_number_axis(const OpCall& call) {
  if (Status s = need_number(call, "x")) return s;
  return need_axis(call.attrs, "axis", call["x"].rank());
}

// ---- top_k ----

Result<Types> infer_top_k(const OpCall& call) {
  if (Status s = need_number_axis(call)) return s;
  Type values = call["x"];
  int64_t& length = values.shape[call.get_int("axis")];
  int64_t k = call.get_int("k");
  if (k < 0 || k > length) return model_error("k is " + llvm::Twine(k) + " of " + llvm::Twine(length) + " elements");
  length = k;
  return Types{values, Type(DType::I64, values.shape)};
}

void top_k_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &values = call.out("values"), &indices = call.out("indices");
  int64_t axis = call.get_int("axis"), k = call.get_int("k");
  bool largest = call.get_int("largest") != 0;
  AxisView from = along_axis(x.type.shape, axis), to = along_axis(values.type.shape, axis);
  std::vector<int64_t> order(static_cast<size_t>(from.length));
  with_exact_type(x.type.dtype, [&](auto zero) {
    for (int64_t o = 0; o < from.outer; ++o)
      for (int64_t i = 0; i < from.inner; ++i) {
        auto element = [&](int64_t index) { return load<decltype(zero)>(x, from.at(o, index, i)); };
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t a, int64_t b) { return precedes(element(a), element(b), largest); });
        for (int64_t rank = 0; rank < k; ++rank) {
          int64_t index = order[rank];
          copy_elements(values, to.at(o, rank, i), x, from.at(o, index, i));
          indices.set_int(to.at(o, rank, i), index);
        }
      }
  });
}

void top_k_gradient(GradContext& g) {
  const Type type = g.type(g["x"]);
  Attrs attrs{{"axis", g.attrs().get_int("axis")}, {"reduction", "add"}};
  g.add("x", g.b.emit("scatter_elements", {zeros(g.b, type), g.result("indices"), g.out_grad()}, attrs));
}

double sorting_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  const Type& x = call["x"];
  auto length = static_cast<double>(x.shape[call.get_int("axis")]);
  return static_cast<double>(x.elements()) * std::log2(std::max(length, 2.0));
}

std::vector<Sample> top_k_samples() {
  return {{{distinct({2, 5})}, {{"axis", 1}, {"k", 3}}},
          {{distinct({4, 3})}, {{"axis", 0}, {"k", 2}, {"largest", 0}}},
          {{integers({8}, 0, 3)}, {{"axis", 0}, {"k", 8}, {"sorted", 1}}},
          {{integers({3, 150}, -9, 9)}, {{"axis", 1}, {"k", 33}}},
          {{integers({300, 2}, -40, 40)}, {{"axis", 0}, {"k", 5}, {"largest", 0}}}};
}

// ---- arg_max and arg_min ----

Result<Types> infer_arg(const OpCall& call) {
  if (Status s = need_number_axis(call)) return s;
  const Type& x = call["x"];
  int64_t axis = call.get_int("axis");
  if (x.shape[axis] == 0) return model_error("axis " + llvm::Twine(axis) + " is empty");
  return one_result(DType::I64, reduced_shape(x.shape, {axis}, call.get_int("keep_dims") != 0));
}

template <bool largest>
void arg_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &y = call.out("y");
  AxisView view = along_axis(x.type.shape, call.get_int("axis"));
  bool select_last = call.get_int("select_last") != 0;
  with_exact_type(x.type.dtype, [&](auto zero) {
    for (int64_t o = 0; o < view.outer; ++o)
      for (int64_t i = 0; i < view.inner; ++i) {
        auto element = [&](int64_t index) { return load<decltype(zero)>(x, view.at(o, index, i)); };
        int64_t best = 0;
        for (int64_t k = 1; k < view.length; ++k) {
          bool better = precedes(element(k), element(best), largest);
          bool equal = !better && !precedes(element(best), element(k), largest);
          if (better || (equal && select_last)) best = k;
        }
        y.set_int(o * view.inner + i, best);
      }
  });
}

std::vector<Sample> arg_samples() {
  return {{{fixed(distinct({3, 4}))}, {{"axis", 1}}},
          {{fixed(distinct({3, 4, 2}))}, {{"axis", 0}, {"keep_dims", 1}}},
          {{integers({2, 8}, 0, 2)}, {{"axis", 1}, {"select_last", 1}}}};
}

constexpr OpDef arg_op(llvm::StringLiteral name, llvm::StringLiteral summary, ReferenceFn reference) {
  return {.name = name,
          .summary = summary,
          .attrs = {{"axis", AttrKind::Int}, {"keep_dims", 0}, {"select_last", 0}},
          .infer = infer_arg,
          .gradient = Gradient::zero(),
          .flops = [](const OpCall& call, llvm::ArrayRef<Type>) { return static_cast<double>(call["x"].elements()); },
          .reference = reference,
          .samples = arg_samples};
}

}  // namespace

constinit const OpDef op_top_k{
    .name = "top_k",
    .summary =
        "the {k} largest, or smallest when {largest=0}, along {axis} in order, and their indices (i64) "
        "{sorted}",
    .results = {"values", "indices"},
    .attrs = {{"axis", AttrKind::Int}, {"k", AttrKind::Int}, {"largest", 1}, {"sorted", 1}},
    .infer = infer_top_k,
    .gradient = Gradient::rule(top_k_gradient),
    .flops = sorting_flops,
    .reference = top_k_reference,
    .samples = top_k_samples,
};

constinit const OpDef op_arg_max = arg_op(
    "arg_max", "the index (i64) of the first largest element along {axis}, or the last {select_last=1} {keep_dims}",
    arg_reference<true>);
constinit const OpDef op_arg_min = arg_op(
    "arg_min", "the index (i64) of the first smallest element along {axis}, or the last {select_last=1} {keep_dims}",
    arg_reference<false>);

}  // namespace plimsoll
