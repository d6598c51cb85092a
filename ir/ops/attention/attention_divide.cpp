#include "ir/ops/attention/attention_divide.h"

// Attention divides by heads, which need not divide evenly: then the last ranks have heads of zeros, whose values and
// gradients are zeros. Ranks have key heads with all of their query heads, or, where key heads are fewer than ranks,
// query heads alone, and pick the key heads that these read from all.

#include "ir/builder.h"
#include "ir/ops/attention/attention_sizes.h"
#include "ir/ops/common/divide.h"
#include "ir/support/philox.h"

#include <algorithm>

namespace plimsoll {
namespace {

// How many heads a rank has.
struct OwnHeads {
  int64_t heads, kv_heads;
};

// Enough for `part` elements of what is known. Each rank has some key heads with all of their query heads; where there
// are more ranks than key heads, query heads alone, and picks their key heads from all.
std::optional<OwnHeads> own_heads(const AttentionSizes& n, int64_t part, bool of_keys, int64_t depth, int64_t ranks) {
  const int64_t known = (part + depth - 1) / depth, group = n.heads / n.kv_heads;
  if (group == 1 || n.kv_heads >= ranks) {
    const int64_t kv_heads = of_keys ? known : (known + group - 1) / group;
    return OwnHeads{kv_heads * group, kv_heads};
  }
  if (of_keys) return std::nullopt;
  // Either all of the rank's query heads share one key head, or each reads a copy of its own.
  return OwnHeads{known, group % known == 0 ? 1 : known};
}

// The rank's own numbers of a list with as many for each rank.
ValueId own_numbers(Builder& b, Tensor of_all, int64_t ranks) {
  const int64_t own = of_all.type().elements() / ranks;
  return b.emit("take_piece", {b.constant(std::move(of_all))}, collective_attrs(MeshAxis::Tensor, ranks, {own}));
}

// Picks the key heads of the rank's query heads from all. Values of heads behind the end are zeros.
llvm::SmallVector<ValueId, 4> attention_of_picked_heads(Builder& b, const Node& node, const DividedCall& call,
                                                        int64_t ranks) {
  const int64_t own = call.attrs.get_int("kv_heads"), heads = call.attrs.get_int("heads"),
                kv_heads = node.attrs.get_int("kv_heads"), all_heads = node.attrs.get_int("heads");
  Tensor picked(Type(DType::I64, {ranks * own})), kept(Type(b.type(node.operands[2]).dtype, {ranks * own}));
  for (int64_t i = 0; i < ranks * own; ++i) {
    const int64_t head = i * (heads / own);  // the first query head that reads it
    picked.view().set_int(i, std::min(head, all_heads - 1) / (all_heads / kv_heads));
    kept.view().set(i, head < all_heads);
  }
  const ValueId indices = own_numbers(b, std::move(picked), ranks);
  Node own_node = node;
  for (size_t i : {1, 2}) {
    const Shape shape = b.type(node.operands[i]).shape;
    const ValueId by_head = b.reshape(node.operands[i], {shape[0], shape[1], kv_heads, shape[2] / kv_heads});
    ValueId here = b.emit("gather", {by_head, indices}, {{"axis", int64_t{2}}});
    if (i == 2 && ranks * heads > all_heads)
      here = b.emit("mul", {here, b.reshape(own_numbers(b, kept, ranks), {own, 1})});
    own_node.operands[i] = b.reshape(here, {shape[0], shape[1], own * (shape[2] / kv_heads)});
  }
  const auto results = b.emit_all("attention", own_node.operands, call.attrs);
  return {results.begin(), results.end()};
}

}  // namespace

// By heads.
std::optional<DividedCall> attention_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known,
                                            int64_t ranks) {
  const AttentionSizes n(call);
  const bool is_operand = known.side == CutAt::Side::Operand, packed = AttentionSizes::is_packed(call.attrs);
  // What is known, as heads: widths of q, k and v, or numbers for each head.
  const bool of_keys = is_operand && !packed && (known.index == 1 || known.index == 2);
  const bool by_head = is_operand ? known.index > 2 : known.index == 1;
  const int64_t depth = by_head ? 1 : is_operand && known.index < 2 ? n.depth : n.value_depth;
  if (known.cut.blocks.empty() || (!can_divide(known.cut, ranks) && known.cut.parts.empty())) return std::nullopt;
  const std::optional<OwnHeads> own = own_heads(n, part_of_block(known.cut, 0, ranks), of_keys, depth, ranks);
  if (!own) return std::nullopt;
  const bool picks = own->heads * n.kv_heads != own->kv_heads * n.heads;
  if (picks && packed) return std::nullopt;
  const auto cut = [&](int64_t dim, int64_t heads, int64_t part, int64_t width) {
    return cut_in_parts(dim, {heads * width}, {part * width}, ranks);
  };
  DividedCall made;
  made.operands.resize(call.count());
  if (packed) {
    const int64_t q = n.heads * n.depth, k = n.kv_heads * n.depth, own_k = own->kv_heads * n.depth;
    made.operands[0] = cut_in_parts(2, {q, k, k}, {own->heads * n.depth, own_k, own_k}, ranks);
  } else {
    made.operands[0] = cut(2, n.heads, own->heads, n.depth);
    if (!picks) {
      made.operands[1] = cut(2, n.kv_heads, own->kv_heads, n.depth);
      made.operands[2] = cut(2, n.kv_heads, own->kv_heads, n.value_depth);
    }
  }
  if (call.has("mask")) {
    const Shape& mask = call["mask"].shape;
    const int64_t heads_dim = static_cast<int64_t>(mask.size()) - 3;
    if (heads_dim >= 0 && mask[static_cast<size_t>(heads_dim)] > 1)
      made.operands[call.index("mask")] = cut(heads_dim, n.heads, own->heads, 1);
  }
  for (llvm::StringRef of_heads : {"slopes", "sinks"})
    if (call.has(of_heads)) made.operands[call.index(of_heads)] = cut(0, n.heads, own->heads, 1);
  made.results = {cut(2, n.heads, own->heads, n.value_depth), cut(1, n.heads, own->heads, 1)};
  // Of what is known the parts may have to be larger.
  const std::optional<Cut>& answer = (is_operand ? made.operands : made.results)[known.index];
  if (!answer || answer->dim != known.cut.dim || answer->blocks != known.cut.blocks) return std::nullopt;
  made.attrs = call.attrs;
  made.attrs.set("heads", own->heads);
  made.attrs.set("kv_heads", own->kv_heads);
  made.may_be_uneven = true;
  if (picks) made.make = attention_of_picked_heads;
  if (call.get_float("dropout") == 0) return made;
  // The numbers of a sample's heads lie side by side, those of the next sample behind all of its heads.
  made.attrs.set("drawn_heads", n.drawn_heads);
  return with_draws_of_part(std::move(made), own->heads * n.rows * DropoutRule::draws_of_row(n.columns));
}

}  // namespace plimsoll
