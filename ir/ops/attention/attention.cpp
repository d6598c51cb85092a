#include "ir/ops/attention/attention_divide.h"
#include "ir/ops/attention/attention_reference.h"
#include "ir/ops/attention/attention_sizes.h"
#include "ir/ops/common/reference_math.h"
#include "ir/support/philox.h"

#include <algorithm>
#include <cmath>

// Attention over all heads at once: y = dropout(softmax(cap(scale * q k^T) + mask)) v, heads side by side in
// the last dimension. Backward makes the probabilities again from one lse per row (Dao et al. 2022), so nothing of
// size [S, T] is kept. A row that may attend to nothing has lse = -inf, gives 0 and takes no gradient.
//
// Masks that a formula says have no tensor of rows by columns: causal ones, windows, slopes times a distance (ALiBi,
// Press et al. 2022) and packed documents. A sink is one more score of each row, without a value (gpt-oss): it is part
// of lse, so that the other gradients know it from there. cap(s) is {softcap} * tanh(s / {softcap}) (Gemma 2).

namespace plimsoll {
namespace {

constexpr AttrSpecs attention_attrs{{"heads", AttrKind::Int},
                                    {"kv_heads", AttrKind::Int},
                                    {"scale", AttrKind::Float},
                                    {"causal", 0},
                                    {"dropout", 0.0},
                                    {"id", AttrKind::Int, AttrNeed::Optional},
                                    {"packed", 0},
                                    {"window", 0},
                                    {"softcap", 0.0},
                                    first_draw_attr,
                                    draws_per_rank_attr,
                                    draws_per_part_attr,
                                    {"drawn_heads", AttrKind::Int, AttrNeed::Optional}};

struct Sizes : AttentionSizes {
  using AttentionSizes::AttentionSizes;

  // Pairs of a row and a column that meet, in one head.
  double pairs(const OpCall& call) const {
    auto r = static_cast<double>(rows), c = static_cast<double>(columns), corner = std::min(r, c);
    const bool causal = call.get_int("causal");
    const int64_t window = call.get_int("window");
    const double all = causal ? corner * (corner + 1) / 2 + (r - corner) * c : r * c;
    return window > 0 ? std::min(all, r * static_cast<double>(causal ? window : 2 * window - 1)) : all;
  }
};

Status need_present(const OpCall& call, std::initializer_list<PortKey> operands) {
  for (PortKey i : operands)
    if (!call.has(i)) return model_error("operand " + llvm::Twine(call.index(i)) + " is absent");
  return Status::success();
}

Status check_packed_heads(const OpCall& call, int64_t heads, int64_t kv_heads) {
  if (Status s = need_present(call, {"q"})) return s;
  if (Status s = need_float(call, "q")) return s;
  if (Status s = need_rank(call, "q", 3)) return s;
  if (call.has("k") || call.has("v"))
    return model_error("packed heads stand in operand 0, operands 1 and 2 must be absent");
  const int64_t width = call["q"].shape[2], all = heads + 2 * kv_heads;
  if (width % all == 0) return Status::success();
  return model_error("the width " + llvm::Twine(width) + " does not divide into " + llvm::Twine(all) + " heads");
}

Status check_heads(const OpCall& call) {
  int64_t heads = call.get_int("heads"), kv_heads = call.get_int("kv_heads");
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
    return model_error(llvm::Twine(heads) + " query heads do not share " + llvm::Twine(kv_heads) + " key heads evenly");
  if (AttentionSizes::is_packed(call.attrs)) return check_packed_heads(call, heads, kv_heads);
  if (Status s = need_present(call, {"q", "k", "v"})) return s;
  for (llvm::StringRef i : {"q", "k", "v"}) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_same_dtype(call, "q", i)) return s;
    if (Status s = need_rank(call, i, 3)) return s;
  }
  const Shape &q = call["q"].shape, &k = call["k"].shape, &v = call["v"].shape;
  if (q[2] % heads != 0 || k[2] % kv_heads != 0 || v[2] % kv_heads != 0)
    return model_error("the widths " + llvm::Twine(q[2]) + ", " + llvm::Twine(k[2]) + " and " + llvm::Twine(v[2]) +
                       " do not divide into " + llvm::Twine(heads) + " and " + llvm::Twine(kv_heads) + " heads");
  if (q[2] / heads != k[2] / kv_heads)
    return model_error("a query head has " + llvm::Twine(q[2] / heads) + " elements, a key head " +
                       llvm::Twine(k[2] / kv_heads));
  if (k[0] != q[0] || v[0] != q[0] || v[1] != k[1])
    return model_error("batches or lengths differ: q " + to_string(q) + ", k " + to_string(k) + ", v " + to_string(v));
  return Status::success();
}

Status check_mask_and_rng(const OpCall& call) {
  Shape scores = Sizes(call).scores();
  if (call.has("mask")) {
    const Type& type = call["mask"];
    if (!is_float(type.dtype) && type.dtype != DType::Bool)
      return model_error("the mask is " + to_string(type) + ", it must be bool or float");
    if (Status s = need_rank_between(call, "mask", 2, 4)) return s;
    if (broadcast_shapes(scores, type.shape) != scores)
      return model_error("the mask " + to_string(type) + " does not broadcast to " + to_string(scores));
  }
  if (call.get_int("window") < 0) return model_error("the window is " + llvm::Twine(call.get_int("window")));
  if (const double cap = call.get_float("softcap"); cap < 0)
    return model_error("softcap is " + std::to_string(cap) + ", it must be a positive number, or 0 for none");
  if (Status s = need_type(call, "rng", Type(DType::I64, {2}))) return s;
  const int64_t first = call.get_int("first_draw");
  if (first < 0 || first % DropoutRule::columns_per_word != 0)
    return model_error("first_draw is " + llvm::Twine(first) + ", it must be a multiple of " +
                       llvm::Twine(DropoutRule::columns_per_word) + " from 0 on");
  double dropout = call.get_float("dropout");
  if (dropout < 0 || dropout > 1)
    return model_error("dropout is " + std::to_string(dropout) + ", it must be between 0 and 1");
  if (dropout > 0 && (!call.has("rng") || !call.attrs.has("id")))
    return model_error("dropout " + std::to_string(dropout) + " needs a random counter and an id");
  return Status::success();
}

// One number for each query head.
Status check_numbers_of_heads(const OpCall& call, PortKey operand) {
  if (!call.has(operand)) return Status::success();
  if (Status s = need_float(call, operand)) return s;
  const Type& type = call[operand];
  if (type.shape == Shape{call.get_int("heads")}) return Status::success();
  return model_error("operand " + llvm::Twine(call.index(operand)) + " is " + to_string(type) +
                     ", it must have a number for each of " + llvm::Twine(call.get_int("heads")) + " heads");
}

Status check_segments(const OpCall& call) {
  if (!call.has("segments")) return Status::success();
  const Sizes n(call);
  const Type& type = call["segments"];
  if (n.rows != n.columns)
    return model_error("segments need as many rows as columns, got " + llvm::Twine(n.rows) + " and " +
                       llvm::Twine(n.columns));
  if (type == Type(DType::I64, {n.batch, n.rows}) || type == Type(DType::I64, {1, n.rows})) return Status::success();
  return model_error("the segments are " + to_string(type) + ", they must be i64[" + llvm::Twine(n.batch) + " or 1," +
                     llvm::Twine(n.rows) + "]");
}

// Operands that say what may attend to what, and how much more.
Status check_masks(const OpCall& call) {
  if (Status s = check_mask_and_rng(call)) return s;
  if (Status s = check_numbers_of_heads(call, "slopes")) return s;
  return check_segments(call);
}

Result<Types> infer_attention(const OpCall& call) {
  if (Status s = check_heads(call)) return s;
  if (Status s = check_masks(call)) return s;
  if (Status s = check_numbers_of_heads(call, "sinks")) return s;
  Sizes n(call);
  DType dtype = call["q"].dtype;
  return Types{Type(dtype, {n.batch, n.rows, n.heads * n.value_depth}),
               Type(stat_dtype(dtype), {n.batch, n.heads, n.rows})};
}

Result<Types> infer_attention_grad(const OpCall& call) {
  if (Status s = check_heads(call)) return s;
  if (Status s = need_present(call, {"y", "lse", "dy"})) return s;
  if (Status s = check_masks(call)) return s;
  Sizes n(call);
  Type y(call["q"].dtype, {n.batch, n.rows, n.heads * n.value_depth});
  if (Status s = need_type(call, "y", y)) return s;
  if (Status s = need_type(call, "lse", Type(stat_dtype(y.dtype), {n.batch, n.heads, n.rows}))) return s;
  if (Status s = need_type(call, "dy", y)) return s;
  if (AttentionSizes::is_packed(call.attrs)) return Types{call["q"]};
  return Types{call["q"], call["k"], call["v"]};
}

Status need_whole_mask(const Shape& mask, int64_t rows, int64_t columns) {
  if (mask[mask.size() - 2] == rows && mask.back() == columns) return Status::success();
  return model_error("the mask " + to_string(mask) + " can be trained only with a number for each of " +
                     llvm::Twine(rows) + " rows and " + llvm::Twine(columns) + " columns");
}

Result<Types> infer_attention_mask_grad(const OpCall& call) {
  Result<Types> others = infer_attention_grad(call);
  if (!others) return others.takeError();
  if (Status s = need_present(call, {"mask"})) return s;
  if (Status s = need_float(call, "mask")) return s;
  const Sizes n(call);
  if (Status s = need_whole_mask(call["mask"].shape, n.rows, n.columns)) return s;
  return Types{call["mask"]};
}

Result<Types> infer_attention_grad_with_mask(const OpCall& call) {
  Result<Types> types = infer_attention_mask_grad(call);
  if (!types) return types.takeError();
  types->push_back(call["q"]);
  if (!AttentionSizes::is_packed(call.attrs)) types->append({call["k"], call["v"]});
  return types;
}

Result<Types> infer_attention_sinks_grad(const OpCall& call) {
  if (Status s = need_rank(call, "y", 3)) return s;
  if (Status s = need_rank(call, "lse", 3)) return s;
  if (Status s = need_type(call, "dy", call["y"])) return s;
  if (Status s = need_float(call, "sinks")) return s;
  const Shape &y = call["y"].shape, &lse = call["lse"].shape;
  if (lse[0] != y[0] || lse[2] != y[1] || lse[1] < 1 || y[2] % lse[1] != 0)
    return model_error("the lse " + to_string(lse) + " does not fit the result " + to_string(y));
  if (call["sinks"].shape != Shape{lse[1]})
    return model_error("the sinks are " + to_string(call["sinks"]) + ", there are " + llvm::Twine(lse[1]) + " heads");
  return Types{call["sinks"]};
}

// The gradient of the mask comes from the same dS as those of q and k, in one op where both are wanted.
Status attention_gradient(GradContext& g) {
  if (Status s = need_only_first_gradient(g, "the lse")) return s;
  llvm::SmallVector<ValueId, 12> operands{g["q"], g["k"], g["v"], g.result("y"), g.result("lse"), g.out_grad()};
  for (size_t i = g.index("mask"); i < std::min(g.operand_count(), g.index("sinks")); ++i) operands.push_back(g[i]);
  if (g.wants("slopes")) return model_error("attention has no gradient for the slopes of distances");
  if (g.wants("sinks"))
    g.add("sinks", g.b.emit("attention_sinks_grad", {g.result("y"), g.result("lse"), g.out_grad(), g["sinks"]}));
  const bool wants_mask = g.wants("mask"), wants_others = g.wants("q") || g.wants("k") || g.wants("v");
  if (!wants_mask && !wants_others) return Status::success();
  if (wants_mask) {
    const Shape &mask = g.b.type(g["mask"]).shape, &lse = g.b.type(g.result("lse")).shape;
    const int64_t columns = AttentionSizes::is_packed(g.attrs()) ? lse[2] : g.b.type(g["k"]).shape[1];
    if (Status s = need_whole_mask(mask, lse[2], columns)) return s;
  }
  const char* op = !wants_mask ? "attention_grad" : !wants_others ? "attention_mask_grad" : "attention_grad_with_mask";
  const llvm::SmallVector<ValueId, 4> gradients = g.b.emit_all(op, operands, g.attrs());
  if (wants_mask) g.add("mask", gradients.front());
  if (!wants_others) return Status::success();
  const llvm::ArrayRef<ValueId> of_others = llvm::ArrayRef<ValueId>(gradients).drop_front(wants_mask ? 1 : 0);
  for (size_t i = 0; i < of_others.size(); ++i)
    if (g.wants(i)) g.add(i, of_others[i]);
  return Status::success();
}

double attention_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  Sizes n(call);
  return 2.0 * static_cast<double>(n.batch * n.heads * (n.depth + n.value_depth)) * n.pairs(call);
}

// Scores and dP once more, then dq, dk and dv.
double attention_grad_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  Sizes n(call);
  return 2.0 * static_cast<double>(n.batch * n.heads * (3 * n.depth + 2 * n.value_depth)) * n.pairs(call);
}

// Scores and dP once more.
double attention_mask_grad_flops(const OpCall& call, llvm::ArrayRef<Type>) { return attention_flops(call, {}); }

double attention_grad_with_mask_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  return attention_grad_flops(call, {});
}

double attention_sinks_grad_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  return 2.0 * static_cast<double>(call["y"].elements());
}

// A mask may have a row for each sample, and so have segments.
std::optional<ChunkCall> chunk_of_samples(const OpCall& call, ChunkCall made, Chunk chunk) {
  if (call.has("mask")) made.cut[call.index("mask")] = call["mask"].rank() == 4 && call["mask"].shape[0] > 1;
  if (call.has("segments")) made.cut[call.index("segments")] = call["segments"].shape[0] > 1;
  if (call.get_float("dropout") == 0) return made;
  const Sizes n(call);
  const int64_t rows = n.batch * n.drawn_heads * n.rows;
  return with_chunk_of_draws(std::move(made), rows * DropoutRule::draws_of_row(n.columns), chunk);
}

std::optional<ChunkCall> attention_chunk(const OpCall& call, Chunk chunk) {
  return chunk_of_samples(call, cut_operands(call, {"q", "k", "v"}), chunk);
}

std::optional<ChunkCall> attention_grad_chunk(const OpCall& call, Chunk chunk) {
  return chunk_of_samples(call, cut_operands(call, {"q", "k", "v", "y", "lse", "dy"}), chunk);
}

// A mask of all samples has a summand of each.
std::optional<ChunkCall> attention_mask_grad_chunk(const OpCall& call, Chunk chunk) {
  std::optional<ChunkCall> made = attention_grad_chunk(call, chunk);
  if (made && !made->cut[call.index("mask")]) made->combine = {Combine::Sum};
  return made;
}

std::optional<ChunkCall> attention_sinks_grad_chunk(const OpCall& call, Chunk) {
  ChunkCall made = cut_operands(call, {"y", "lse", "dy"});
  made.combine = {Combine::Sum};
  return made;
}

Attrs heads_attrs(int64_t heads, int64_t kv_heads, double scale) {
  return {{"heads", heads}, {"kv_heads", kv_heads}, {"scale", scale}};
}

std::vector<Sample> attention_samples() {
  using namespace samples;
  Attrs causal = heads_attrs(4, 2, 0.6), dropped = heads_attrs(2, 1, 0.7);
  causal.set("causal", 1);
  dropped.set("dropout", 0.4);
  dropped.set("id", 7);
  SampleOperand rng = values({2}, {5, 3}, DType::I64);
  Attrs of_parts = heads_attrs(2, 2, 0.7);
  of_parts.set("dropout", 0.4);
  of_parts.set("id", 7);
  of_parts.set("first_draw", 64);
  of_parts.set("drawn_heads", 4);
  Attrs packed = causal, packed_dropped = dropped, later_draws = dropped;
  later_draws.set("first_draw", 96);
  packed.set("packed", 1);
  packed_dropped.set("packed", 1);
  Attrs near = heads_attrs(2, 2, 0.5), causal_near = causal;
  near.set("window", int64_t{2});
  causal_near.set("window", int64_t{2});
  Attrs capped = heads_attrs(2, 1, 0.8), capped_near = causal_near, slanted = causal, packed_slanted = packed;
  capped.set("softcap", 0.75);
  capped_near.set("softcap", 1.5);
  packed_slanted.set("softcap", 2.0);
  const SampleOperand slopes = fixed(values({4}, {0.5, 0.25, 0.125, 0.0625})), sinks = normal({2});
  const SampleOperand documents = values({2, 5}, {0, 0, 1, 1, 1, 7, 7, 7, 7, 3}, DType::I64);
  // The second row may attend to nothing.
  SampleOperand empty_row = values({3, 4}, {1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0}, DType::Bool);
  return {
      {{normal({2, 3, 4}), normal({2, 4, 4}), normal({2, 4, 6})}, heads_attrs(2, 2, 0.5)},
      {{normal({1, 4, 8}), normal({1, 3, 4}), normal({1, 3, 4})}, causal},
      {{normal({2, 5, 4}), normal({2, 5, 4}), normal({2, 5, 4})}, near},
      {{normal({1, 5, 8}), normal({1, 5, 4}), normal({1, 5, 4})}, causal_near},
      {{normal({1, 4, 8}, DType::BF16), normal({1, 3, 4}, DType::BF16), normal({1, 3, 4}, DType::BF16)}, causal},
      {{normal({2, 2, 4}, DType::BF16), normal({2, 3, 2}, DType::BF16), normal({2, 3, 2}, DType::BF16),
        fixed(normal({2, 1, 1, 3}))},
       heads_attrs(2, 1, 0.7)},
      {{normal({2, 3, 4}), normal({2, 4, 4}), normal({2, 4, 2}), empty_row}, heads_attrs(2, 2, 0.5)},
      {{normal({2, 2, 4}), normal({2, 3, 2}), normal({2, 3, 2}), fixed(normal({2, 1, 1, 3})), rng}, dropped},
      {{normal({2, 2, 4}), normal({2, 3, 4}), normal({2, 3, 4}), normal({1, 2, 2, 3})}, heads_attrs(2, 2, 0.5)},
      {{normal({1, 3, 4}), normal({1, 3, 2}), normal({1, 3, 2}), absent(), rng}, dropped},
      {{normal({2, 4, 4}), normal({2, 3, 2}), normal({2, 3, 2}), absent(), rng}, later_draws},
      {{normal({2, 4, 4}), normal({2, 2, 4}), normal({2, 2, 4}), absent(), rng}, of_parts},
      {{normal({2, 3, 16}), absent(), absent()}, packed},
      {{normal({2, 3, 64}, DType::BF16), absent(), absent()}, packed},
      {{normal({2, 3, 8}), absent(), absent(), fixed(normal({2, 1, 1, 3})), rng}, packed_dropped},
      {{normal({2, 3, 4}), normal({2, 4, 2}), normal({2, 4, 4})}, capped},
      {{normal({2, 3, 4}), normal({2, 4, 2}), normal({2, 4, 4}), normal({1, 2, 3, 4})}, capped},
      {{normal({1, 5, 8}), normal({1, 5, 4}), normal({1, 5, 4})}, capped_near},
      {{normal({1, 4, 8}), normal({1, 4, 4}), normal({1, 4, 4}), absent(), absent(), slopes}, slanted},
      {{normal({1, 4, 8}), normal({1, 3, 8}), normal({1, 3, 8}), absent(), absent(), slopes}, heads_attrs(4, 4, 0.5)},
      {{normal({2, 5, 4}), normal({2, 5, 4}), normal({2, 5, 4}), absent(), absent(), absent(), documents},
       heads_attrs(2, 2, 0.5)},
      {{normal({2, 5, 16}), absent(), absent(), absent(), absent(), slopes, documents}, packed_slanted},
      {{normal({2, 3, 4}), normal({2, 4, 2}), normal({2, 4, 4}), absent(), absent(), absent(), absent(), sinks},
       capped},
      {{normal({2, 3, 4}), normal({2, 4, 4}), normal({2, 4, 2}), empty_row, absent(), absent(), absent(), sinks},
       heads_attrs(2, 2, 0.5)},
      {{normal({2, 2, 4}), normal({2, 3, 2}), normal({2, 3, 2}), absent(), rng, absent(), absent(), sinks}, dropped},
      {{normal({2, 5, 16}, DType::BF16), absent(), absent(), absent(), absent(), slopes, documents, normal({4})},
       packed_slanted},
  };
}

std::vector<Sample> attention_grad_samples() {
  using namespace samples;
  Attrs packed = heads_attrs(2, 1, 0.5);
  packed.set("packed", 1);
  Attrs capped = heads_attrs(2, 1, 0.5);
  capped.set("softcap", 0.5);
  // As those of real rows are, above every score: no probability is above 1.
  SampleOperand lse = values({2, 2, 3}, {6, 6.5, 7, 6.25, 6.75, 7.25, 6, 6.5, 7, 6.25, 6.75, 7.25});
  SampleOperand with_closed_rows =
      values({2, 2, 3}, {6, -1e30, 7, 6.25, 6.75, 7.25, -INFINITY, 6.5, 7, 6.25, 6.75, -3.4e38});
  return {
      {{normal({2, 3, 4}), normal({2, 4, 2}), normal({2, 4, 3}), normal({2, 3, 6}), lse, normal({2, 3, 6})},
       heads_attrs(2, 1, 0.5)},
      {{normal({2, 3, 4}, DType::BF16), normal({2, 4, 2}, DType::BF16), normal({2, 4, 3}, DType::BF16),
        normal({2, 3, 6}, DType::BF16), lse, normal({2, 3, 6}, DType::BF16)},
       heads_attrs(2, 1, 0.5)},
      {{normal({1, 2, 4}), normal({1, 3, 4}), normal({1, 3, 4}), normal({1, 2, 4}),
        values({1, 2, 2}, {6, 6.5, 7, 6.25}), normal({1, 2, 4}), bools({2, 3})},
       heads_attrs(2, 2, 0.5)},
      {{normal({2, 3, 8}), absent(), absent(), normal({2, 3, 4}), lse, normal({2, 3, 4})}, packed},
      {{normal({2, 3, 16}), absent(), absent(), normal({2, 3, 8}), with_closed_rows, normal({2, 3, 8}),
        fixed(normal({2, 1, 1, 3}))},
       packed},
      {{normal({2, 3, 16}, DType::BF16), normal({2, 3, 8}, DType::BF16), normal({2, 3, 8}, DType::BF16),
        normal({2, 3, 16}, DType::BF16), with_closed_rows, normal({2, 3, 16}, DType::BF16),
        fixed(normal({2, 1, 1, 3}))},
       heads_attrs(2, 1, 0.5)},
      {{normal({2, 3, 4}), normal({2, 3, 2}), normal({2, 3, 3}), normal({2, 3, 6}), lse, normal({2, 3, 6}),
        fixed(normal({2, 1, 1, 3})), absent(), values({2}, {0.5, 0.25}), values({1, 3}, {4, 4, 2}, DType::I64)},
       capped},
      {{normal({2, 3, 32}, DType::BF16), absent(), absent(), normal({2, 3, 16}, DType::BF16), lse,
        normal({2, 3, 16}, DType::BF16)},
       packed},
  };
}

std::vector<Sample> attention_mask_grad_samples() {
  using namespace samples;
  std::vector<Sample> made;
  SampleOperand lse = values({2, 2, 3}, {6, 6.5, 7, 6.25, 6.75, 7.25, 6, 6.5, 7, 6.25, 6.75, 7.25});
  for (DType dtype : {DType::F32, DType::BF16})
    for (SampleOperand mask : {normal({1, 2, 3, 4}), normal({2, 1, 3, 4}), normal({3, 4}), normal({2, 2, 3, 4})})
      made.push_back({{normal({2, 3, 4}, dtype), normal({2, 4, 2}, dtype), normal({2, 4, 3}, dtype),
                       normal({2, 3, 6}, dtype), lse, normal({2, 3, 6}, dtype), mask},
                      heads_attrs(2, 1, 0.5)});
  return made;
}

std::vector<Sample> attention_sinks_grad_samples() {
  using namespace samples;
  std::vector<Sample> made;
  SampleOperand lse = values({2, 2, 3}, {2, 1.5, 3, -INFINITY, 1.75, 1.25, 2, 2.5, 1, 1.25, 1.75, 2.25});
  for (DType dtype : {DType::F32, DType::BF16})
    made.push_back({{normal({2, 3, 6}, dtype), lse, normal({2, 3, 6}, dtype), normal({2})}, {}});
  return made;
}

}  // namespace

constinit const OpDef op_attention{
    .name = "attention",
    .summary =
        "y, lse: softmax({scale} q k^T + mask) v over {heads} query and {kv_heads} key heads; {causal: row i "
        "sees columns up to i, window: and those less than so many away, softcap: scores s become softcap "
        "tanh(s / softcap) before masks, dropout, id, first_draw, drawn_heads: how many a sample draws for, packed: q, "
        "k and v side by side in operand 0}; operands q, k, v, mask (bool: true may attend; float: added), rng, slopes "
        "(for each head, what a score loses per step between row and column), segments (a row sees the columns with "
        "its own number), sinks (for each head, one more score of each row, with a value of 0)",
    .operands = {"q", "k?", "v?", "mask?", "rng?", "slopes?", "segments?", "sinks?"},
    .results = {"y", "lse"},
    .attrs = attention_attrs,
    .infer = infer_attention,
    .gradient = Gradient::rule(attention_gradient),
    .precision = Precision::Low,
    .flops = attention_flops,
    .chunk = attention_chunk,
    .divide = attention_divide,
    .linear = {"sum(v)"},
    .reference = attention_reference,
    .samples = attention_samples,
};

constinit const OpDef op_attention_grad{
    .name = "attention_grad",
    .summary =
        "dq, dk, dv (packed: one result) from q, k, v, y, lse, dy and attention's operands from mask to segments; "
        "attributes as in attention; rows that masks of large finite numbers close whole (lse below -1e6) give none",
    .operands = {"q", "k?", "v?", "y?", "lse?", "dy?", "mask?", "rng?", "slopes?", "segments?"},
    .results = {"dq", "dk?", "dv?"},
    .attrs = attention_attrs,
    .infer = infer_attention_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = attention_grad_flops,
    .chunk = attention_grad_chunk,
    .linear = {"sum(dy * v) + sum(dy * y)", "sum(dy)"},
    .reference = attention_grad_reference,
    .samples = attention_grad_samples,
};

constinit const OpDef op_attention_mask_grad{
    .name = "attention_mask_grad",
    .summary = "the gradient of attention's float mask; operands and attributes as in attention_grad",
    .operands = {"q", "k?", "v?", "y?", "lse?", "dy?", "mask?", "rng?", "slopes?", "segments?"},
    .results = {"dmask"},
    .attrs = attention_attrs,
    .infer = infer_attention_mask_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = attention_mask_grad_flops,
    .chunk = attention_mask_grad_chunk,
    .linear = {"sum(dy * v) + sum(dy * y)"},
    .reference = attention_mask_grad_reference,
    .samples = attention_mask_grad_samples,
};

constinit const OpDef op_attention_grad_with_mask{
    .name = "attention_grad_with_mask",
    .summary =
        "the results of attention_mask_grad and of attention_grad, from one dS, which may be rounded to the type of q "
        "before dmask is summed; operands and attributes as in attention_grad",
    .operands = {"q", "k?", "v?", "y?", "lse?", "dy?", "mask?", "rng?", "slopes?", "segments?"},
    .results = {"dmask", "dq", "dk?", "dv?"},
    .attrs = attention_attrs,
    .infer = infer_attention_grad_with_mask,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = attention_grad_with_mask_flops,
    .chunk = attention_mask_grad_chunk,
    .linear = {"sum(dy * v) + sum(dy * y)", "sum(dy)"},
    .reference = attention_grad_with_mask_reference,
    .samples = attention_mask_grad_samples,
};

constinit const OpDef op_attention_sinks_grad{
    .name = "attention_sinks_grad",
    .summary = "the gradient of attention's sinks from its y and lse, dy and the sinks",
    .operands = {"y", "lse", "dy", "sinks"},
    .results = {"dsinks"},
    .infer = infer_attention_sinks_grad,
    .gradient = no_second_derivative,
    .precision = Precision::Low,
    .flops = attention_sinks_grad_flops,
    .chunk = attention_sinks_grad_chunk,
    .linear = {"sum(y * dy)"},
    .reference = attention_sinks_grad_reference,
    .samples = attention_sinks_grad_samples,
};

}  // namespace plimsoll
