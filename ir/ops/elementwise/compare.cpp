// Comparisons, tests and logic, whose results are bool, and the bit operations. Nothing flows back through
// them.

#include "ir/ops/elementwise/elementwise.h"

namespace plimsoll {
namespace {

using samples::Fill;

Result<Types> infer_pair(const OpCall& call, DType result) {
  if (Status s = need_same_dtype(call, "a", "b")) return s;
  Result<Shape> shape = broadcast_operands(call);
  if (!shape) return shape.takeError();
  return one_result(result, *shape);
}

Result<Types> infer_comparison(const OpCall& call) { return infer_pair(call, DType::Bool); }

Result<Types> infer_logic(const OpCall& call) {
  for (size_t i = 0; i < call.count(); ++i)
    if (Status s = need_bool(call, i)) return s;
  return call.count() == 1 ? infer_same(call) : infer_comparison(call);
}

Result<Types> infer_bits(const OpCall& call) {
  if (Status s = need_integer(call, "a")) return s;
  return infer_pair(call, call["a"].dtype);
}

Result<Types> infer_shift(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "direction", {"left", "right"})) return s;
  if (Status s = need_integer(call, "a")) return s;
  return infer_pair(call, call["a"].dtype);
}

// A shift by the width of `dtype` or more leaves nothing. Right shifts bring in zeros whatever the sign.
uint64_t shifted(uint64_t a, uint64_t b, DType dtype, bool left) {
  auto width = static_cast<uint64_t>(8 * dtype_bytes(dtype));
  if (b >= width) return 0;
  if (left) return a << b;
  uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  return (a & mask) >> b;
}

void shift_reference(const ReferenceCall& call) {
  const TensorView &a = call.in("a"), &b = call.in("b"), &y = call.out("y");
  bool left = call.get_string("direction") == "left";
  const Shape& shape = y.type.shape;
  walk<2>(shape, {broadcast_strides(a.type.shape, shape), broadcast_strides(b.type.shape, shape)}, {},
          [&](int64_t i, const auto& at) {
            store(y, i, shifted(load<uint64_t>(a, at[0]), load<uint64_t>(b, at[1]), y.type.dtype, left));
          });
}

template <auto f>
void map_bits(const ReferenceCall& call) {
  return map_binary<[](auto a, auto b) { return f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)); }>(call);
}

constexpr NamePairs over_either{{"y", "a"}, {"y", "b"}};

constexpr OpDef pairwise(llvm::StringLiteral name, llvm::StringLiteral summary, InferFn infer, ReferenceFn reference,
                         SamplesFn samples, NamePairs in_place = {}, AttrSpecs attrs = {}) {
  return {.name = name,
          .summary = summary,
          .operands = {"a", "b"},
          .attrs = attrs,
          .infer = infer,
          .gradient = Gradient::zero(),
          .elementwise = true,
          .in_place = in_place,
          .reference = reference,
          .samples = samples};
}

constexpr OpDef test(llvm::StringLiteral name, llvm::StringLiteral summary, InferFn infer, ReferenceFn reference,
                     SamplesFn samples, AttrSpecs attrs = {}) {
  OpDef op = pairwise(name, summary, infer, reference, samples);
  op.operands = {"x"};
  op.attrs = attrs;
  return op;
}

// Small integers, so that equal pairs occur.
std::vector<Sample> order_samples() {
  using namespace samples;
  return {{{integers({4, 3}, 0, 2), integers({3}, 0, 2)}, {}},
          {{distinct({2, 1, 3}), distinct({2, 1})}, {}},
          {{integers({5}, 0, 2, DType::U64), integers({}, 0, 2, DType::U64)}, {}}};
}

std::vector<Sample> equality_samples() {
  std::vector<Sample> list = order_samples();
  list.push_back({{samples::bools({2, 3}), samples::bools({3})}, {}});
  return list;
}

std::vector<Sample> bit_samples() {
  using namespace samples;
  return {{{integers({4, 3}, -9, 9), integers({3}, -9, 9)}, {}},
          {{integers({5}, 0, 255, DType::U8), integers({}, 0, 255, DType::U8)}, {}}};
}

std::vector<Sample> shift_samples() {
  using namespace samples;
  Attrs left{{"direction", "left"}}, right{{"direction", "right"}};
  return {{{integers({2, 3}, 0, 255, DType::U8), integers({3}, 0, 9, DType::U8)}, left},
          {{integers({2, 3}, 0, 255, DType::U8), integers({3}, 0, 9, DType::U8)}, right},
          {{integers({5}, 0, 1 << 20, DType::U64), integers({}, 3, 3, DType::U64)}, right}};
}

std::vector<Sample> special_samples() {
  using namespace samples;
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> list = {0, -infinity, nan, infinity, 1.5};
  return {{{fixed(values({5}, list))}, {}}, {{fixed(values({5}, list, DType::BF16))}, {}}};
}

std::vector<Sample> infinity_samples() {
  std::vector<Sample> list = special_samples();
  list[1].attrs = {{"negative", 0}, {"positive", 1}};
  return list;
}

Result<Types> infer_test(const OpCall& call) {
  if (Status s = need_float(call, "x")) return s;
  return one_result(DType::Bool, call["x"].shape);
}

bool is_chosen_infinity(double x, const Attrs& attrs) {
  return std::isinf(x) && attrs.get_int(x < 0 ? "negative" : "positive", 1) != 0;
}

}  // namespace

// ---- Comparisons ----

constinit const OpDef op_equal =
    pairwise("equal", "a == b", infer_comparison, map_binary<[](auto a, auto b) { return a == b; }>, equality_samples);
constinit const OpDef op_less =
    pairwise("less", "a < b", infer_comparison, map_binary<[](auto a, auto b) { return a < b; }>, order_samples);
constinit const OpDef op_less_equal = pairwise("less_equal", "a <= b", infer_comparison,
                                               map_binary<[](auto a, auto b) { return a <= b; }>, order_samples);
constinit const OpDef op_greater =
    pairwise("greater", "a > b", infer_comparison, map_binary<[](auto a, auto b) { return b < a; }>, order_samples);
constinit const OpDef op_greater_equal = pairwise("greater_equal", "a >= b", infer_comparison,
                                                  map_binary<[](auto a, auto b) { return b <= a; }>, order_samples);

constinit const OpDef op_is_nan =
    test("is_nan", "is x not a number", infer_test, map_unary<[](double x) { return std::isnan(x); }>, special_samples);
constinit const OpDef op_is_inf =
    test("is_inf", "is x infinite; {negative=0} or {positive=0} leaves that sign out", infer_test,
         map_unary<is_chosen_infinity>, infinity_samples, {{"negative", 1}, {"positive", 1}});

// ---- Logic and bits ----

constinit const OpDef op_not = [] {
  OpDef op = test("not", "logical not", infer_logic, map_unary<[](auto x) { return x == 0; }>,
                  unary_samples<Fill::Bools, DType::Bool>);
  op.in_place = {{"y", "x"}};
  return op;
}();
constinit const OpDef op_and =
    pairwise("and", "logical and", infer_logic, map_binary<[](auto a, auto b) { return a != 0 && b != 0; }>,
             binary_samples<Fill::Bools, DType::Bool>, over_either);
constinit const OpDef op_or =
    pairwise("or", "logical or", infer_logic, map_binary<[](auto a, auto b) { return a != 0 || b != 0; }>,
             binary_samples<Fill::Bools, DType::Bool>, over_either);
constinit const OpDef op_xor =
    pairwise("xor", "exactly one of two", infer_logic, map_binary<[](auto a, auto b) { return a != b; }>,
             binary_samples<Fill::Bools, DType::Bool>, over_either);

constinit const OpDef op_bitwise_and =
    pairwise("bitwise_and", "bits set in both integers", infer_bits,
             map_bits<[](uint64_t a, uint64_t b) { return a & b; }>, bit_samples, over_either);
constinit const OpDef op_bitwise_or =
    pairwise("bitwise_or", "bits set in either integer", infer_bits,
             map_bits<[](uint64_t a, uint64_t b) { return a | b; }>, bit_samples, over_either);
constinit const OpDef op_bitwise_xor =
    pairwise("bitwise_xor", "bits set in exactly one of two integers", infer_bits,
             map_bits<[](uint64_t a, uint64_t b) { return a ^ b; }>, bit_samples, over_either);
constinit const OpDef op_bit_shift =
    pairwise("bit_shift", "a shifted by b bits {direction=left|right}, zeros coming in", infer_shift, shift_reference,
             shift_samples, over_either, {{"direction", AttrKind::String}});

}  // namespace plimsoll
