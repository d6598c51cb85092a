#include "ir/ops/common/samples.h"
#include "ir/ops/common/support.h"
#include "ir/quantized_numbers.h"

#include <cmath>

// dequantize: a frozen weight out of the few bits that it is stored in. It is an ordinary op, so that a budget decides
// which weights are kept in 16 bits between forward and backward, and which are made again.

namespace plimsoll {
namespace {

enum class Format : uint8_t { NF4, FP4, Int4, Int8, FP8 };

std::optional<Format> format_of(llvm::StringRef name) {
  if (name == "nf4") return Format::NF4;
  if (name == "fp4") return Format::FP4;
  if (name == "int4") return Format::Int4;
  if (name == "int8") return Format::Int8;
  return name == "fp8" ? std::optional(Format::FP8) : std::nullopt;
}

bool has_4_bits(Format format) { return format == Format::NF4 || format == Format::FP4 || format == Format::Int4; }

// Only scales that the model itself has are 16-bit floats.
Status need_scales(const OpCall& call, int64_t blocks) {
  if (call.has("scale_scales") != call.has("offset"))
    return model_error("quantised scales have scales and an offset, or neither");
  const DType dtype = call["scales"].dtype;
  const bool is_16_bit = call.get_int("given") != 0 && (dtype == DType::F16 || dtype == DType::BF16);
  const DType wanted = call.has("scale_scales") ? DType::U8 : is_16_bit ? dtype : DType::F32;
  if (Status s = need_elements(call, "scales", wanted, blocks)) return s;
  if (Status s = need_elements(call, "scale_scales", DType::F32, (blocks + scales_per_block - 1) / scales_per_block))
    return s;
  return need_elements(call, "offset", DType::F32, 1);
}

Result<Types> infer_dequantize(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "format", {"nf4", "fp4", "int4", "int8", "fp8"})) return s;
  const llvm::ArrayRef<int64_t> shape = call.get_ints("shape");
  const int64_t block = call.get_int("block"), count = element_count(shape);
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
    return model_error("shape is " + to_string(shape) + ", a weight has two dimensions");
  if (block < 1) return model_error("block is " + llvm::Twine(block) + ", it must be above 0");
  const Format format = *format_of(call.get_string("format"));
  const bool is_whole = format == Format::FP8 && block == count;
  if (!has_4_bits(format) && block != shape[1] && !is_whole)
    return model_error("block is " + llvm::Twine(block) + ", a row of " + to_string(shape) + " has one scale");
  const DType codes = has_4_bits(format) ? DType::U8 : format == Format::Int8 ? DType::I8 : DType::F8E4M3;
  if (Status s = need_elements(call, "codes", codes, has_4_bits(format) ? (count + 1) / 2 : count)) return s;
  if (Status s = need_scales(call, (count + block - 1) / block)) return s;
  const DType dtype = call.attrs.get_dtype("dtype");
  if (dtype != DType::F32 && dtype != DType::BF16 && dtype != DType::F16)
    return model_error("dtype is " + dtype_name(dtype) + ", it must be f32, bf16 or f16");
  return one_result(dtype, call.get_ints("shape"));
}

// Each step is rounded to f32, as bitsandbytes does it, and the last one to the result.
void dequantize_reference(const ReferenceCall& call) {
  const TensorView &codes = call.in("codes"), &scales = call.in("scales"), &y = call.out("y");
  const Format format = *format_of(call.get_string("format"));
  const int64_t block = call.get_int("block");
  const std::array<float, 16> numbers = code_book(call.get_string("format"));
  const auto scale_of = [&](int64_t at) {
    if (!call.has("scale_scales")) return static_cast<float>(scales.get(at));
    const float own = dynamic_map(true)[static_cast<size_t>(scales.get_int(at))],
                shared = static_cast<float>(call.in("scale_scales").get(at / scales_per_block));
    const float scaled = own * shared;
    return scaled + static_cast<float>(call.in("offset").get(0));
  };
  for (int64_t i = 0; i < y.elements(); ++i) {
    const float scale = scale_of(i / block);
    if (has_4_bits(format)) {
      const auto pair = static_cast<size_t>(codes.get_int(i / 2));
      const float value = numbers[i % 2 == 0 ? pair >> 4 : pair & 15];
      y.set(i, value * scale);
    } else {
      const float scaled = static_cast<float>(codes.get(i)) * scale;
      y.set(i, format == Format::Int8 ? scaled * int8_step : scaled);
    }
  }
}

std::vector<Sample> dequantize_samples() {
  using namespace samples;
  const auto codes = [](int64_t bytes) { return integers({bytes, 1}, 0, 255, DType::U8); };
  const auto attrs = [](llvm::StringRef format, int64_t block, Ints shape, DType dtype) {
    return Attrs{{"format", format.str()}, {"block", block}, {"shape", std::move(shape)}, {"dtype", dtype}};
  };
  return {
      {{codes(96), fixed(positive({3}))}, attrs("nf4", 64, {2, 96}, DType::F32)},
      {{codes(23), fixed(positive({3}))}, attrs("nf4", 16, {5, 9}, DType::BF16)},
      {{codes(4096), integers({128}, 0, 255, DType::U8), fixed(positive({1})), values({1}, {0.75})},
       attrs("nf4", 64, {64, 128}, DType::BF16)},
      {{codes(2080), integers({260}, 0, 255, DType::U8), fixed(positive({2})), values({1}, {0.5})},
       attrs("nf4", 16, {65, 64}, DType::F16)},
      {{codes(48), fixed(positive({6}))}, attrs("fp4", 16, {2, 48}, DType::F32)},
      {{codes(80), fixed(positive({3}))}, attrs("int4", 64, {2, 80}, DType::BF16)},
      {{integers({1, 23}, 0, 255, DType::U8), fixed(positive({3}, DType::F16))},
       Attrs{
           {"format", std::string("nf4")}, {"block", 16}, {"shape", Ints{5, 9}}, {"dtype", DType::F16}, {"given", 1}}},
      {{integers({3, 40}, -127, 127, DType::I8), fixed(positive({3}))}, attrs("int8", 40, {3, 40}, DType::F32)},
      {{integers({4, 64}, -127, 127, DType::I8), fixed(positive({4}))}, attrs("int8", 64, {4, 64}, DType::BF16)},
      {{fixed(normal({3, 40}, DType::F8E4M3)), fixed(positive({3}))}, attrs("fp8", 40, {3, 40}, DType::F32)},
      {{fixed(normal({2, 32}, DType::F8E4M3)), fixed(positive({2}))}, attrs("fp8", 32, {2, 32}, DType::BF16)},
      {{fixed(normal({3, 48}, DType::F8E4M3)), fixed(positive({1}))}, attrs("fp8", 144, {3, 48}, DType::BF16)},
  };
}

}  // namespace

constinit const OpDef op_dequantize{
    .name = "dequantize",
    .summary =
        "the weight of {shape} and {dtype} that codes stand for: each {block} of them in a row has a scale, which with "
        "scale_scales and an offset is an 8-bit code itself. {format} nf4, fp4 and int4: two 4-bit codes a "
        "byte, of int4 steps of a 7th of the scale; int8: steps of a 127th of the scale; fp8: e4m3, whose scale may be "
        "the whole weight's. {transposed} says that the "
        "model's weight is the transpose, {given} "
        "that the model has the codes themselves",
    .operands = {"codes", "scales", "scale_scales?", "offset?"},
    .attrs = {{"format", AttrKind::String},
              {"block", AttrKind::Int},
              {"shape", AttrKind::Ints},
              {"dtype", AttrKind::DType},
              {"transposed", 0},
              {"given", 0}},
    .infer = infer_dequantize,
    .gradient = Gradient::missing("a quantised weight is frozen"),
    .reference = dequantize_reference,
    .samples = dequantize_samples,
};

}  // namespace plimsoll
