#include "ir/ops/common/reference_math.h"
#include "ir/ops/common/samples.h"

#include <cmath>
#include <limits>

// Codes of 8 bits for the operands of products. A tensor has one scale, a power of two: then numbers are rounded alike
// whatever the largest of them is, but for those below the smallest normal code, and no scale is rounded itself.

namespace plimsoll {
namespace {

// f8e4m3 ends at 448 = 1.75 * 2^8, f8e5m2 at 57344 = 1.75 * 2^15.
double largest_of(DType codes) { return codes == DType::F8E4M3 ? 448 : 57344; }

Status need_codes(DType dtype) {
  if (dtype == DType::F8E4M3 || dtype == DType::F8E5M2) return Status::success();
  return model_error("to is " + dtype_name(dtype) + ", it must be f8e4m3 or f8e5m2");
}

Status need_f32_or_16_bits(const OpCall& call) {
  const DType dtype = call["x"].dtype;
  if (dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16) return Status::success();
  return model_error("x is " + to_string(call["x"]) + ", it must be f32, bf16 or f16");
}

Result<Types> infer_f8_scale(const OpCall& call) {
  if (Status s = need_f32_or_16_bits(call)) return s;
  if (Status s = need_codes(call.attrs.get_dtype("to"))) return s;
  return one_result(DType::F32, {});
}

// Scales are normal numbers of f32, as is 1 over each.
void f8_scale_reference(const ReferenceCall& call) {
  double largest = 0;
  bool finite = true;
  for (double x : call.load("x")) {
    finite &= std::isfinite(x);
    largest = std::max(largest, std::fabs(x));
  }
  double scale = 1;
  if (!finite)
    scale = std::numeric_limits<double>::quiet_NaN();
  else if (largest > 0)
    scale = std::max(std::exp2(std::ceil(std::log2(largest / largest_of(call.attrs.get_dtype("to"))))), 0x1p-126);
  call.store({scale}, "scale");
}

std::vector<Sample> f8_scale_samples() {
  using namespace samples;
  const Attrs e4m3{{"to", DType::F8E4M3}}, e5m2{{"to", DType::F8E5M2}};
  return {
      {{normal({3, 40})}, e4m3},
      {{normal({2, 32, 48}, DType::BF16)}, e5m2},
      {{normal({33, 64}, DType::F16)}, e4m3},
      {{values({5}, {448, -1, 0, 3, 1e-30})}, e4m3},
      {{values({5}, {1, -448.5, 0, 3, 1e-30})}, e4m3},
      {{values({3}, {1e-44, 0, 0})}, e5m2},
      {{values({3}, {0, 0, 0})}, e4m3},
      {{values({3}, {1, std::numeric_limits<double>::infinity(), 0})}, e4m3},
      {{values({3}, {1, std::numeric_limits<double>::quiet_NaN(), 0})}, e5m2},
  };
}

Result<Types> infer_to_f8(const OpCall& call) {
  if (Status s = need_f32_or_16_bits(call)) return s;
  if (Status s = need_min_rank(call, "x", 1)) return s;
  const DType to = call.attrs.get_dtype("to");
  if (Status s = need_codes(to)) return s;
  if (Status s = need_elements(call, "scale", DType::F32, 1)) return s;
  const Shape& shape = call["x"].shape;
  Types types;
  if (call.get_int("rows")) types.push_back(Type(to, shape));
  if (call.get_int("columns"))
    types.push_back(Type(to, {shape.back(), element_count(llvm::ArrayRef<int64_t>(shape).drop_back())}));
  if (types.empty()) return model_error("neither rows nor columns are asked for");
  return types;
}

// Numbers behind the largest code become it, and NaN the code 0x7f.
void to_f8_reference(const ReferenceCall& call) {
  const double largest = largest_of(call.attrs.get_dtype("to")), scale = call.load("scale")[0];
  const std::vector<double> x = call.load("x");
  const int64_t columns = call["x"].shape.back(), rows = columns == 0 ? 0 : static_cast<int64_t>(x.size()) / columns;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double scaled = x[static_cast<size_t>(r * columns + c)] / scale;
      const double code =
          std::isnan(scaled) ? std::numeric_limits<double>::quiet_NaN() : std::min(std::max(scaled, -largest), largest);
      if (call.gives("codes")) call.out("codes").set(r * columns + c, code);
      if (call.gives("turned")) call.out("turned").set(c * rows + r, code);
    }
}

std::vector<Sample> to_f8_samples() {
  using namespace samples;
  const auto attrs = [](DType to, int64_t rows, int64_t columns) {
    return Attrs{{"to", to}, {"rows", rows}, {"columns", columns}};
  };
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  // Ties, the ends of the range, what is behind them, and numbers below the smallest normal one.
  const std::vector<double> odd = {0,         -0.0,     1.0625,   1.1875,    -1.0625,  447,       448,    463,
                                   464,       465,      1e9,      -1e9,      0x1p-6,   0x1p-7,    0x1p-9, 0x1p-10,
                                   0x1.8p-10, 0x1.4p-9, 0x1.cp-9, -0x1p-9,   1.125,    1.375,     57344,  61440,
                                   0x1p-14,   0x1p-16,  0x1p-17,  0x1.8p-17, infinity, -infinity, nan,    -3};
  return {
      {{normal({3, 40}), fixed(values({}, {0.25}))}, attrs(DType::F8E4M3, 1, 0)},
      {{normal({3, 5}), fixed(values({}, {0.5}))}, attrs(DType::F8E5M2, 0, 1)},
      {{fixed(values({4, 8}, odd)), fixed(values({1}, {1}))}, attrs(DType::F8E4M3, 1, 1)},
      {{fixed(values({4, 8}, odd)), fixed(values({1}, {1}))}, attrs(DType::F8E5M2, 1, 1)},
      {{fixed(values({2, 16}, odd)), fixed(values({}, {nan}))}, attrs(DType::F8E4M3, 1, 1)},
      {{normal({2, 16, 48}, DType::BF16), fixed(values({}, {0x1p-7}))}, attrs(DType::F8E4M3, 1, 1)},
      {{normal({144, 80}, DType::BF16), fixed(values({}, {0x1p-14}))}, attrs(DType::F8E5M2, 1, 1)},
      {{normal({272, 144}), fixed(values({}, {0x1p-6}))}, attrs(DType::F8E4M3, 1, 1)},
      {{normal({64, 32}, DType::F16), fixed(values({}, {0x1p-7}))}, attrs(DType::F8E4M3, 0, 1)},
      {{normal({16, 128}, DType::BF16), fixed(values({}, {0x1p-7}))}, attrs(DType::F8E4M3, 1, 0)},
  };
}

}  // namespace

constinit const OpDef op_f8_scale{
    .name = "f8_scale",
    .summary =
        "the smallest power of two, from 2^-126 on, that brings x within {to}, an 8-bit float, when x is divided by "
        "it; "
        "1 where x is all zero, NaN where x is not finite",
    .results = {"scale"},
    .attrs = {{"to", AttrKind::DType}},
    .infer = infer_f8_scale,
    .gradient = Gradient::zero(),
    .linear = {"?"},
    .reference = f8_scale_reference,
    .samples = f8_scale_samples,
};

constinit const OpDef op_to_f8{
    .name = "to_f8",
    .summary =
        "x[..., C] over its scale as {to}, an 8-bit float, rounded to even and to the largest number beyond it: with "
        "{rows} codes as x lies, with {columns} the transpose [C, rows] as well",
    .operands = {"x", "scale"},
    .results = {"codes?rows", "turned?columns"},
    .attrs = {{"to", AttrKind::DType}, {"rows", 0}, {"columns", 0}},
    .infer = infer_to_f8,
    .gradient = Gradient::missing("8-bit operands are made behind differentiation"),
    .linear = {"?"},
    .reference = to_f8_reference,
    .samples = to_f8_samples,
};

}  // namespace plimsoll
