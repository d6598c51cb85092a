#include "runtime/cuda/accepts.h"

// Elementwise kernels take every dtype but F8.

namespace plimsoll {
namespace {

// Operands of one shape are one loop, whatever their rank.
bool accepts_same_shape(const OpCall& call, llvm::ArrayRef<Type> results) { return has_no_f8(call, results); }

bool accepts_broadcast(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit_nests(call, results) && has_no_f8(call, results);
}

bool accepts_bytes(const OpCall&, llvm::ArrayRef<Type>) { return true; }

bool accepts_where(const OpCall& call, llvm::ArrayRef<Type> results) { return ranks_fit_nests(call, results); }

// The terms are kernel arguments; kernels/cuda/elementwise/elementwise.h has the number.
bool accepts_add_n(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.count() <= 2048 && has_no_f8(call, results);
}

constexpr CudaCandidate same_shape(llvm::StringLiteral op) { return {op, "vectors", accepts_same_shape}; }
constexpr CudaCandidate broadcast(llvm::StringLiteral op) { return {op, "broadcast", accepts_broadcast}; }

constexpr CudaCandidate candidates[] = {
    same_shape("neg"),
    same_shape("abs"),
    same_shape("sign"),
    same_shape("floor"),
    same_shape("ceil"),
    same_shape("round"),
    same_shape("bitwise_not"),
    same_shape("exp"),
    same_shape("log"),
    same_shape("sqrt"),
    same_shape("rsqrt"),
    same_shape("reciprocal"),
    same_shape("erf"),
    same_shape("sin"),
    same_shape("cos"),
    same_shape("tan"),
    same_shape("asin"),
    same_shape("acos"),
    same_shape("atan"),
    same_shape("sinh"),
    same_shape("cosh"),
    same_shape("tanh"),
    same_shape("asinh"),
    same_shape("acosh"),
    same_shape("atanh"),
    same_shape("relu"),
    same_shape("sigmoid"),
    same_shape("silu"),
    same_shape("gelu"),
    same_shape("softplus"),
    same_shape("softsign"),
    same_shape("mish"),
    same_shape("elu"),
    same_shape("celu"),
    same_shape("selu"),
    same_shape("leaky_relu"),
    same_shape("hard_sigmoid"),
    same_shape("hard_swish"),
    same_shape("thresholded_relu"),
    same_shape("shrink"),
    same_shape("clip"),
    same_shape("cast"),
    same_shape("relu_grad"),
    same_shape("sigmoid_grad"),
    same_shape("tanh_grad"),
    same_shape("silu_grad"),
    same_shape("gelu_grad"),
    same_shape("is_nan"),
    same_shape("is_inf"),
    same_shape("not"),
    broadcast("add"),
    broadcast("sub"),
    broadcast("mul"),
    broadcast("div"),
    broadcast("max"),
    broadcast("min"),
    broadcast("pow"),
    broadcast("mod"),
    broadcast("prelu"),
    broadcast("equal"),
    broadcast("less"),
    broadcast("less_equal"),
    broadcast("greater"),
    broadcast("greater_equal"),
    broadcast("and"),
    broadcast("or"),
    broadcast("xor"),
    broadcast("bitwise_and"),
    broadcast("bitwise_or"),
    broadcast("bitwise_xor"),
    broadcast("bit_shift"),
    {"where", "broadcast", accepts_where},
    {"add_n", "vectors", accepts_add_n},
    {"copy", "bytes", accepts_bytes},
    {"to_host", "copy_engine", accepts_bytes},
    {"to_device", "copy_engine", accepts_bytes},
    {"identity", "bytes", accepts_bytes},
    {"reshape", "bytes", accepts_bytes},
    same_shape("dropout"),
    same_shape("random_uniform"),
    same_shape("random_normal"),
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_elementwise_candidates() { return candidates; }

}  // namespace plimsoll
