#include "kernels/cpu/elementwise/binary.h"
#include "runtime/cpu/kernels_families.h"

// Elementwise functions of several operands, with broadcasting.

namespace plimsoll {
namespace {

template <typename T>
constexpr DType dtype_of = std::is_same_v<T, float>     ? DType::F32
                           : std::is_same_v<T, int64_t> ? DType::I64
                                                        : DType::Bool;

template <typename In>
bool accepts_pair(const OpCall& call, llvm::ArrayRef<Type> results) {
  return call.operand(0).dtype == dtype_of<In> && call.operand(1).dtype == dtype_of<In> && ranks_fit(call, results);
}

template <auto range, typename Out, typename In>
Status launch_pair(const KernelCall& k) {
  const auto nest = broadcast_nest<3>(k.results[0].type.shape, {k.call.operand(0).shape, k.call.operand(1).shape});
  cpu::map_binary(range, nest, k.out<Out>(0), k.in<In>(0), k.in<In>(1));
  return Status::success();
}

Status launch_mod(const KernelCall& k) {
  return k.call.attrs.get_int("fmod") ? launch_pair<cpu::fmod_range, float, float>(k)
                                      : launch_pair<cpu::mod_range, float, float>(k);
}

bool accepts_where(const OpCall& call, llvm::ArrayRef<Type> results) {
  return dtype_bytes(results[0].dtype) == 4 && ranks_fit(call, results);
}

Status launch_where(const KernelCall& k) {
  const auto nest = broadcast_nest<4>(k.results[0].type.shape,
                                      {k.call.operand(0).shape, k.call.operand(1).shape, k.call.operand(2).shape});
  cpu::where_32(nest, k.out<uint32_t>(0), k.in<uint8_t>(0), k.in<uint32_t>(1), k.in<uint32_t>(2));
  return Status::success();
}

Status launch_not(const KernelCall& k) {
  cpu::logical_not(k.out<uint8_t>(0), k.in<uint8_t>(0), k.results[0].elements());
  return Status::success();
}

bool accepts_bool(const OpCall& call, llvm::ArrayRef<Type>) { return call.operand(0).dtype == DType::Bool; }

// The list of operands has any length; its room is made when the plan is loaded.
struct PreparedSum : PreparedKernel {
  std::vector<const float*> operands;
};

Result<std::unique_ptr<PreparedKernel>> prepare_add_n(cpu::Library&, const OpCall& call, llvm::ArrayRef<Type>) {
  auto prepared = std::make_unique<PreparedSum>();
  prepared->operands.resize(call.count());
  return prepared;
}

Status launch_add_n(const KernelCall& k) {
  std::vector<const float*>& operands = static_cast<PreparedSum*>(k.prepared)->operands;
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = k.in<float>(i);
  cpu::add_many(k.out<float>(0), operands.data(), static_cast<int64_t>(operands.size()), k.results[0].elements());
  return Status::success();
}

template <cpu::FloatBinaryRange* range>
constexpr CpuKernel arithmetic(llvm::StringLiteral op) {
  return {op, "vectorised", accepts_pair<float>, launch_pair<range, float, float>};
}
template <cpu::FloatCompareRange* range>
constexpr CpuKernel comparison(llvm::StringLiteral op) {
  return {op, "vectorised", accepts_pair<float>, launch_pair<range, uint8_t, float>};
}
template <cpu::IndexCompareRange* range>
constexpr CpuKernel index_comparison(llvm::StringLiteral op) {
  return {op, "vectorised_i64", accepts_pair<int64_t>, launch_pair<range, uint8_t, int64_t>};
}
template <cpu::LogicRange* range>
constexpr CpuKernel logic(llvm::StringLiteral op) {
  return {op, "vectorised", accepts_pair<bool>, launch_pair<range, uint8_t, uint8_t>};
}

constexpr CpuKernel kernels[] = {
    arithmetic<cpu::add_range>("add"),
    arithmetic<cpu::sub_range>("sub"),
    arithmetic<cpu::mul_range>("mul"),
    arithmetic<cpu::div_range>("div"),
    arithmetic<cpu::pow_range>("pow"),
    arithmetic<cpu::max_range>("max"),
    arithmetic<cpu::min_range>("min"),
    arithmetic<cpu::prelu_range>("prelu"),
    comparison<cpu::equal_range>("equal"),
    index_comparison<cpu::equal_i64_range>("equal"),
    comparison<cpu::less_range>("less"),
    index_comparison<cpu::less_i64_range>("less"),
    comparison<cpu::less_equal_range>("less_equal"),
    index_comparison<cpu::less_equal_i64_range>("less_equal"),
    comparison<cpu::greater_range>("greater"),
    index_comparison<cpu::greater_i64_range>("greater"),
    comparison<cpu::greater_equal_range>("greater_equal"),
    index_comparison<cpu::greater_equal_i64_range>("greater_equal"),
    logic<cpu::and_range>("and"),
    logic<cpu::or_range>("or"),
    logic<cpu::xor_range>("xor"),
    {"not", "vectorised", accepts_bool, launch_not},
    {"mod", "vectorised", accepts_pair<float>, launch_mod},
    {"where", "vectorised", accepts_where, launch_where},
    {"add_n", "vectorised", all_f32, launch_add_n, nullptr, prepare_add_n},
};

}  // namespace

llvm::ArrayRef<CpuKernel> binary_kernels() { return kernels; }

}  // namespace plimsoll
