#include "passes/clean/attention_match.h"

#include "ir/depends_on_parameter.h"

#include <cmath>

namespace plimsoll {
namespace {

// From here down, a score that becomes such a number and one that it is added to are the same.
constexpr double absorbs_scores = -1e30;

// Takes factors by numbers off `value`; gives what is left.
ValueId take_factors(const Graph& graph, ValueId value, double& scale) {
  for (;;) {
    if (const Node* mul = producer_of(graph, value, "mul")) {
      std::optional<WithNumber> parts = with_number(graph, *mul);
      if (!parts || graph.type(parts->value) != graph.type(value)) return value;
      scale *= parts->number;
      value = parts->value;
    } else if (const Node* div = producer_of(graph, value, "div")) {
      std::optional<double> number = splat_value(graph, div->operands[1]);
      if (!number || graph.type(div->operands[0]) != graph.type(value)) return value;
      scale /= *number;
      value = div->operands[0];
    } else {
      return value;
    }
  }
}

// [batch, heads, a, b] of a shape with the batch in two.
Shape batch_joined(const Shape& shape) { return {shape[0] * shape[1], shape[2], shape[3], shape[4]}; }

// The shape [batch, heads, a, b] of a value that may have batch and heads as one dimension, or the batch as two.
std::optional<Shape> heads_apart(const Graph& graph, ValueId value, const AttentionMatch& a) {
  const Shape shape = graph.type(value).shape;
  if (shape.size() == 4) return shape;
  if (shape.size() == 5 && shape[0] * shape[1] == a.batch) return batch_joined(shape);
  if (shape.size() != 3 || shape[0] != a.batch * a.heads) return std::nullopt;
  return Shape{a.batch, a.heads, shape[1], shape[2]};
}

// Tells batch and heads, which are one dimension so far, by a value that was reshaped to have them so.
void part_heads(const Graph& graph, ValueId joined, AttentionMatch& a) {
  const ValueId below = value_below(graph, joined, "reshape");
  if (a.heads != 1 || below == ValueId::None || graph.type(joined).rank() != 3 || graph.type(below).rank() != 4) return;
  const Shape apart = graph.type(below).shape, shape = graph.type(joined).shape;
  if (apart[0] * apart[1] != shape[0] || shape[0] != a.batch || apart[2] != shape[1]) return;
  a.batch = apart[0];
  a.heads = apart[1];
}

// One step down from scores to q k^T.
class ScoreTaker {
 public:
  ScoreTaker(const Graph& graph, AttentionMatch& match) : graph_(graph), a_(match) {}

  // The matmul q k^T below the scores; null where something else is there too.
  const Node* take(ValueId scores) {
    constexpr int max_steps = 12;
    for (int step = 0; step < max_steps; ++step) {
      scores = take_factors(graph_, scores, factor_);
      if (const Node* product = producer_of(graph_, scores, "matmul")) {
        a_.scale = a_.softcap > 0 ? factor_ * a_.softcap : factor_;
        return product;
      }
      const ValueId below = take_one(scores);
      if (below == ValueId::None) return nullptr;
      scores = below;
    }
    return nullptr;
  }

 private:
  ValueId take_one(ValueId scores) {
    if (const Node* cast = producer_of(graph_, scores, "cast")) return cast->operands[0];
    if (const Node* tanh = producer_of(graph_, scores, "tanh")) return take_cap(*tanh);
    if (const Node* reshape = producer_of(graph_, scores, "reshape")) {
      const ValueId below = reshape->operands[0];
      if (const ValueId segmented = take_window_segments(scores, below); segmented != ValueId::None) return segmented;
      part_heads(graph_, scores, a_);
      const std::optional<Shape> apart = heads_apart(graph_, below, a_);
      return apart && apart == heads_apart(graph_, scores, a_) ? below : ValueId::None;
    }
    if (const Node* mul = producer_of(graph_, scores, "mul")) return take_factor(*mul, scores);
    if (const Node* max = producer_of(graph_, scores, "max")) return take_guard(*max, scores);
    if (const Node* add = producer_of(graph_, scores, "add")) return take_added(*add, scores);
    if (const Node* sub = producer_of(graph_, scores, "sub")) return take_subtracted(*sub, scores);
    const Node* where = producer_of(graph_, scores, "where");
    return where && may_be_masked() ? take_chosen(*where, scores) : ValueId::None;
  }

  // max(scores, the lowest number), which keeps masks from becoming -inf in sums.
  ValueId take_guard(const Node& max, ValueId scores) {
    for (size_t side : {size_t{0}, size_t{1}}) {
      const std::optional<double> lowest = splat_value(graph_, max.operands[1 - side]);
      if (lowest && *lowest <= absorbs_scores && graph_.type(max.operands[side]) == graph_.type(scores))
        return max.operands[side];
    }
    return ValueId::None;
  }

  // A learned factor above a mask would scale the mask too, and a cap would bend it.
  bool may_be_added_to() const { return a_.factors.empty() && a_.softcap == 0; }

  // A number above a mask would scale what closed scores become.
  bool may_be_masked() const { return factor_ == 1 && may_be_added_to(); }

  // A learned temperature, as in cosine attention. Queries take it.
  ValueId take_factor(const Node& mul, ValueId scores) {
    const Shape shape = graph_.type(scores).shape;
    for (size_t side : {size_t{0}, size_t{1}}) {
      const Shape of_factor = graph_.type(mul.operands[1 - side]).shape;
      Shape one_per_head(4 - std::min<size_t>(of_factor.size(), 4), 1);
      one_per_head.append(of_factor.begin(), of_factor.end());
      const bool is_factor =
          one_per_head.size() == 4 && shape.size() == 4 && one_per_head[2] == 1 && one_per_head[3] == 1;
      if (!is_factor || graph_.type(mul.operands[side]) != graph_.type(scores)) continue;
      a_.factors.push_back(mul.operands[1 - side]);
      return mul.operands[side];
    }
    return ValueId::None;
  }

  // reshape(add(reshape(scores below) [images, windows, heads, rows, rows], mask)): each window of an image has a mask,
  // and all images the same ones. transformers' Swin 2 adds it twice.
  ValueId take_window_segments(ValueId scores, ValueId by_image) {
    const Type type = graph_.type(by_image);
    if (type.rank() != 5 || a_.rows != a_.columns || !may_be_masked() || a_.window_segments) return ValueId::None;
    while (const Node* add = producer_of(graph_, by_image, "add")) {
      const size_t side = graph_.type(add->operands[0]) == type ? 0 : 1;
      std::optional<Tensor> segments = segments_of_windows(graph_, add->operands[1 - side], type.shape[1], a_.rows);
      if (!segments || graph_.type(add->operands[side]) != type) return ValueId::None;
      if (a_.window_segments && !(*a_.window_segments == *segments)) return ValueId::None;
      a_.window_segments = std::move(segments);
      by_image = add->operands[side];
    }
    const Node* reshape = producer_of(graph_, by_image, "reshape");
    const bool fits = reshape && a_.window_segments && graph_.type(reshape->operands[0]) == graph_.type(scores) &&
                      type.shape[0] * type.shape[1] == a_.batch;
    return fits ? reshape->operands[0] : ValueId::None;
  }

  ValueId take_cap(const Node& tanh) {
    if (a_.softcap > 0 || factor_ <= 0 || !a_.factors.empty()) return ValueId::None;
    a_.softcap = factor_;
    factor_ = 1;
    return tanh.operands[0];
  }

  ValueId take_added(const Node& add, ValueId scores) {
    size_t side = graph_.type(add.operands[0]) == graph_.type(scores) ? 0 : 1;
    if (constant_behind(graph_, add.operands[side]) || producer_of(graph_, add.operands[side], "where"))
      side = 1 - side;
    const bool fits = graph_.type(add.operands[side]) == graph_.type(scores);
    if (!fits || !may_be_added_to()) return ValueId::None;
    const ValueId mask = boolean_behind(graph_, add.operands[1 - side]);
    const bool is_boolean = graph_.type(mask).dtype == DType::Bool;
    if (is_boolean && !may_be_masked()) return ValueId::None;
    return take_mask({mask, {}, is_boolean ? 1 : factor_}, scores) ? add.operands[side] : ValueId::None;
  }

  ValueId take_subtracted(const Node& sub, ValueId scores) {
    const bool fits = graph_.type(sub.operands[0]) == graph_.type(scores) && may_be_added_to();
    return fits && take_mask({sub.operands[1], {}, -factor_}, scores) ? sub.operands[0] : ValueId::None;
  }

  // where(m, scores, -inf), or where(m, a large negative number, scores)
  ValueId take_chosen(const Node& where, ValueId scores) {
    const std::optional<double> off = splat_value(graph_, where.operands[2]),
                                on = splat_value(graph_, where.operands[1]);
    if (off && std::isinf(*off) && *off < 0)
      return take_mask({where.operands[0]}, scores) ? where.operands[1] : ValueId::None;
    if (!on || *on > absorbs_scores) return ValueId::None;
    return take_mask({where.operands[0], on}, scores) ? where.operands[2] : ValueId::None;
  }

  bool take_mask(MaskTerm term, ValueId scores) {
    const auto closed =
        term.factor == 1 ? closed_form_of(graph_, term.mask, a_.rows, a_.columns, term.low.has_value()) : std::nullopt;
    if (closed) {
      a_.closed.narrow(*closed);
      return true;
    }
    const llvm::ArrayRef<int64_t> dims(graph_.type(term.mask).shape), of_scores(graph_.type(scores).shape);
    if (dims.size() > of_scores.size()) return false;
    if (of_scores.size() == 5) term.batch = {of_scores[0], of_scores[1]};
    // Kernels make the gradient of masks with a number for each row and column.
    const bool is_whole = dims.size() >= 2 && dims[dims.size() - 2] == a_.rows && dims.back() == a_.columns;
    if (!is_whole && depends_on_parameter(graph_, term.mask)) return false;
    a_.masks.push_back(term);
    return true;
  }

  const Graph& graph_;
  AttentionMatch& a_;
  double factor_ = 1;  // of numbers since the last mask or the cap
};

// The scores without what softmax does not see, the largest of each row subtracted.
ValueId unshifted(const Graph& graph, ValueId scores) {
  const Node* sub = producer_of(graph, scores, "sub");
  const Node* largest = sub ? producer_of(graph, sub->operands[1], "reduce_max") : nullptr;
  const bool is_largest = largest && largest->operands[0] == sub->operands[0] && largest->attrs.get_int("keep_dims") &&
                          largest->attrs.get_ints("axes") == llvm::ArrayRef<int64_t>{3};
  return is_largest ? sub->operands[0] : scores;
}

// What softmax reads, [batch, heads, rows, columns], perhaps with the batch in two, or with batch and heads as one;
// older exports join these behind the masks.
ValueId scores_by_head(const Graph& graph, const Node& softmax) {
  ValueId scores = softmax.operands[0];
  const Type& type = graph.type(scores);
  if (softmax.attrs.get_int("axis") != type.rank() - 1 || type.rank() < 3 || type.rank() > 5) return ValueId::None;
  if (type.rank() > 3) return scores;
  const ValueId below = value_below(graph, scores, "reshape");
  if (below == ValueId::None) return scores;
  const Type& apart = graph.type(below);
  const bool joins_heads = apart.rank() == 4 && apart.shape[0] * apart.shape[1] == type.shape[0] &&
                           apart.shape[2] == type.shape[1] && apart.shape[3] == type.shape[2];
  return joins_heads ? below : scores;
}

// The sizes that scores say. Where batch and heads are one dimension, every head is a sample until something shows them
// apart.
AttentionMatch match_of(const Shape& scores) {
  if (scores.size() == 3) return {scores[0], 1, scores[1], scores[2]};
  const Shape shape = scores.size() == 5 ? batch_joined(scores) : scores;
  return {shape[0], shape[1], shape[2], shape[3]};
}

// Is a constant [1, heads, rows, 1], to which exporters fold sinks, the same for all rows of a head?
bool has_equal_rows(const Graph& graph, ValueId value) {
  const Tensor* tensor = constant_behind(graph, value);
  const Type& type = graph.type(value);
  if (!tensor || tensor->type().elements() != type.elements()) return false;
  for (int64_t i = 0; i < type.elements(); ++i)
    if (tensor->get(i) != tensor->get(i / type.shape[2] * type.shape[2])) return false;
  return true;
}

// Takes off the column that a sink is.
ValueId take_sinks(const Graph& graph, ValueId scores, AttentionMatch& a) {
  const Node* concat = producer_of(graph, scores, "concat");
  if (!concat || concat->operands.size() != 2 || concat->attrs.get_int("axis") != 3) return scores;
  ValueId sinks = concat->operands[1];
  while (const Node* expand = producer_of(graph, sinks, "expand")) sinks = expand->operands[0];
  const Shape shape = graph.type(sinks).shape;
  if (shape.size() != 4 || shape[0] != 1 || shape[1] != a.heads || shape[3] != 1) return scores;
  if (shape[2] != 1 && !has_equal_rows(graph, sinks)) return scores;
  a.sinks = sinks;
  --a.columns;
  return concat->operands[0];
}

bool leaves_sinks_out(const Graph& graph, const Node& slice, const AttentionMatch& a) {
  auto are = [&](llvm::StringRef attr, int64_t number) {
    return llvm::all_of(slice.attrs.get_ints(attr), [&](int64_t i) { return i == number; });
  };
  return are("starts", 0) && are("steps", 1) &&
         graph.type(slice.results[0]).shape == Shape{a.batch, a.heads, a.rows, a.columns};
}

// Follows the probabilities through guard, dropout and casts to the matmul with v.
const Node* take_probabilities(const Graph& graph, ValueId p, AttentionMatch& a) {
  bool has_sinks = a.sinks != ValueId::None;
  for (int depth = 0; depth < 8; ++depth) {
    llvm::SmallVector<NodeId, 2> users(graph.value(p).users.begin(), graph.value(p).users.end());
    // The guard reads p twice: through isnan and as the value kept.
    const Node* guard = nullptr;
    for (NodeId user : users)
      if (graph.node(user).op->name == "where" && graph.node(user).operands[2] == p) guard = &graph.node(user);
    if (guard && users.size() == 2) {
      const Node* is_nan = producer_of(graph, guard->operands[0], "is_nan");
      if (!is_nan || is_nan->operands[0] != p || !is_splat(graph, guard->operands[1], 0, 0)) return nullptr;
      p = guard->results[0];
      continue;
    }
    if (!has_one_reader(graph, p)) return nullptr;
    const Node& user = graph.node(users.front());
    if (user.op->name == "cast") {
      p = user.results[0];
    } else if (user.op->name == "slice" && has_sinks && leaves_sinks_out(graph, user, a)) {
      has_sinks = false;
      p = user.results[0];
    } else if (has_sinks) {
      return nullptr;
    } else if (user.op->name == "reshape" && heads_apart(graph, user.results[0], a) == heads_apart(graph, p, a)) {
      p = user.results[0];
    } else if (user.op->name == "dropout" && a.rng == ValueId::None) {
      a.rng = user.operands[1];
      a.dropout = user.attrs.get_float("ratio");
      a.dropout_id = user.attrs.get_int("id");
      p = user.results[0];
    } else if (user.op->name == "matmul" && user.operands[0] == p && user.attrs.get_int("transpose_a") == 0) {
      return &user;
    } else {
      return nullptr;
    }
  }
  return nullptr;
}

}  // namespace

std::optional<AttentionMatch> match_attention(const Graph& graph, const Node& softmax) {
  const ValueId masked = scores_by_head(graph, softmax);
  if (masked == ValueId::None) return std::nullopt;
  AttentionMatch a = match_of(graph.type(masked).shape);
  const ValueId under_softmax = take_sinks(graph, unshifted(graph, masked), a);
  const Node* scores = ScoreTaker(graph, a).take(under_softmax);
  if (scores) part_heads(graph, scores->operands[0], a);
  const Node* product = scores ? take_probabilities(graph, softmax.results[0], a) : nullptr;
  if (!product || scores->attrs.get_int("transpose_a") != 0 || product->attrs.get_int("transpose_b") != 0)
    return std::nullopt;
  a.q = take_factors(graph, scores->operands[0], a.scale);
  a.k_transposed = take_factors(graph, scores->operands[1], a.scale);
  if (scores->attrs.get_int("transpose_b") != 0) return std::nullopt;
  a.v = product->operands[1];
  a.result = product->results[0];
  const auto q = heads_apart(graph, a.q, a), k = heads_apart(graph, a.k_transposed, a), v = heads_apart(graph, a.v, a);
  // The matmul may repeat one head of keys and values for all queries.
  const bool shaped = q && k && v && (*q)[0] == (*k)[0] && (*q)[0] == (*v)[0] && (*k)[1] == (*v)[1] &&
                      ((*k)[1] == (*q)[1] || (*k)[1] == 1);
  const DType dtype = graph.type(a.q).dtype;
  if (!shaped || dtype != graph.type(a.k_transposed).dtype || dtype != graph.type(a.v).dtype ||
      graph.type(a.result).dtype != dtype)
    return std::nullopt;
  const bool takes_factors = llvm::all_of(a.factors, [&](ValueId factor) { return graph.type(factor).dtype == dtype; });
  return takes_factors ? std::optional(a) : std::nullopt;
}

ValueId with_heads_apart(Builder& b, ValueId value, const AttentionMatch& match) {
  const Shape shape = b.type(value).shape;
  if (shape.size() == 5) return b.reshape(value, batch_joined(shape));
  if (shape.size() != 3 || shape[0] != match.batch * match.heads) return value;
  return b.reshape(value, {match.batch, match.heads, shape[1], shape[2]});
}

ValueId with_one_batch(Builder& b, const MaskTerm& term, const AttentionMatch& match) {
  if (term.batch.empty()) return with_heads_apart(b, term.mask, match);
  const Shape own = b.type(term.mask).shape;
  if (own.size() < 4) return term.mask;
  Shape shape(5 - own.size(), 1);
  shape.append(own.begin(), own.end());
  const ValueId mask = b.reshape(term.mask, shape);
  // Along one of two dims alone, the mask is repeated along the other.
  const bool is_once = shape[0] * shape[1] == 1, is_whole = shape[0] == term.batch[0] && shape[1] == term.batch[1];
  if (!is_once && !is_whole) std::copy(term.batch.begin(), term.batch.end(), shape.begin());
  return b.reshape(b.expand(mask, shape), batch_joined(shape));
}

}  // namespace plimsoll
