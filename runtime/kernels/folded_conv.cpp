#include "runtime/kernels/folded_conv.h"

#include "ir/ops/common/spatial.h"
#include "ir/ops/records.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

constexpr size_t volume_rank = 5;

// Which neighbouring dimensions become one: batch and depth, or down and across. Counted from the batch.
enum class Fold : uint8_t { DepthIntoBatch = 0, DownIntoAcross = 2 };

Shape folded_volume(llvm::ArrayRef<int64_t> shape, Fold fold) {
  Shape folded(shape.begin(), shape.end());
  auto* const at = folded.begin() + static_cast<size_t>(fold);
  at[1] *= at[0];
  folded.erase(at);
  return folded;
}

// Weights have no batch: a dimension of one tap goes.
Shape folded_weights(llvm::ArrayRef<int64_t> shape, Fold fold) {
  Shape folded(shape.begin(), shape.end());
  folded.erase(folded.begin() + (fold == Fold::DepthIntoBatch ? 1 : 2));
  return folded;
}

bool is_volume_op(const OpDef& op) {
  const OpDef* const ops[] = {&op_conv, &op_conv_dx, &op_conv_dw, &op_conv_moments, &op_conv_dx_sums};
  return llvm::is_contained(ops, &op);
}

std::optional<Fold> fold_of(const SlidingWindow& window) {
  const auto is_plain = [&](size_t d) {
    return window.kernel[d] == 1 && window.strides[d] == 1 && window.pads_begin[d] == 0 && window.pads_end[d] == 0;
  };
  if (is_plain(0)) return Fold::DepthIntoBatch;
  return is_plain(1) && is_plain(2) ? std::optional(Fold::DownIntoAcross) : std::nullopt;
}

}  // namespace

std::optional<FoldedConvolution> FoldedConvolution::of(const OpCall& call, llvm::ArrayRef<Type> results) {
  if (!is_volume_op(call.op) || !call.get_int("channels_last") || call.operand(0).shape.size() != volume_rank)
    return std::nullopt;
  const bool makes_weights = &call.op == &op_conv_dw;
  const Shape& w = makes_weights ? results[0].shape : call["w"].shape;
  const SlidingWindow window =
      llvm::cantFail(read_window(call.attrs, llvm::ArrayRef<int64_t>(w).slice(1, w.size() - 2)));
  const std::optional<Fold> fold = fold_of(window);
  if (!fold) return std::nullopt;

  const auto folded = [&](const Type& type, bool is_weights) -> Type {
    if (type.shape.size() != volume_rank) return type;
    return {type.dtype, is_weights ? folded_weights(type.shape, *fold) : folded_volume(type.shape, *fold)};
  };
  FoldedConvolution made;
  made.op_ = &call.op;
  made.types_.reserve(call.count());  // pointers_ refer to them
  for (size_t i = 0; i < call.count(); ++i) {
    if (!call.has(i)) {
      made.pointers_.push_back(nullptr);
      continue;
    }
    made.types_.push_back(folded(call.operand(i), !makes_weights && i == call.index("w")));
    made.pointers_.push_back(&made.types_.back());
  }
  for (const Type& result : results) made.results_.push_back(folded(result, makes_weights));

  made.attrs_ = call.attrs;
  Ints strides, dilations, begins, ends;
  for (size_t d = 0; d < window.rank; ++d) {
    if (d == (*fold == Fold::DepthIntoBatch ? 0 : 1)) continue;
    strides.push_back(window.strides[d]);
    dilations.push_back(window.dilations[d]);
    begins.push_back(window.pads_begin[d]);
    ends.push_back(window.pads_end[d]);
  }
  begins.append(ends.begin(), ends.end());
  made.attrs_.set("strides", strides);
  made.attrs_.set("dilations", dilations);
  made.attrs_.set("pads", begins);
  if (call.attrs.has("shape"))
    made.attrs_.set("shape", Ints(made.results_[0].shape.begin(), made.results_[0].shape.end()));
  return made;
}

}  // namespace plimsoll
