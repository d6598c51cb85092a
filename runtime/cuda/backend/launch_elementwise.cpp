#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/random.h"
#include "kernels/cuda/move/move.h"
#include "runtime/cuda/backend/launched.h"
#include "runtime/kernels/loop_nests.h"

#include <limits>

namespace plimsoll {
namespace {

using cuda::Binary;
using cuda::Test;
using cuda::Unary;
using cuda::UnaryGrad;

// ---- One operand ----

Status map_unary(const CudaCall& k, Unary f, double a, double b) {
  return launched(k, cuda::map_unary(f, a, b, k.out_scalar(0), k.out(0), k.in(0), k.results[0].elements(), k.stream));
}

template <Unary f>
Status launch_unary(const CudaCall& k) {
  return map_unary(k, f, 0, 0);
}

// Functions of parameters, which are the op's attributes {first} and {second}.
template <Unary f, const char* first, const char* second>
Status launch_with_attrs(const CudaCall& k) {
  return map_unary(k, f, k.call.attrs.get_float(first), k.call.attrs.get_float(second));
}
constexpr char alpha[] = "alpha", beta[] = "beta", gamma[] = "gamma", bias[] = "bias", lambd[] = "lambd";

Status launch_clip(const CudaCall& k) {
  const double infinity = std::numeric_limits<double>::infinity();
  return map_unary(k, Unary::Clip, k.call.attrs.get_float("min", -infinity), k.call.attrs.get_float("max", infinity));
}

bool is_tanh_form(const CudaCall& k) { return k.call.attrs.get_string("approximate", "none") == "tanh"; }

Status launch_gelu(const CudaCall& k) { return map_unary(k, is_tanh_form(k) ? Unary::GeluTanh : Unary::Gelu, 0, 0); }

Status map_grad(const CudaCall& k, UnaryGrad f) {
  return launched(
      k, cuda::map_unary_grad(f, k.out_scalar(0), k.out(0), k.in(0), k.in(1), k.results[0].elements(), k.stream));
}

template <UnaryGrad f>
Status launch_grad(const CudaCall& k) {
  return map_grad(k, f);
}

Status launch_gelu_grad(const CudaCall& k) {
  return map_grad(k, is_tanh_form(k) ? UnaryGrad::GeluTanh : UnaryGrad::Gelu);
}

Status map_test(const CudaCall& k, Test f) {
  return launched(k, cuda::map_test(f, k.in_scalar(0), k.out<bool>(0), k.in(0), k.results[0].elements(), k.stream));
}

template <Test f>
Status launch_test(const CudaCall& k) {
  return map_test(k, f);
}

Status launch_is_inf(const CudaCall& k) {
  const bool negative = k.call.attrs.get_int("negative", 1) != 0, positive = k.call.attrs.get_int("positive", 1) != 0;
  if (negative && positive) return map_test(k, Test::IsInf);
  if (negative) return map_test(k, Test::IsNegativeInf);
  if (positive) return map_test(k, Test::IsPositiveInf);
  return launched(k, cuda::zero_bytes(k.out(0), k.results[0].type.bytes(), k.stream));
}

Status launch_cast(const CudaCall& k) {
  return launched(
      k, cuda::cast_elements(k.out_scalar(0), k.out(0), k.in_scalar(0), k.in(0), k.results[0].elements(), k.stream));
}

bool casts_join(const CudaCall& first, const CudaCall& next) {
  auto is_16_bit = [](cuda::Scalar type) { return type == cuda::Scalar::BF16 || type == cuda::Scalar::F16; };
  const cuda::Scalar x = first.in_scalar(0), y = first.out_scalar(0);
  return next.in_scalar(0) == x && next.out_scalar(0) == y &&
         ((x == cuda::Scalar::F32 && is_16_bit(y)) || (y == cuda::Scalar::F32 && is_16_bit(x)));
}

Status launch_casts(llvm::ArrayRef<CudaCall> calls) {
  llvm::SmallVector<cuda::CastTensor, 8> tensors;
  for (const CudaCall& k : calls) tensors.push_back({k.out(0), k.in(0), k.results[0].elements()});
  const CudaCall& k = calls.front();
  return launched(
      k, cuda::cast_many(k.out_scalar(0), k.in_scalar(0), tensors.data(), static_cast<int>(tensors.size()), k.stream));
}

Status launch_copy(const CudaCall& k) {
  return launched(k, cuda::copy_bytes(k.out(0), k.in(0), k.results[0].type.bytes(), k.stream));
}

Status launch_transfer(const CudaCall& k) {
  return launched(k, cudaMemcpyAsync(k.out(0), k.in(0), static_cast<size_t>(k.results[0].type.bytes()),
                                     cudaMemcpyDefault, k.stream));
}

// ---- Several operands ----

Status map_pair(const CudaCall& k, Binary f) {
  const auto nest = broadcast_nest<3>(k.results[0].type.shape, {k.call.operand(0).shape, k.call.operand(1).shape});
  return launched(k, cuda::map_binary(f, nest, k.out_scalar(0), k.out(0), k.in_scalar(0), k.in(0), k.in_scalar(1),
                                      k.in(1), k.stream));
}

template <Binary f>
Status launch_pair(const CudaCall& k) {
  return map_pair(k, f);
}

Status launch_mod(const CudaCall& k) { return map_pair(k, k.call.attrs.get_int("fmod") ? Binary::Fmod : Binary::Mod); }

Status launch_shift(const CudaCall& k) {
  return map_pair(k, k.call.attrs.get_string("direction") == "left" ? Binary::ShiftLeft : Binary::ShiftRight);
}

Status launch_where(const CudaCall& k) {
  const auto nest = broadcast_nest<4>(k.results[0].type.shape,
                                      {k.call.operand(0).shape, k.call.operand(1).shape, k.call.operand(2).shape});
  return launched(k, cuda::where(nest, element_bytes(k), k.out(0), k.in<bool>(0), k.in(1), k.in(2), k.stream));
}

Status launch_add_n(const CudaCall& k) {
  llvm::SmallVector<const void*, 8> terms;
  for (size_t i = 0; i < k.operands.size(); ++i) terms.push_back(k.in(i));
  return launched(k, cuda::add_many(k.out_scalar(0), k.out(0), terms.data(), static_cast<int>(terms.size()),
                                    k.results[0].elements(), k.stream));
}

// ---- Random numbers ----

cuda::RandomStream stream_of(const CudaCall& k, size_t rng) {
  return {k.in<int64_t>(rng), static_cast<uint32_t>(k.call.attrs.get_int("id")),
          k.call.attrs.get_int("first_draw") / 4};
}

Status launch_dropout(const CudaCall& k) {
  return launched(k, cuda::dropout(stream_of(k, 1), k.call.attrs.get_float("ratio"), k.out_scalar(0), k.out(0), k.in(0),
                                   k.results[0].elements(), k.stream));
}

Status launch_random_uniform(const CudaCall& k) {
  const Attrs& attrs = k.call.attrs;
  return launched(k, cuda::random_uniform(stream_of(k, 0), attrs.get_float("low"), attrs.get_float("high"),
                                          k.out_scalar(0), k.out(0), k.results[0].elements(), k.stream));
}

Status launch_random_normal(const CudaCall& k) {
  const Attrs& attrs = k.call.attrs;
  return launched(k, cuda::random_normal(stream_of(k, 0), attrs.get_float("mean"), attrs.get_float("scale"),
                                         k.out_scalar(0), k.out(0), k.results[0].elements(), k.stream));
}

template <Unary f>
constexpr CudaLauncher unary(llvm::StringLiteral op) {
  return {op, "vectors", launch_unary<f>};
}
template <Unary f, const char* first, const char* second>
constexpr CudaLauncher with_attrs(llvm::StringLiteral op) {
  return {op, "vectors", launch_with_attrs<f, first, second>};
}
template <Binary f>
constexpr CudaLauncher pair(llvm::StringLiteral op) {
  return {op, "broadcast", launch_pair<f>};
}

constexpr CudaLauncher launchers[] = {
    unary<Unary::Neg>("neg"),
    unary<Unary::Abs>("abs"),
    unary<Unary::Sign>("sign"),
    unary<Unary::Floor>("floor"),
    unary<Unary::Ceil>("ceil"),
    unary<Unary::Round>("round"),
    unary<Unary::BitwiseNot>("bitwise_not"),
    unary<Unary::Exp>("exp"),
    unary<Unary::Log>("log"),
    unary<Unary::Sqrt>("sqrt"),
    unary<Unary::Rsqrt>("rsqrt"),
    unary<Unary::Reciprocal>("reciprocal"),
    unary<Unary::Erf>("erf"),
    unary<Unary::Sin>("sin"),
    unary<Unary::Cos>("cos"),
    unary<Unary::Tan>("tan"),
    unary<Unary::Asin>("asin"),
    unary<Unary::Acos>("acos"),
    unary<Unary::Atan>("atan"),
    unary<Unary::Sinh>("sinh"),
    unary<Unary::Cosh>("cosh"),
    unary<Unary::Tanh>("tanh"),
    unary<Unary::Asinh>("asinh"),
    unary<Unary::Acosh>("acosh"),
    unary<Unary::Atanh>("atanh"),
    unary<Unary::Relu>("relu"),
    unary<Unary::Sigmoid>("sigmoid"),
    unary<Unary::Silu>("silu"),
    {"gelu", "vectors", launch_gelu},
    unary<Unary::Softplus>("softplus"),
    unary<Unary::Softsign>("softsign"),
    unary<Unary::Mish>("mish"),
    with_attrs<Unary::Elu, alpha, alpha>("elu"),
    with_attrs<Unary::Celu, alpha, alpha>("celu"),
    with_attrs<Unary::Selu, alpha, gamma>("selu"),
    with_attrs<Unary::LeakyRelu, alpha, alpha>("leaky_relu"),
    with_attrs<Unary::HardSigmoid, alpha, beta>("hard_sigmoid"),
    unary<Unary::HardSwish>("hard_swish"),
    with_attrs<Unary::ThresholdedRelu, alpha, alpha>("thresholded_relu"),
    with_attrs<Unary::Shrink, bias, lambd>("shrink"),
    {"clip", "vectors", launch_clip},
    {"cast", "vectors", launch_cast, nullptr, casts_join, launch_casts},
    {"relu_grad", "vectors", launch_grad<UnaryGrad::Relu>},
    {"sigmoid_grad", "vectors", launch_grad<UnaryGrad::Sigmoid>},
    {"tanh_grad", "vectors", launch_grad<UnaryGrad::Tanh>},
    {"silu_grad", "vectors", launch_grad<UnaryGrad::Silu>},
    {"gelu_grad", "vectors", launch_gelu_grad},
    {"is_nan", "vectors", launch_test<Test::IsNan>},
    {"is_inf", "vectors", launch_is_inf},
    {"not", "vectors", launch_test<Test::Not>},
    pair<Binary::Add>("add"),
    pair<Binary::Sub>("sub"),
    pair<Binary::Mul>("mul"),
    pair<Binary::Div>("div"),
    pair<Binary::Max>("max"),
    pair<Binary::Min>("min"),
    pair<Binary::Pow>("pow"),
    {"mod", "broadcast", launch_mod},
    pair<Binary::Prelu>("prelu"),
    pair<Binary::Equal>("equal"),
    pair<Binary::Less>("less"),
    pair<Binary::LessEqual>("less_equal"),
    pair<Binary::Greater>("greater"),
    pair<Binary::GreaterEqual>("greater_equal"),
    pair<Binary::And>("and"),
    pair<Binary::Or>("or"),
    pair<Binary::Xor>("xor"),
    pair<Binary::BitwiseAnd>("bitwise_and"),
    pair<Binary::BitwiseOr>("bitwise_or"),
    pair<Binary::BitwiseXor>("bitwise_xor"),
    {"bit_shift", "broadcast", launch_shift},
    {"where", "broadcast", launch_where},
    {"add_n", "vectors", launch_add_n},
    {"copy", "bytes", launch_copy},
    {"to_host", "copy_engine", launch_transfer},
    {"to_device", "copy_engine", launch_transfer},
    {"identity", "bytes", launch_copy},
    {"reshape", "bytes", launch_copy},
    {"dropout", "vectors", launch_dropout},
    {"random_uniform", "vectors", launch_random_uniform},
    {"random_normal", "vectors", launch_random_normal},
};

}  // namespace

llvm::ArrayRef<CudaLauncher> cuda_elementwise_launchers() { return launchers; }

}  // namespace plimsoll
