#include "ir/ops/common/reference_math.h"

namespace plimsoll {

Status need_shape(const OpCall& call, PortKey i, llvm::ArrayRef<int64_t> shape) {
  if (!call.has(i)) return Status::success();
  return need_type(call, i, Type(call[i].dtype, shape));
}

Status need_rank_between(const OpCall& call, PortKey i, int64_t low, int64_t high) {
  if (!call.has(i)) return Status::success();
  int64_t rank = call[i].rank();
  if (low <= rank && rank <= high) return Status::success();
  std::string limit = std::to_string(low) + (high == INT64_MAX ? " or more" : " to " + std::to_string(high));
  return model_error("operand " + llvm::Twine(call.index(i)) + " is " + to_string(call[i]) + ", it must be of rank " +
                     limit);
}

Status need_only_first_gradient(const GradContext& g, llvm::StringRef others) {
  const Node& node = g.b.graph().node(g.b.graph().value(g.result(0)).producer);
  for (size_t i = 1; i < node.results.size(); ++i)
    if (g.out_grad(i) != ValueId::None)
      return model_error("a gradient flows into %" + g.b.graph().value(g.result(i)).name + ", but " + others + " of " +
                         node.op->name + " pass none on");
  return Status::success();
}

ValueId channel_sum(Builder& b, ValueId dy, const Attrs& attrs) {
  const size_t rank = b.type(dy).shape.size(), channels = channel_dim(attrs, rank);
  Ints axes;
  for (size_t d = 0; d < rank; ++d)
    if (d != channels) axes.push_back(static_cast<int64_t>(d));
  return b.sum(dy, axes, false);
}

Result<Attrs> shape_attr_for_batch(const OpCall& before, llvm::ArrayRef<const Type*> after) {
  llvm::ArrayRef<int64_t> old_shape = before.attrs.get_ints("shape");
  Ints shape(old_shape.begin(), old_shape.end());
  shape[0] = after[0]->shape[0];
  Attrs attrs = before.attrs;
  attrs.set("shape", shape);
  return attrs;
}

}  // namespace plimsoll
