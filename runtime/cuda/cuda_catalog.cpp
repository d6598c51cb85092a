#include "runtime/cuda/cuda_catalog.h"

#include "ir/support/strings.h"
#include "runtime/kernels/folded_conv.h"

#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// Predictions of convolutions try many tiles, and planning asks for the same few calls in every program that it makes:
// of DeepLabV3's refusal they took a tenth. So calls of ops with predictions are remembered.

namespace plimsoll {
namespace {

size_t hash_of(const OpCall& call, llvm::ArrayRef<Type> results) {
  llvm::hash_code hash = llvm::hash_value(&call.op);
  const auto add = [&](llvm::ArrayRef<int64_t> shape) {
    hash = llvm::hash_combine(hash, llvm::hash_combine_range(shape.begin(), shape.end()));
  };
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) add(call.operand(i).shape);
  for (const Type& type : results) add(type.shape);
  return hash;
}

}  // namespace

CudaCatalog::KnownCall::KnownCall(const OpCall& call, llvm::ArrayRef<Type> results)
    : op(&call.op), attrs(call.attrs), results(results.vec()) {
  for (size_t i = 0; i < call.count(); ++i) {
    const Type* type = call.has(i) ? &call.operand(i) : nullptr;
    operands.push_back(type ? std::optional(*type) : std::nullopt);
  }
}

bool CudaCatalog::KnownCall::is(const OpCall& call, llvm::ArrayRef<Type> other_results) const {
  if (op != &call.op || operands.size() != call.count() || llvm::ArrayRef<Type>(results) != other_results) return false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Type* type = call.has(i) ? &call.operand(i) : nullptr;
    if (type ? operands[i] != *type : operands[i].has_value()) return false;
  }
  return attrs == call.attrs;
}

CudaCatalog::CudaCatalog(const DeviceDescription& device, bool any_order) : device_(device) {
  for (const CudaCandidate* candidate : cuda_candidates())
    if ((any_order || !candidate->any_order) &&
        (candidate->capability == 0 || candidate->capability == device.compute_capability))
      by_op_[&candidate->op].push_back(candidate);
}

std::vector<KernelCandidate> CudaCatalog::candidates(const OpDef& op, const OpCall& call,
                                                     llvm::ArrayRef<Type> results) const {
  const auto entry = by_op_.find(&op);
  if (entry == by_op_.end()) return find_candidates({}, call, results);
  const bool has_predictions =
      llvm::any_of(entry->second, [](const CudaCandidate* candidate) { return candidate->predicted_us; });
  if (!has_predictions) return find_candidates(entry->second, call, results);
  const size_t hash = hash_of(call, results);
  const auto find = [&]() -> const KnownCall* {
    for (auto [at, end] = known_.equal_range(hash); at != end; ++at)
      if (at->second.is(call, results)) return &at->second;
    return nullptr;
  };
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const KnownCall* known = find()) return known->candidates;
  }
  std::vector<KernelCandidate> found = find_candidates(entry->second, call, results);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!find()) known_.emplace(hash, KnownCall(call, results))->second.candidates = found;
  return found;
}

// The reference takes one element after the other, beside which copies to the host and back are quick. Of how long only
// the order is known: a step with two such calls takes seconds.
static double on_host_us(const OpCall& call, llvm::ArrayRef<Type> results) {
  constexpr double operations_per_us = 500;
  double operations = call.op.flops ? call.op.flops(call, results) : 0;
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) operations += static_cast<double>(call.operand(i).elements());
  for (const Type& result : results) operations += static_cast<double>(result.elements());
  return operations / operations_per_us;
}

std::vector<KernelCandidate> CudaCatalog::find_candidates(llvm::ArrayRef<const CudaCandidate*> of_op,
                                                          const OpCall& written, llvm::ArrayRef<Type> made) const {
  const std::optional<FoldedConvolution> folded = FoldedConvolution::of(written, made);
  const OpCall call = folded ? folded->call() : written;
  const llvm::ArrayRef<Type> results = folded ? folded->results() : made;
  std::vector<KernelCandidate> accepted;
  for (const CudaCandidate* candidate : of_op) {
    if (!candidate->accepts(call, results)) continue;
    const bool others = !candidate->accepts_others || candidate->accepts_others(call, results);
    const int64_t bytes = candidate->workspace_bytes ? candidate->workspace_bytes(call, results, device_) : 0;
    for (int algorithm = 0; algorithm < (others ? candidate->algorithms : 1); ++algorithm)
      accepted.push_back({candidate->kernel_name(algorithm), bytes,
                          candidate->predicted_us ? candidate->predicted_us(call, device_) : 0,
                          candidate->shares_launches && candidate->shares_launches(call, results)});
  }
  // Where all have predictions, these decide; kernels with less workspace stay behind.
  const auto end = std::find_if(accepted.begin(), accepted.end(),
                                [](const KernelCandidate& candidate) { return ends_with(candidate.name, "_lean"); });
  if (std::all_of(accepted.begin(), end, [](const KernelCandidate& c) { return c.predicted_us > 0; }))
    std::stable_sort(accepted.begin(), end, [](const KernelCandidate& a, const KernelCandidate& b) {
      return a.predicted_us < b.predicted_us;
    });
  accepted.push_back({"reference", 0, on_host_us(call, results)});  // accepts everything
  return accepted;
}

}  // namespace plimsoll
