#include "ir/f8_scales.h"
#include "ir/ops/common/reference_math.h"
#include "ir/ops/common/samples.h"

// linear_f8: a product of 8-bit codes, whose scales say by their shapes what shares them (ir/f8_scales.h). Both
// operands have the dimension that is summed over last, which is how the matrix units read them; whoever needs the
// other layout makes turned codes (to_f8, to_scaled_f8).

namespace plimsoll {
namespace {

bool is_codes(DType dtype) { return dtype == DType::F8E4M3 || dtype == DType::F8E5M2; }

int64_t rows_of(const Type& codes) { return element_count(llvm::ArrayRef<int64_t>(codes.shape).drop_back()); }

std::optional<F8Scales> scales_of(const OpCall& call, PortKey codes, PortKey scales) {
  return f8_scales_of(call[scales], rows_of(call[codes]), call[codes].shape.back());
}

Status need_scales(const OpCall& call, llvm::StringLiteral codes, llvm::StringLiteral scales) {
  if (scales_of(call, codes, scales)) return Status::success();
  return model_error(scales + " is " + to_string(call[scales]) + ", of " + to_string(call[codes]) +
                     " it must be one number or those of rows, blocks or tiles in f32");
}

Result<Types> infer_linear_f8(const OpCall& call) {
  const Type &x = call["x"], &w = call["w"];
  if (Status s = need_min_rank(call, "x", 1)) return s;
  if (Status s = need_rank(call, "w", 2)) return s;
  if (!is_codes(x.dtype) || !is_codes(w.dtype))
    return model_error("operands are " + to_string(x) + " and " + to_string(w) + ", they must be f8e4m3 or f8e5m2");
  if (x.dtype == DType::F8E5M2 && w.dtype == DType::F8E5M2)
    return model_error("both operands are f8e5m2; matrix units want one of f8e4m3");
  if (x.shape.back() != w.shape[1])
    return model_error("inner sizes differ: " + llvm::Twine(x.shape.back()) + " and " + llvm::Twine(w.shape[1]) +
                       " in " + to_string(x) + " x " + to_string(w));
  if (Status s = need_scales(call, "x", "x_scale")) return s;
  if (Status s = need_scales(call, "w", "w_scale")) return s;
  const DType dtype = call.attrs.get_dtype("dtype");
  if (dtype != DType::F32 && dtype != DType::BF16 && dtype != DType::F16)
    return model_error("dtype is " + dtype_name(dtype) + ", it must be f32, bf16 or f16");
  Type y(dtype, x.shape);
  y.shape.back() = w.shape[0];
  if (Status s = need_type(call, "bias", Type(dtype, {w.shape[0]}))) return s;
  if (Status s = need_type(call, "addend", y)) return s;
  return Types{y};
}

double linear_f8_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return 2.0 * static_cast<double>(results[0].elements()) * static_cast<double>(call["x"].shape.back());
}

// Codes times their scales.
std::vector<double> numbers_of(const ReferenceCall& call, PortKey codes, PortKey scales) {
  const int64_t columns = call[codes].shape.back();
  const F8Grid grid = f8_grid(*scales_of(call, codes, scales), rows_of(call[codes]), columns);
  const std::vector<double> own = call.load(scales);
  std::vector<double> numbers = call.load(codes);
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] *=
        own[static_cast<size_t>(grid.index(static_cast<int64_t>(i) / columns, static_cast<int64_t>(i) % columns))];
  return numbers;
}

void linear_f8_reference(const ReferenceCall& call) {
  const int64_t inner = call["w"].shape[1], columns = call["w"].shape[0];
  const std::vector<double> x = numbers_of(call, "x", "x_scale"), w = numbers_of(call, "w", "w_scale"),
                            bias = call.load("bias"), addend = call.load("addend");
  std::vector<double> y(static_cast<size_t>(call.out("y").elements()));
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row = i / static_cast<size_t>(columns), column = i % static_cast<size_t>(columns);
    double sum = 0;
    for (size_t k = 0; k < static_cast<size_t>(inner); ++k)
      sum += x[row * static_cast<size_t>(inner) + k] * w[column * static_cast<size_t>(inner) + k];
    y[i] = sum + (bias.empty() ? 0 : bias[column]) + (addend.empty() ? 0 : addend[i]);
  }
  call.store(y, "y");
}

std::vector<Sample> linear_f8_samples() {
  using namespace samples;
  const auto codes = [](Dims shape, DType dtype = DType::F8E4M3) { return fixed(normal(shape, dtype)); };
  const auto scale = [](double value) { return fixed(values({}, {value})); };
  const auto scales = [](Dims shape) {
    return fixed(values(shape, Floats(static_cast<size_t>(element_count(shape)), 0.5)));
  };
  const Attrs bf16{{"dtype", DType::BF16}}, f32{{"dtype", DType::F32}}, f16{{"dtype", DType::F16}, {"fast_sums", 1}};
  return {
      {{codes({3, 4}), codes({5, 4}), scale(0.5), scale(2), fixed(normal({5})), fixed(normal({3, 5}))}, f32},
      {{codes({2, 16, 48}), codes({32, 48}), scale(0.25), scale(1)}, bf16},
      {{codes({48, 32}), codes({16, 32}), scale(0.25), scale(1), fixed(normal({16}, DType::BF16)),
        fixed(normal({48, 16}, DType::BF16))},
       bf16},
      {{codes({32, 64}, DType::F8E5M2), codes({48, 64}), scale(0x1p-7), scale(0.5), absent(), fixed(normal({32, 48}))},
       f32},
      {{codes({32, 64}), codes({48, 64}, DType::F8E5M2), scale(2), scale(0.5)}, f32},
      {{codes({16, 32}), codes({16, 32}), scale(1), scale(0.5)}, f16},
      {{codes({3, 4}), codes({5, 4}), scales({3}), scales({5}), fixed(normal({5})), fixed(normal({3, 5}))}, f32},
      {{codes({2, 16, 48}), codes({32, 48}), scales({32}), scales({32}), fixed(normal({32}, DType::BF16))}, bf16},
      {{codes({48, 32}, DType::F8E5M2), codes({16, 32}), scales({48}), scales({16})}, f32},
      {{codes({16, 256}), codes({128, 256}), scales({2, 16}), scales({1, 4}), fixed(normal({128}, DType::BF16))}, bf16},
      {{codes({128, 128}, DType::F8E5M2), codes({128, 128}), scales({1, 128}), scales({1, 128})}, f32},
  };
}

}  // namespace

constinit const OpDef op_linear_f8{
    .name = "linear_f8",
    .summary =
        "x[..., K] times w[N, K] transposed, codes times their scales, plus bias[N] and an addend of the result's type "
        "when "
        "given, of 8-bit floats, summed in f32 and rounded to {dtype}; a scale is one number, or for each row, block "
        "or tile of its "
        "operand as to_scaled_f8 makes them; {fast_sums} lets matrix units sum with fewer "
        "bits. {packed} says that w and its scale are codes of a frozen weight as dequantize reads them, {transposed} "
        "as there",
    .operands = {"x", "w", "x_scale", "w_scale", "bias?", "addend?"},
    .attrs = {{"dtype", AttrKind::DType}, {"fast_sums", 0}, {"packed", 0}, {"transposed", 0}},
    .infer = infer_linear_f8,
    .gradient = Gradient::missing("8-bit operands are made behind differentiation"),
    .precision = Precision::Low,
    .addend = "addend",
    .in_place = {{"y", "addend"}},
    .flops = linear_f8_flops,
    .linear = {"?"},
    .reference = linear_f8_reference,
    .samples = linear_f8_samples,
};

}  // namespace plimsoll
