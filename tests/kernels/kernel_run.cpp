#include "tests/kernels/kernel_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace plimsoll::testing {

namespace {

Types infer(const KernelCase& c, const OpCall& call) {
  Result<Types> types = plimsoll::infer(call);
  if (!types) FAIL(c.op.name.str(), ": ", llvm::toString(types.takeError()));
  return *types;
}

// Float rounding grows with the number of terms; blocked sums keep it near the square root. Elementwise
// functions are within a few ulp of f32; f16 and bf16 differ by at most the last bit.
double tolerance_for(const KernelCase& c, const OpCall& call, const Type& result, llvm::ArrayRef<Type> results) {
  double terms = 1;
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) terms = std::max(terms, static_cast<double>(call.operand(i).elements()));
  terms /= static_cast<double>(std::max<int64_t>(result.elements(), 1));
  if (c.op.flops)
    terms = std::max(terms, c.op.flops(call, results) / static_cast<double>(std::max<int64_t>(result.elements(), 1)));
  // A convolution's weight gradient may be made in its operands' dtype and widened, and a mask's gradient may be summed
  // from dS in that of q. Behind capped scores dS has 11 bits at most: those of the matrix units' kernels' tanh.
  const bool is_widened = c.op.name == "conv_dw" || c.op.name == "attention_grad_with_mask" ||
                          (c.op.name == "attention_mask_grad" && call.attrs.get_float("softcap") > 0);
  const DType made = is_widened ? call.operand(0).dtype : result.dtype;
  // Kernels for the matrix units take approximate exponentials, of capped scores two each.
  const bool approximates = c.op.name == "attention" && call.operand(0).dtype != DType::F32;
  // Hopper's matrix units keep 14 bits of the largest product of each step of a sum of 8-bit products. Sums of parts
  // that have scales of their own lose up to one more.
  const bool keeps_fewer_bits = c.op.name == "linear_f8";
  const bool has_many_scales = keeps_fewer_bits && call.operand(2).elements() > 1;
  const double rounding = made == DType::BF16  ? 8e-3
                          : made == DType::F16 ? 1e-3
                          : has_many_scales    ? 1.22e-4
                          : keeps_fewer_bits   ? 6.1e-5
                          : approximates       ? 2e-6
                                               : 1e-6;
  return rounding * (2 + std::sqrt(terms) / 4);
}

bool agree(double got, double wanted, double limit) {
  if (std::isnan(wanted)) return std::isnan(got);
  if (std::isinf(wanted)) return got == wanted;
  return std::fabs(got - wanted) <= limit;
}

void compare(const Tensor& got, const Tensor& wanted, double tolerance) {
  double largest = 0;
  const int64_t n = wanted.type().elements();
  for (int64_t i = 0; i < n; ++i)
    if (std::isfinite(wanted.get(i))) largest = std::max(largest, std::fabs(wanted.get(i)));
  // Relative to the largest element: sums of terms of both signs lose digits that no kernel can keep.
  const double limit = is_float(wanted.type().dtype) ? tolerance * std::max(largest, 0.1) : 0;
  for (int64_t i = 0; i < n; ++i)
    if (!agree(got.get(i), wanted.get(i), limit)) {
      FAIL_CHECK("element ", i, " of ", to_string(wanted.type()), " is ", got.get(i), ", the reference gives ",
                 wanted.get(i), ", limit ", limit);
      return;
    }
}

}  // namespace

KernelCase::KernelCase(llvm::StringRef op, Attrs attrs, llvm::ArrayRef<SampleOperand> operands, uint32_t seed)
    : op(get_op(op)), attrs(std::move(attrs)), tensors(operands.size()) {
  for (size_t i = 0; i < operands.size(); ++i) {
    present.push_back(operands[i].fill != SampleOperand::Fill::Absent);
    if (present[i]) tensors[i] = sample_tensor(operands[i], operands[i].type, seed, static_cast<uint32_t>(i));
  }
}

llvm::SmallVector<const Type*, 4> KernelCase::types() const {
  llvm::SmallVector<const Type*, 4> types;
  for (size_t i = 0; i < tensors.size(); ++i) types.push_back(present[i] ? &tensors[i].type() : nullptr);
  return types;
}

std::vector<Tensor> run_kernel(const CpuCandidate& kernel, const KernelCase& c, llvm::ArrayRef<InPlace> overlaps) {
  const auto types = c.types();
  const OpCall call(c.op, c.attrs, types);
  const Types result_types = infer(c, call);
  std::vector<Tensor> operands_copy = c.tensors, results;
  llvm::SmallVector<TensorView, 4> operands, views;
  for (size_t i = 0; i < operands_copy.size(); ++i)
    operands.push_back(c.present[i] ? operands_copy[i].view() : TensorView{});
  for (const Type& type : result_types) {
    results.emplace_back(type);
    std::memset(results.back().data(), 0xff, static_cast<size_t>(type.bytes()));
  }
  for (const Tensor& result : results) views.push_back(result.view());
  for (InPlace pair : overlaps) views[pair.result].data = operands[pair.operand].data;

  cpu::Library library;
  Result<std::unique_ptr<PreparedKernel>> prepared = kernel.prepare(library, call, result_types);
  if (!prepared) FAIL(llvm::toString(prepared.takeError()));
  // Guard bytes behind the workspace find a kernel that asked for too little.
  const int64_t bytes = kernel.workspace_bytes(call, result_types);
  Tensor workspace(Type(DType::U8, {bytes + 64}));
  std::memset(workspace.view().as<char>(), 0xa5, static_cast<size_t>(bytes + 64));
  Status status = kernel.launch({{call, operands, views, workspace.data()}, prepared->get()});
  if (status) FAIL(llvm::toString(std::move(status)));
  for (int64_t i = bytes; i < bytes + 64; ++i) REQUIRE(workspace.view().as<uint8_t>()[i] == 0xa5);
  for (InPlace pair : overlaps) {
    Tensor moved(result_types[pair.result], operands[pair.operand].data);
    results[pair.result] = std::move(moved);
  }
  return results;
}

Types result_types_of(const KernelCase& c) {
  const auto types = c.types();
  return infer(c, OpCall(c.op, c.attrs, types));
}

std::vector<Tensor> run_reference(const KernelCase& c) {
  const auto types = c.types();
  std::vector<Tensor> results;
  llvm::SmallVector<TensorView, 4> operands, views;
  for (size_t i = 0; i < c.tensors.size(); ++i) operands.push_back(c.present[i] ? c.tensors[i].view() : TensorView{});
  for (const Type& type : result_types_of(c)) results.emplace_back(type);
  for (const Tensor& result : results) views.push_back(result.view());
  if (Status status = c.op.reference(ReferenceCall(OpCall(c.op, c.attrs, types), operands, views)))
    FAIL(llvm::toString(std::move(status)));
  return results;
}

std::vector<std::vector<InPlace>> overlaps_of(const KernelCase& c) {
  const Types result_types = result_types_of(c);
  std::vector<std::vector<InPlace>> overlaps{{}};
  std::vector<InPlace> all;
  for (InPlace pair : c.op.in_place_pairs()) {
    const auto operand = static_cast<size_t>(pair.operand), result = static_cast<size_t>(pair.result);
    if (operand >= c.tensors.size() || !c.present[operand] || result >= result_types.size()) continue;
    if (c.tensors[operand].type().bytes() != result_types[result].bytes()) continue;
    overlaps.push_back({pair});
    const bool taken = std::any_of(all.begin(), all.end(), [&](InPlace p) { return p.result == pair.result; });
    if (!taken) all.push_back(pair);
  }
  if (all.size() > 1) overlaps.push_back(all);
  return overlaps;
}

void check_results(const KernelCase& c, llvm::ArrayRef<Tensor> got, llvm::ArrayRef<Tensor> wanted) {
  const auto types = c.types();
  const Types result_types = result_types_of(c);
  for (size_t r = 0; r < got.size(); ++r) {
    INFO("result ", r);
    compare(got[r], wanted[r], tolerance_for(c, OpCall(c.op, c.attrs, types), result_types[r], result_types));
  }
}

void check_against_reference(const CpuKernelTable& table, const KernelCase& c) {
  const auto types = c.types();
  const std::vector<Tensor> wanted = run_reference(c);
  for (const CpuCandidate& kernel : table.candidates(c.op, OpCall(c.op, c.attrs, types), result_types_of(c)))
    for (const std::vector<InPlace>& pairs : overlaps_of(c)) {
      INFO("kernel ", kernel.name(), ", ", pairs.size(), " results in place",
           pairs.empty() ? std::string() : ", first over operand " + std::to_string(pairs[0].operand));
      check_results(c, run_kernel(kernel, c, pairs), wanted);
    }
}

}  // namespace plimsoll::testing
