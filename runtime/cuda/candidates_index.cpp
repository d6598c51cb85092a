#include "kernels/cuda/index/index_workspace.h"
#include "runtime/cuda/accepts.h"

#include <cstdint>
#include <limits>

// Ops that pick or put elements by index, or go by their order along an axis.

namespace plimsoll {
namespace {

bool accepts_bytes(const OpCall&, llvm::ArrayRef<Type>) { return true; }

// Sorted positions and keys are 32 bits wide.
constexpr int64_t max_positions = std::numeric_limits<int32_t>::max();
constexpr int64_t max_keys = std::numeric_limits<uint32_t>::max();

bool accepts_gather_grad(const OpCall& call, llvm::ArrayRef<Type> results) {
  return is_wide_float(results[0].dtype) && call.operand(0).elements() <= max_positions &&
         call.attrs.get_int("size") < max_positions;
}

int64_t gather_grad_workspace(const OpCall& call, llvm::ArrayRef<Type> results, const DeviceDescription&) {
  const AxisSplit dx(results[0].shape, call.attrs.get_int("axis"));
  return cuda::gather_grad_workspace_bytes(dx.outer, dx.length, dx.inner, call.operand(0).elements(),
                                           results[0].dtype == DType::F64 ? 8 : 4);
}

bool accepts_scatter(const OpCall& call, llvm::ArrayRef<Type> results) {
  return ranks_fit_nests(call, results) && has_no_f8(call, results) && results[0].elements() <= max_keys &&
         call.operand(1).elements() <= max_positions;
}

int64_t scatter_elements_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_workspace_bytes(call.operand(1).elements());
}

int64_t scatter_nd_workspace(const OpCall& call, llvm::ArrayRef<Type>, const DeviceDescription&) {
  return cuda::sort_workspace_bytes(element_count(llvm::ArrayRef<int64_t>(call.operand(1).shape).drop_back()));
}

bool accepts_along_axis(const OpCall& call, llvm::ArrayRef<Type> results) { return has_no_f8(call, results); }

// A line is read once for each of the k.
bool accepts_top_k(const OpCall& call, llvm::ArrayRef<Type> results) {
  const int64_t length = call.operand(0).shape[call.attrs.get_int("axis")];
  return has_no_f8(call, results) && (call.attrs.get_int("k") <= 64 || length <= 4096);
}

constexpr CudaCandidate candidates[] = {
    {"gather", "rows", accepts_bytes},
    {"gather_grad", "sorted", accepts_gather_grad, gather_grad_workspace},
    {"gather_elements", "elements", ranks_fit_nests},
    {"gather_nd", "tuples", ranks_fit_nests},
    {"one_hot", "elements", accepts_bytes},
    {"scatter_elements", "sorted", accepts_scatter, scatter_elements_workspace},
    {"scatter_nd", "sorted", accepts_scatter, scatter_nd_workspace},
    {"cumsum", "scan", accepts_along_axis},
    {"triangular", "elements", accepts_bytes},
    {"reverse_sequence", "elements", accepts_bytes},
    {"top_k", "repeated_search", accepts_top_k},
    {"arg_max", "search", accepts_along_axis},
    {"arg_min", "search", accepts_along_axis},
};

}  // namespace

llvm::ArrayRef<CudaCandidate> cuda_index_candidates() { return candidates; }

}  // namespace plimsoll
