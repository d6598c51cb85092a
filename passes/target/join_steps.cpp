#include "passes/rewrite/patterns.h"

#include <algorithm>
#include <map>

// A layer that runs step by step sends its weight a product of few rows for each step, and the gradient is their sum.
// One product over the rows of several steps makes the sum and takes little longer than that of one step. The same goes
// for the sums over rows that are the gradient of its bias.
//
// Steps are joined until their product reads enough to be fast, and no further, because what backward reads for a step
// lives until the last step of its group. The pass is for whole batches: the gradients of chunks of a batch stay
// apart, since that is what keeps their memory small.

namespace plimsoll {
namespace {

struct Term {
  ValueId value;   // as the sum reads it
  NodeId product;  // the linear_dw or reduce_sum that makes it; None of any other term
  NodeId reader;   // the addition that reads it
};

// The sum of so many terms; of none where they stay as they are.
struct Group {
  size_t count = 0;
  ValueId sum = ValueId::None;
};

class Joiner {
 public:
  // Steps whose product reads up to `step_bytes`, up to `bytes` together.
  Joiner(Graph& graph, int64_t step_bytes, int64_t bytes)
      : graph_(graph), order_(graph), step_bytes_(step_bytes), bytes_(bytes) {}

  bool join_products(NodeId sum) {
    return join(sum, "linear_dw", [&](llvm::ArrayRef<Term> terms) { return product_of_steps(terms); });
  }

  bool join_biases(NodeId sum) {
    return join(sum, "reduce_sum", [&](llvm::ArrayRef<Term> terms) { return bias_of_steps(terms); });
  }

 private:
  // The rows of several steps in one matrix.
  struct JoinedRows {
    ValueId rows;
    size_t steps;
  };

  bool join(NodeId sum, llvm::StringRef op, llvm::function_ref<Group(llvm::ArrayRef<Term>)> group_from) {
    const ValueId result = graph_.node(sum).results[0];
    if (is_term_of_sum(result)) return false;
    const std::vector<Term> terms = terms_of(result, op);
    std::vector<Term> left;
    llvm::copy_if(terms, std::back_inserter(left), [](const Term& term) { return term.product != NodeId::None; });
    std::map<NodeId, ValueId> joined;  // by product; a group's sum stands for its last term, None for the others
    for (llvm::ArrayRef<Term> rest = left; !rest.empty();) {
      const Group group = group_from(rest);
      for (const Term& term : rest.take_front(group.count)) joined[term.product] = ValueId::None;
      if (group.count > 0) joined[rest[group.count - 1].product] = group.sum;
      rest = rest.drop_front(std::max<size_t>(group.count, 1));
    }
    if (joined.empty()) return false;
    ValueId total = ValueId::None;
    for (const Term& term : terms) {
      const auto found = joined.find(term.product);
      const ValueId value = found == joined.end() ? term.value : found->second;
      if (value == ValueId::None) continue;
      total = total == ValueId::None ? value
                                     : placed(builder_at(graph_, term.reader).emit("add", {total, value}), term.reader);
    }
    replace_and_rename(graph_, result, total);
    return true;
  }

  Group product_of_steps(llvm::ArrayRef<Term> terms) {
    int64_t bytes = 0;
    size_t count = 0;
    for (; count < terms.size() && are_alike(terms[0], terms[count]); ++count) {
      bytes += bytes_read_by(graph_.node(terms[count].product));
      if (bytes > bytes_) break;
    }
    if (count < 2) return {};
    const llvm::ArrayRef<Term> group = terms.take_front(count);
    const Attrs attrs = graph_.node(group[0].product).attrs;
    const ValueId dy = join_rows(group, 1, NodeId::None), x = join_rows(group, 0, graph_.value(dy).producer);
    for (const Term& term : group) joined_rows_[operand(term, 1)] = {dy, count};
    const ValueId sum = builder_at(graph_, group.back().reader).emit("linear_dw", {x, dy}, attrs);
    return {count, in_place_of(group.back(), sum)};
  }

  // Of the steps whose products are joined, so that the product makes the gradient of the bias too.
  Group bias_of_steps(llvm::ArrayRef<Term> terms) {
    const auto first = joined_rows_.find(operand(terms[0], 0));
    if (first == joined_rows_.end() || terms.size() < first->second.steps) return {};
    const JoinedRows joined = first->second;
    const llvm::ArrayRef<Term> group = terms.take_front(joined.steps);
    const bool is_group = llvm::all_of(group, [&](const Term& term) {
      const auto other = joined_rows_.find(operand(term, 0));
      return other != joined_rows_.end() && other->second.rows == joined.rows && are_alike(group[0], term);
    });
    if (!is_group) return {};
    Attrs attrs = graph_.node(group[0].product).attrs;
    attrs.set("axes", Ints{0});
    const ValueId sum = builder_at(graph_, group.back().reader).emit("reduce_sum", {joined.rows}, std::move(attrs));
    return {joined.steps, in_place_of(group.back(), sum)};
  }

  ValueId in_place_of(const Term& term, ValueId sum) {
    placed(sum, term.reader);
    const ValueId shaped = builder_at(graph_, term.reader).reshape(sum, graph_.type(term.value).shape);
    return placed(shaped, term.reader);
  }

  ValueId placed(ValueId made, NodeId at) {
    order_.add(made, at);
    return made;
  }

  // The operand of all terms, by rows, as soon as the last has been computed, and behind `last` if that is a node: what
  // forward has computed is joined in backward.
  ValueId join_rows(llvm::ArrayRef<Term> group, size_t index, NodeId last) {
    for (const Term& term : group) {
      const NodeId producer = graph_.value(operand(term, index)).producer;
      if (order_[producer] > order_[last]) last = producer;
    }
    const Node& product = graph_.node(group[0].product);
    const NodeId behind = last == NodeId::None ? graph_.first_node() : last;
    Builder b(graph_, last == NodeId::None ? behind : graph_.next_node(last));
    b.origin = product.origin;
    b.phase = product.phase;
    llvm::SmallVector<ValueId, 32> rows;
    for (const Term& term : group) {
      const ValueId value = operand(term, index);
      const ValueId by_rows = b.reshape(value, {rows_of(value), graph_.type(value).shape.back()});
      rows.push_back(by_rows == value ? value : placed(by_rows, behind));
    }
    return placed(b.emit("concat", rows, {{"axis", int64_t{0}}}), behind);
  }

  // Does another sum of the same type read the value, and nothing else?
  bool is_term_of_sum(ValueId value) const {
    return has_one_reader(graph_, value) && is_sum(*graph_.value(value).users.begin(), graph_.type(value));
  }

  bool is_sum(NodeId id, const Type& type) const {
    if (id == NodeId::None || graph_.node(id).op->name != "add") return false;
    return llvm::all_of(graph_.node(id).operands, [&](ValueId value) { return graph_.type(value) == type; });
  }

  // In the order in which they are added.
  std::vector<Term> terms_of(ValueId result, llvm::StringRef op) const {
    const Type& type = graph_.type(result);
    std::vector<Term> terms;
    std::vector<NodeId> sums;
    if (is_sum(graph_.value(result).producer, type)) sums.push_back(graph_.value(result).producer);
    while (!sums.empty()) {
      const NodeId sum = sums.back();
      sums.pop_back();
      for (ValueId value : graph_.node(sum).operands) {
        const NodeId producer = graph_.value(value).producer;
        if (has_one_reader(graph_, value) && is_sum(producer, type))
          sums.push_back(producer);
        else
          terms.push_back({value, product_behind(value, op), sum});
      }
    }
    llvm::stable_sort(terms, [&](const Term& a, const Term& b) { return order_[a.reader] < order_[b.reader]; });
    return terms;
  }

  // The small product, or the sum over few rows, that makes the value for this reader alone.
  NodeId product_behind(ValueId value, llvm::StringRef op) const {
    if (!has_one_reader(graph_, value)) return NodeId::None;
    const ValueId made = past_reshapes(graph_, value);
    const NodeId id = graph_.value(made).producer;
    if (id == NodeId::None || !has_one_reader(graph_, made)) return NodeId::None;
    const Node& node = graph_.node(id);
    if (node.op->name != op || node.results.size() != 1 || bytes_read_by(node) > step_bytes_) return NodeId::None;
    if (op == "linear_dw") return node.operands.size() == 2 ? id : NodeId::None;
    const auto axes = node.attrs.get_ints("axes");
    const auto last = static_cast<int64_t>(graph_.type(node.operands[0]).rank()) - 1;
    return static_cast<int64_t>(axes.size()) == last && !llvm::is_contained(axes, last) ? id : NodeId::None;
  }

  bool are_alike(const Term& a, const Term& b) const {
    const Node &one = graph_.node(a.product), &other = graph_.node(b.product);
    if (one.op->name == "linear_dw" && one.attrs != other.attrs) return false;
    if (one.attrs.has("dtype") != other.attrs.has("dtype")) return false;
    for (size_t i = 0; i < one.operands.size(); ++i) {
      const Type &left = graph_.type(one.operands[i]), &right = graph_.type(other.operands[i]);
      if (left.dtype != right.dtype || left.shape.back() != right.shape.back()) return false;
    }
    return graph_.type(a.value) == graph_.type(b.value);
  }

  ValueId operand(const Term& term, size_t index) const { return graph_.node(term.product).operands[index]; }

  int64_t bytes_read_by(const Node& node) const {
    int64_t bytes = 0;
    for (ValueId value : node.operands) bytes += graph_.type(value).bytes();
    return bytes;
  }

  int64_t rows_of(ValueId value) const {
    const Type& type = graph_.type(value);
    return type.rank() == 0 ? 1 : element_count(llvm::ArrayRef<int64_t>(type.shape).drop_back());
  }

  Graph& graph_;
  NodeOrder order_;
  const int64_t step_bytes_, bytes_;
  std::map<ValueId, JoinedRows> joined_rows_;  // by the gradient of a step that its product reads
};

Result<bool> run_join_steps(Graph& graph, PassContext& context) {
  Joiner joiner(graph, context.number("step-bytes"), context.number("bytes"));
  const bool joined = apply_patterns(
      graph, context, {{"add", "products", [&](Graph&, NodeId id) { return joiner.join_products(id); }}});
  return apply_patterns(graph, context,
                        {{"add", "biases", [&](Graph&, NodeId id) { return joiner.join_biases(id); }}}) ||
         joined;
}

constexpr PassOption step_options[] = {
    {"step-bytes", 2 << 20, "most that the product of a step reads: with more it is fast by itself", 0},
    {"bytes", 16 << 20, "most that a joined product reads", 0}};

}  // namespace

constinit const PassInfo pass_join_steps{
    .name = "join-steps",
    .summary = "make weight gradients that steps of a recurrent layer send as products over several steps",
    .options = step_options,
    .run = run_join_steps,
};

}  // namespace plimsoll
