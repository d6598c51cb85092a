#include "ir/f8_scales.h"
#include "ir/ops/common/reference_math.h"
#include "ir/ops/common/samples.h"

#include <cmath>
#include <limits>

// Codes of 8 bits for the operands of products, with one scale a tensor (f8_scale, to_f8) or one for each row, block or
// tile (to_scaled_f8). A scale is a power of two: then numbers are rounded alike whatever the largest of them is, but
// for those below the smallest normal code, and no scale is rounded itself.

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

// The largest size of numbers that share a scale; infinity as well where one is NaN.
double larger_size(double size, double x) { return std::isfinite(x) ? std::max(size, std::fabs(x)) : INFINITY; }

// Scales are normal numbers of f32, as is 1 over each.
double scale_of(double size, DType codes) {
  if (size == 0) return 1;
  if (!std::isfinite(size)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(std::exp2(std::ceil(std::log2(size / largest_of(codes)))), 0x1p-126);
}

// Numbers behind the largest code become it, and NaN the code 0x7f.
double code_of(double scaled, DType codes) {
  const double largest = largest_of(codes);
  return std::isnan(scaled) ? std::numeric_limits<double>::quiet_NaN() : std::min(std::max(scaled, -largest), largest);
}

void f8_scale_reference(const ReferenceCall& call) {
  double size = 0;
  for (double x : call.load("x")) size = larger_size(size, x);
  call.store({scale_of(size, call.attrs.get_dtype("to"))}, "scale");
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

void to_f8_reference(const ReferenceCall& call) {
  const double scale = call.load("scale")[0];
  const std::vector<double> x = call.load("x");
  const int64_t columns = call["x"].shape.back(), rows = columns == 0 ? 0 : static_cast<int64_t>(x.size()) / columns;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const double code = code_of(x[static_cast<size_t>(r * columns + c)] / scale, call.attrs.get_dtype("to"));
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

int64_t rows_of(const Type& x) { return element_count(llvm::ArrayRef<int64_t>(x.shape).drop_back()); }

Result<Types> infer_to_scaled_f8(const OpCall& call) {
  if (Status s = need_f32_or_16_bits(call)) return s;
  if (Status s = need_min_rank(call, "x", 1)) return s;
  const DType to = call.attrs.get_dtype("to");
  if (Status s = need_codes(to)) return s;
  const std::optional<F8Scales> by = parse_f8_scales(call.get_string("by"));
  if (!by || *by == F8Scales::Tensor)
    return model_error("by is '" + call.get_string("by") + "', it must be rows, blocks or tiles");
  const Type& x = call["x"];
  const int64_t rows = rows_of(x), columns = x.shape.back();
  const bool as_is = call.get_int("rows") != 0, turned = call.get_int("columns") != 0, tiles = *by == F8Scales::Tiles;
  const auto is_whole = [&](int64_t size) { return *by == F8Scales::Rows || size % f8_block == 0; };
  if (((as_is || tiles) && !is_whole(columns)) || ((turned || tiles) && !is_whole(rows)))
    return model_error("x has " + llvm::Twine(rows) + " rows of " + llvm::Twine(columns) + ", which are no whole " +
                       call.get_string("by") + " of " + llvm::Twine(f8_block));
  Types types;
  if (as_is) types.push_back(Type(to, x.shape));
  if (turned) types.push_back(Type(to, {columns, rows}));
  if (as_is) types.push_back(Type(DType::F32, f8_scales_shape(*by, rows, columns)));
  if (turned) types.push_back(Type(DType::F32, f8_scales_shape(*by, columns, rows)));
  if (types.empty()) return model_error("neither rows nor columns are asked for");
  return types;
}

// Codes of the matrix x [rows, columns], written at element_of(row, column).
template <typename ElementOf>
void store_scaled(const ReferenceCall& call, const F8Grid& grid, PortKey codes, PortKey scales, ElementOf element_of) {
  const DType to = call.attrs.get_dtype("to");
  const std::vector<double> x = call.load("x");
  const int64_t columns = call["x"].shape.back(), rows = rows_of(call["x"]);
  std::vector<double> own(static_cast<size_t>(call.out(scales).elements()));
  const auto each = [&](auto visit) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        visit(x[static_cast<size_t>(r * columns + c)], own[static_cast<size_t>(grid.index(r, c))], element_of(r, c));
  };
  each([](double number, double& size, int64_t) { size = larger_size(size, number); });
  for (double& scale : own) scale = scale_of(scale, to);
  each([&](double number, double scale, int64_t at) { call.out(codes).set(at, code_of(number / scale, to)); });
  call.store(own, scales);
}

void to_scaled_f8_reference(const ReferenceCall& call) {
  const F8Scales by = *parse_f8_scales(call.get_string("by"));
  const int64_t columns = call["x"].shape.back(), rows = rows_of(call["x"]);
  if (call.gives("codes"))
    store_scaled(call, f8_grid(by, rows, columns), "codes", "scales",
                 [&](int64_t r, int64_t c) { return r * columns + c; });
  if (call.gives("turned"))
    store_scaled(call, f8_grid(by, columns, rows).turned(), "turned", "turned_scales",
                 [&](int64_t r, int64_t c) { return c * rows + r; });
}

std::vector<Sample> to_scaled_f8_samples() {
  using namespace samples;
  const auto attrs = [](llvm::StringLiteral by, DType to, int64_t rows, int64_t columns) {
    return Attrs{{"by", by.str()}, {"to", to}, {"rows", rows}, {"columns", columns}};
  };
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  // The last row, and the last column, are zero; others end right at the largest code, behind it, and in what is not
  // finite.
  const std::vector<double> odd = {448,   448.5, -1e9, 0, 1e-30, -2, 1e-44, 0, 3, infinity,
                                   57344, 0,     nan,  5, 1,     0,  0,     0, 0, 0};
  return {
      {{fixed(values({5, 4}, odd))}, attrs("rows", DType::F8E4M3, 1, 1)},
      {{fixed(values({5, 4}, odd))}, attrs("rows", DType::F8E5M2, 1, 1)},
      {{normal({2, 16, 48}, DType::BF16)}, attrs("rows", DType::F8E4M3, 1, 1)},
      {{normal({16, 80}, DType::F16)}, attrs("rows", DType::F8E5M2, 1, 0)},
      {{normal({144, 16})}, attrs("rows", DType::F8E4M3, 0, 1)},
      {{normal({2, 64, 256}, DType::BF16)}, attrs("blocks", DType::F8E4M3, 1, 1)},
      {{normal({5, 256})}, attrs("blocks", DType::F8E5M2, 1, 0)},
      {{normal({256, 24}, DType::F16)}, attrs("blocks", DType::F8E4M3, 0, 1)},
      {{normal({256, 128})}, attrs("tiles", DType::F8E4M3, 1, 1)},
      {{normal({128, 640}, DType::BF16)}, attrs("tiles", DType::F8E4M3, 0, 1)},
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

constinit const OpDef op_to_scaled_f8{
    .name = "to_scaled_f8",
    .summary =
        "x[..., C] as {to}, an 8-bit float, and scales as f8_scale has them: one for each row, or {by} blocks for each "
        "128 "
        "numbers of a row, or {by} tiles for each 128 x 128; with {rows} codes as x lies and their scales, with "
        "{columns} "
        "the transpose [C, rows] and scales along its own rows",
    .results = {"codes?rows", "turned?columns", "scales?rows", "turned_scales?columns"},
    .attrs = {{"to", AttrKind::DType}, {"by", AttrKind::String}, {"rows", 0}, {"columns", 0}},
    .infer = infer_to_scaled_f8,
    .gradient = Gradient::missing("8-bit operands are made behind differentiation"),
    .linear = {"?"},
    .reference = to_scaled_f8_reference,
    .samples = to_scaled_f8_samples,
};

}  // namespace plimsoll
