#include "runtime/kernels/elementwise.h"

#include "ir/fused_form.h"
#include "ir/quantized_numbers.h"
#include "runtime/kernels/fused_reductions.h"

#include <algorithm>

// CUDA kernels take every dtype but F8. Operands of one shape are one loop, whatever their rank.

namespace plimsoll {
namespace {

bool accepts_add_n(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.count() <= max_add_n_terms && has_no_f8(call, results);
}

bool reduces(const OpCall& call) { return has_reductions(*llvm::cantFail(fused_body(call.get_string("body")))); }
bool accepts_elements(const OpCall& call, llvm::ArrayRef<Type>) { return !reduces(call); }
bool accepts_reductions(const OpCall& call, llvm::ArrayRef<Type>) { return reduces(call); }

int64_t reductions_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  return reducing_workspace(call, results);
}

// Operands are read once and results written once, at this share of a copy's speed; where blocks leave parts of totals,
// a second kernel reads these.
double reductions_us(const OpCall& call, const DeviceDescription& device) {
  constexpr double share = 0.8;
  const Types results = llvm::cantFail(infer(call));
  const int64_t parts = reducing_workspace(call, results);
  int64_t bytes = 2 * parts;
  for (size_t i = 0; i < call.count(); ++i) bytes += call.operand(i).bytes();
  for (const Type& result : results) bytes += result.bytes();
  return device.roofline_us(op_fused.flops(call, results), bytes, std::nullopt) / share +
         (parts > 0 ? 2 : 1) * (device.kernel_us + device.launch_us);
}

constexpr CudaCandidate candidates[] = {
#define PLIMSOLL_UNARY(op, Name, formula) {op_##op, "vectors", has_no_f8},
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) {op_##op, "vectors", has_no_f8},
#define PLIMSOLL_BINARY(op, Name, formula) {op_##op, "broadcast", ranks_fit_without_f8},
#include "kernels/elementwise.def"
    {op_bitwise_not, "vectors", has_no_f8},
    {op_gelu, "vectors", has_no_f8},
    {op_gelu_grad, "vectors", has_no_f8},
    {op_clip, "vectors", has_no_f8},
    {op_cast, "vectors", has_no_f8},
    {op_is_nan, "vectors", has_no_f8},
    {op_is_inf, "vectors", has_no_f8},
    {op_not, "vectors", has_no_f8},
    {op_dropout, "vectors", has_no_f8},
    {op_fused, "generated", accepts_elements},
    {.op = op_fused,
     .name = "generated_sums",
     .accepts = accepts_reductions,
     .workspace_bytes = reductions_workspace,
     .predicted_us = reductions_us},
    {op_random_uniform, "vectors", has_no_f8},
    {op_random_normal, "vectors", has_no_f8},
    {op_mod, "broadcast", ranks_fit_without_f8},
    {op_bit_shift, "broadcast", ranks_fit_without_f8},
    {op_where, "broadcast", ranks_fit},
    {op_add_n, "vectors", accepts_add_n},
    {op_dequantize, "runs", accepts_everything},
    {op_copy, "bytes", accepts_everything},
    {op_identity, "bytes", accepts_everything},
    {op_reshape, "bytes", accepts_everything},
    {op_to_host, "copy_engine", accepts_everything},
    {op_to_device, "copy_engine", accepts_everything},
};

}  // namespace

static CodeNumbers make_code_numbers(llvm::StringRef format) {
  if (format == "nf4") {
    CodeNumbers numbers;
    const std::array<float, 16> values = nf4_values();
    std::copy(values.begin(), values.end(), numbers.values.begin());
    return numbers;
  }
  CodeNumbers numbers{.bits = 8, .factor = format == "int8" ? int8_step : 1};
  for (int code = 0; code < 256; ++code) {
    auto byte = static_cast<uint8_t>(code);
    const Type type(format == "int8" ? DType::I8 : DType::F8E4M3, {1});
    numbers.values[static_cast<size_t>(code)] = static_cast<float>(TensorView{type, &byte}.get(0));
  }
  return numbers;
}

const CodeNumbers& code_numbers(llvm::StringRef format) {
  static const CodeNumbers nf4 = make_code_numbers("nf4"), int8 = make_code_numbers("int8"),
                           fp8 = make_code_numbers("fp8");
  return format == "nf4" ? nf4 : format == "int8" ? int8 : fp8;
}

llvm::ArrayRef<CudaCandidate> elementwise_candidates() { return candidates; }

}  // namespace plimsoll
