#include "ir/fold_moves.h"

// Data movement on a tensor whose repeated dimensions are stored once. Each rule first writes the base
// at full rank, with 1 wherever it repeats.

#include "ir/evaluate.h"

namespace plimsoll {
namespace {

Shape full_rank_base(const ConstantView& view) {
  Shape shape(view.shape.size() - view.base->type().shape.size(), 1);
  shape.append(view.base->type().shape.begin(), view.base->type().shape.end());
  return shape;
}

ConstantView with_base_shape(const ConstantView& view, llvm::ArrayRef<int64_t> base, llvm::ArrayRef<int64_t> shape) {
  bool as_is = llvm::ArrayRef<int64_t>(view.base->type().shape) == base;
  return {as_is ? view.base : std::make_shared<const Tensor>(view.base->reshaped(base)),
          Shape(shape.begin(), shape.end())};
}

// Runs the op on the base; its inference and meaning are those of the op itself.
std::optional<ConstantView> evaluate_on_base(const Node& node, const Attrs& attrs, const ConstantView& view,
                                             llvm::ArrayRef<int64_t> shape) {
  Tensor base = view.base->reshaped(full_rank_base(view));
  Result<std::vector<Tensor>> moved = evaluate_node(*node.op, attrs, {&base});
  if (!moved) {
    llvm::consumeError(moved.takeError());
    return std::nullopt;
  }
  return ConstantView{std::make_shared<const Tensor>(std::move(moved->front())), Shape(shape.begin(), shape.end())};
}

// The dimensions fall into groups with equal products before and after. A group that repeats as a whole is 1s
// after, a group that is stored as a whole keeps its new dimensions; a group that does both cannot move.
std::optional<ConstantView> move_reshape(const ConstantView& view, llvm::ArrayRef<int64_t> to) {
  Shape base = full_rank_base(view), moved_base;
  size_t from = 0;
  while (from < base.size() || moved_base.size() < to.size()) {
    int64_t before = 1, stored = 1, after = 1;
    size_t group = moved_base.size(), next = group;
    auto take = [&] {
      before *= view.shape[from];
      stored *= base[from++];
    };
    if (from < base.size()) take();
    if (next < to.size()) after *= to[next++];
    while (before != after) {
      if (before < after && from < base.size())
        take();
      else if (after < before && next < to.size())
        after *= to[next++];
      else
        return std::nullopt;
    }
    if (stored != 1 && stored != before) return std::nullopt;
    for (; group < next; ++group) moved_base.push_back(stored == before ? to[group] : 1);
  }
  return with_base_shape(view, moved_base, to);
}

std::optional<ConstantView> move_slice(const Node& node, const ConstantView& view, llvm::ArrayRef<int64_t> to) {
  Shape base = full_rank_base(view);
  auto ints = [&](llvm::StringRef name) {
    llvm::ArrayRef<int64_t> list = node.attrs.get_ints(name);
    return Ints(list.begin(), list.end());
  };
  Ints starts = ints("starts"), steps = ints("steps"), sizes = ints("sizes");
  for (size_t d = 0; d < base.size(); ++d) {
    if (base[d] == view.shape[d] || sizes[d] == 0) continue;
    starts[d] = 0;
    steps[d] = sizes[d] = 1;
  }
  return evaluate_on_base(node, {{"starts", starts}, {"steps", steps}, {"sizes", sizes}}, view, to);
}

}  // namespace

std::optional<ConstantView> move_constant(const Node& node, const ConstantView& view, llvm::ArrayRef<int64_t> to) {
  llvm::StringRef op = node.op->name;
  if (element_count(view.shape) == 0) return std::nullopt;
  if (op == "expand") return ConstantView{view.base, Shape(to.begin(), to.end())};
  if (op == "reshape") return move_reshape(view, to);
  if (!view.is_expanded()) return std::nullopt;
  if (op == "transpose") return evaluate_on_base(node, node.attrs, view, to);
  if (op == "slice") return move_slice(node, view, to);
  return std::nullopt;
}

}  // namespace plimsoll
