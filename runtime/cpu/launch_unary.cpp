#include "kernels/cpu/elementwise/cast.h"
#include "kernels/cpu/elementwise/unary.h"
#include "kernels/cpu/move/move.h"
#include "runtime/cpu/kernels_families.h"

#include <limits>

// Elementwise functions of one operand, activation gradients, casts and copies.

namespace plimsoll {
namespace {

template <cpu::UnaryRange* range>
Status launch_unary(const KernelCall& k) {
  cpu::map_unary(range, k.out<float>(0), k.in<float>(0), k.results[0].elements(), 0, 0);
  return Status::success();
}

float attr_f32(const KernelCall& k, llvm::StringRef name) { return static_cast<float>(k.call.attrs.get_float(name)); }

// Functions of parameters, which are the op's attributes {first} and {second}.
template <cpu::UnaryRange* range, const char* first, const char* second>
Status launch_with_attrs(const KernelCall& k) {
  cpu::map_unary(range, k.out<float>(0), k.in<float>(0), k.results[0].elements(), attr_f32(k, first),
                 attr_f32(k, second));
  return Status::success();
}
constexpr char alpha[] = "alpha", beta[] = "beta", gamma[] = "gamma", bias[] = "bias", lambd[] = "lambd";

Status launch_clip(const KernelCall& k) {
  const float infinity = std::numeric_limits<float>::infinity();
  cpu::map_unary(cpu::clip_range, k.out<float>(0), k.in<float>(0), k.results[0].elements(),
                 static_cast<float>(k.call.attrs.get_float("min", -infinity)),
                 static_cast<float>(k.call.attrs.get_float("max", infinity)));
  return Status::success();
}

bool is_tanh_form(const KernelCall& k) { return k.call.attrs.get_string("approximate", "none") == "tanh"; }

Status launch_gelu(const KernelCall& k) {
  return is_tanh_form(k) ? launch_unary<cpu::gelu_tanh_range>(k) : launch_unary<cpu::gelu_range>(k);
}

template <cpu::UnaryGradRange* range>
Status launch_grad(const KernelCall& k) {
  cpu::map_unary_grad(range, k.out<float>(0), k.in<float>(0), k.in<float>(1), k.results[0].elements());
  return Status::success();
}

Status launch_gelu_grad(const KernelCall& k) {
  return is_tanh_form(k) ? launch_grad<cpu::gelu_tanh_grad_range>(k) : launch_grad<cpu::gelu_grad_range>(k);
}

std::optional<cpu::Element> element_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return cpu::Element::F64;
    case DType::F32:
      return cpu::Element::F32;
    case DType::BF16:
      return cpu::Element::BF16;
    case DType::F16:
      return cpu::Element::F16;
    case DType::I64:
      return cpu::Element::I64;
    case DType::I32:
      return cpu::Element::I32;
    case DType::I16:
      return cpu::Element::I16;
    case DType::I8:
      return cpu::Element::I8;
    case DType::U32:
      return cpu::Element::U32;
    case DType::U16:
      return cpu::Element::U16;
    case DType::U8:
      return cpu::Element::U8;
    case DType::Bool:
      return cpu::Element::Bool;
    default:
      return std::nullopt;
  }
}

bool accepts_cast(const OpCall& call, llvm::ArrayRef<Type> results) {
  return element_of(call.operand(0).dtype) && element_of(results[0].dtype);
}

Status launch_cast(const KernelCall& k) {
  cpu::cast_elements(k.results[0].data, *element_of(k.results[0].type.dtype), k.operands[0].data,
                     *element_of(k.operands[0].type.dtype), k.results[0].elements());
  return Status::success();
}

bool accepts_any(const OpCall&, llvm::ArrayRef<Type>) { return true; }

Status launch_copy(const KernelCall& k) {
  cpu::copy_bytes(k.results[0].data, k.operands[0].data, k.results[0].type.bytes());
  return Status::success();
}

template <cpu::UnaryRange* range>
constexpr CpuKernel unary(llvm::StringLiteral op) {
  return {op, "vectorised", all_f32, launch_unary<range>};
}
template <cpu::UnaryRange* range, const char* first, const char* second>
constexpr CpuKernel with_attrs(llvm::StringLiteral op) {
  return {op, "vectorised", all_f32, launch_with_attrs<range, first, second>};
}
template <cpu::UnaryGradRange* range>
constexpr CpuKernel gradient(llvm::StringLiteral op) {
  return {op, "vectorised", all_f32, launch_grad<range>};
}

constexpr CpuKernel kernels[] = {
    unary<cpu::neg_range>("neg"),
    unary<cpu::abs_range>("abs"),
    unary<cpu::sign_range>("sign"),
    unary<cpu::exp_range>("exp"),
    unary<cpu::log_range>("log"),
    unary<cpu::sqrt_range>("sqrt"),
    unary<cpu::rsqrt_range>("rsqrt"),
    unary<cpu::reciprocal_range>("reciprocal"),
    unary<cpu::sin_range>("sin"),
    unary<cpu::cos_range>("cos"),
    unary<cpu::tan_range>("tan"),
    unary<cpu::asin_range>("asin"),
    unary<cpu::acos_range>("acos"),
    unary<cpu::atan_range>("atan"),
    unary<cpu::sinh_range>("sinh"),
    unary<cpu::cosh_range>("cosh"),
    unary<cpu::tanh_range>("tanh"),
    unary<cpu::asinh_range>("asinh"),
    unary<cpu::acosh_range>("acosh"),
    unary<cpu::atanh_range>("atanh"),
    unary<cpu::erf_range>("erf"),
    unary<cpu::floor_range>("floor"),
    unary<cpu::ceil_range>("ceil"),
    unary<cpu::round_range>("round"),
    unary<cpu::relu_range>("relu"),
    unary<cpu::sigmoid_range>("sigmoid"),
    unary<cpu::silu_range>("silu"),
    unary<cpu::softplus_range>("softplus"),
    unary<cpu::softsign_range>("softsign"),
    unary<cpu::mish_range>("mish"),
    unary<cpu::hard_swish_range>("hard_swish"),
    with_attrs<cpu::elu_range, alpha, alpha>("elu"),
    with_attrs<cpu::celu_range, alpha, alpha>("celu"),
    with_attrs<cpu::selu_range, alpha, gamma>("selu"),
    with_attrs<cpu::leaky_relu_range, alpha, alpha>("leaky_relu"),
    with_attrs<cpu::hard_sigmoid_range, alpha, beta>("hard_sigmoid"),
    with_attrs<cpu::thresholded_relu_range, alpha, alpha>("thresholded_relu"),
    with_attrs<cpu::shrink_range, bias, lambd>("shrink"),
    gradient<cpu::relu_grad_range>("relu_grad"),
    gradient<cpu::sigmoid_grad_range>("sigmoid_grad"),
    gradient<cpu::tanh_grad_range>("tanh_grad"),
    gradient<cpu::silu_grad_range>("silu_grad"),
    {"gelu", "vectorised", all_f32, launch_gelu},
    {"gelu_grad", "vectorised", all_f32, launch_gelu_grad},
    {"clip", "vectorised", all_f32, launch_clip},
    {"cast", "vectorised", accepts_cast, launch_cast},
    {"copy", "bytes", accepts_any, launch_copy},
    {"to_host", "bytes", accepts_any, launch_copy},
    {"to_device", "bytes", accepts_any, launch_copy},
    {"identity", "bytes", accepts_any, launch_copy},
    {"reshape", "bytes", accepts_any, launch_copy},
};

}  // namespace

llvm::ArrayRef<CpuKernel> unary_kernels() { return kernels; }

}  // namespace plimsoll
