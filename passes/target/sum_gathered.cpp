#include "ir/support/units.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/plan_draft.h"
#include "passes/rewrite/match.h"
#include "passes/target/gathered_rows.h"
#include "passes/target/row_scatters.h"

#include "llvm/ADT/STLExtras.h"

#include <map>

// The planning step sum-gathered lets sums by row look up the rows that they add. In a graph network each edge takes a
// row of its source, perhaps times a weight of the edge, and each node adds what its edges have; one gather_sum reads
// the rows where they are, and no tensor has a row for each edge. Backward of it is the same with source and target the
// other way round, and the gradient of the weights are the products of the rows that the edge connects: dots of that
// gather_sum.
//
// Only where nothing else reads what was looked up, since it would be in memory anyway, and where kernels are predicted
// to take less time, with the sorts of indices, which all sums by the same indices share.
//
// It is right because the same products are added, in the same order. They are not rounded before they are added, which
// casts between had done.

namespace plimsoll {
namespace {

using SortKey = std::pair<ValueId, int64_t>;  // indices and the number of rows that they name

// A sum by row of looked up rows, with the gradient of their weights if it makes that, too.
struct GatherSum {
  RowScatter scatter;
  GatheredRows rows;
  std::optional<GatheredDots> dots;
  ValueId factors = ValueId::None;  // of dots: the table with a row for each row of the sum
  bool fits = true;

  SortKey key() const { return {scatter.indices, scatter.size}; }
  int64_t heads() const { return dots ? dots->heads : rows.heads; }
};

// Finds sums, and dots that they may make, all of whose lookups nothing else reads.
class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), order_(graph) {}

  std::vector<GatherSum> find() {
    for (NodeId id : graph_.order())
      if (std::optional<RowScatter> scatter = match_row_scatter(graph_, id)) add_sum(std::move(*scatter));
    for (NodeId id : graph_.order())
      if (std::optional<GatheredDots> dots = match_gathered_dots(graph_, id)) add_dots(std::move(*dots));
    while (drop_those_read_elsewhere()) {
    }
    llvm::erase_if(sums_, [](const GatherSum& sum) { return !sum.fits; });
    llvm::sort(sums_, [&](const GatherSum& a, const GatherSum& b) { return place_of(a) < place_of(b); });
    return std::move(sums_);
  }

  // Where it is made: the first of the nodes that it replaces.
  NodeId place(const GatherSum& sum) const {
    return sum.dots && order_[sum.dots->node] < order_[sum.scatter.node] ? sum.dots->node : sum.scatter.node;
  }

 private:
  int64_t place_of(const GatherSum& sum) const { return order_[place(sum)]; }

  void add_sum(RowScatter scatter) {
    if (scatter.attrs.get_string("reduction") != "add") return;
    const ValueId x = operand_of(graph_.node(scatter.node), scatter.x);
    std::optional<GatheredRows> rows = match_gathered_rows(graph_, x, graph_.type(scatter.indices).elements());
    if (rows) sums_.push_back({std::move(scatter), std::move(*rows), std::nullopt});
  }

  void add_dots(GatheredDots dots) {
    for (GatherSum& sum : sums_)
      for (const auto& [own, other] : {std::pair(&dots.left, &dots.right), std::pair(&dots.right, &dots.left)}) {
        const bool is_pair = sum.rows.table == own->table && sum.rows.indices == own->indices &&
                             sum.scatter.indices == other->indices &&
                             graph_.type(other->table).shape[0] == sum.scatter.size;
        if (!is_pair || sum.dots || (sum.rows.weights != ValueId::None && sum.rows.heads != dots.heads)) continue;
        sum.factors = other->table;
        sum.dots = std::move(dots);
        if (is_made_before(sum)) return;
        dots = std::move(*sum.dots);
        sum.dots.reset();
      }
  }

  // Is all that it reads there where it is made?
  bool is_made_before(const GatherSum& sum) const {
    const Node& scatter = graph_.node(sum.scatter.node);
    const ValueId base = sum.scatter.base.empty() ? ValueId::None : operand_of(scatter, sum.scatter.base);
    return llvm::all_of(
        std::array{sum.rows.table, sum.rows.indices, sum.rows.weights, sum.scatter.indices, sum.factors, base},
        [&](ValueId value) { return value == ValueId::None || order_.of(value) < place_of(sum); });
  }

  // Marks nodes that go with the sums, and drops sums that other nodes take part in. Did any go?
  bool drop_those_read_elsewhere() {
    goes_.assign(graph_.node_slots(), false);
    for (const GatherSum& sum : sums_) {
      if (!sum.fits) continue;
      goes_[index_of(sum.scatter.node)] = true;
      for (NodeId id : sum.rows.between) goes_[index_of(id)] = true;
      if (!sum.dots) continue;
      goes_[index_of(sum.dots->node)] = true;
      for (NodeId id : sum.dots->between) goes_[index_of(id)] = true;
    }
    bool any = false;
    for (GatherSum& sum : sums_) {
      if (!sum.fits) continue;
      sum.fits = all_readers_go(sum.rows.gather) &&
                 (!sum.dots || (all_readers_go(sum.dots->left.gather) && all_readers_go(sum.dots->right.gather)));
      any = any || !sum.fits;
    }
    return any;
  }

  bool all_readers_go(NodeId id) const {
    const ValueId value = graph_.node(id).results[0];
    if (leaves_graph(graph_, value)) return false;
    return llvm::all_of(graph_.value(value).users, [&](NodeId user) {
      if (!goes_[index_of(user)]) return false;
      return is_end(user) || all_readers_go(user);
    });
  }

  bool is_end(NodeId id) const {
    return llvm::any_of(sums_, [&](const GatherSum& sum) {
      return sum.fits && (sum.scatter.node == id || (sum.dots && sum.dots->node == id));
    });
  }

  const Graph& graph_;
  NodeOrder order_;
  std::vector<GatherSum> sums_;
  std::vector<bool> goes_;  // by node
};

class Maker {
 public:
  Maker(const PlanDraft& draft, Graph& graph) : draft_(draft), graph_(graph) {}

  // What is predicted to be saved by all of them, without what elementwise ops between would take.
  double saved_us(llvm::ArrayRef<GatherSum> sums) const {
    double saved = 0;
    std::map<NodeId, double> before;
    std::map<SortKey, double> sorts;
    std::map<std::pair<ValueId, SortKey>, double> picks;
    for (const GatherSum& sum : sums) {
      for (NodeId id : {sum.scatter.node, sum.rows.gather}) before[id] = us_of(draft_, graph_, id);
      if (sum.dots)
        for (NodeId id : {sum.dots->node, sum.dots->left.gather, sum.dots->right.gather})
          before[id] = us_of(draft_, graph_, id);
      saved -= sum_us(sum, sorts[sum.key()], picks[{sum.rows.indices, sum.key()}]);
    }
    for (const auto& [id, us] : before) saved += us;
    for (const auto& [key, us] : sorts) saved -= us;
    for (const auto& [key, us] : picks) saved -= us;
    return saved;
  }

  void make(const GatherSum& sum, NodeId place) {
    const Node scatter = graph_.node(sum.scatter.node);
    const llvm::SmallVector<ValueId, 4>& sorted = sorted_for(sum, place);
    const ValueId picks = picks_for(sum, sorted[0], place);
    Builder b = builder_at(graph_, place);
    const Shapes shapes = shapes_of(sum);
    const ValueId none = ValueId::None;
    const bool has_base = !sum.scatter.base.empty(), has_weights = sum.rows.weights != none;
    llvm::SmallVector<ValueId, 8> operands{b.reshape(sum.rows.table, shapes.x.shape), picks, sorted[0], sorted[1],
                                           sorted[2]};
    if (has_weights || has_base || sum.dots)
      operands.push_back(has_weights ? b.reshape(sum.rows.weights, shapes.weights.shape) : none);
    if (has_base || sum.dots)
      operands.push_back(has_base ? b.reshape(operand_of(scatter, sum.scatter.base), shapes.y.shape) : none);
    if (sum.dots) operands.push_back(b.reshape(sum.factors, shapes.y.shape));
    const auto made = b.emit_all("gather_sum", operands, attrs_of(sum));
    replace(b, scatter.results[0], made[0]);
    if (sum.dots) replace(b, graph_.node(sum.dots->node).results[0], made[1]);
    graph_.erase_node(sum.scatter.node);
    if (sum.dots) graph_.erase_node(sum.dots->node);
  }

 private:
  struct Shapes {
    Type x, weights, y, factors;
  };

  Shapes shapes_of(const GatherSum& sum) const {
    const Type& table = graph_.type(sum.rows.table);
    const int64_t inner = table.elements() / table.shape[0], entries = graph_.type(sum.scatter.indices).elements();
    const bool has_weights = sum.rows.weights != ValueId::None;
    const DType of_weights = has_weights ? graph_.type(sum.rows.weights).dtype : DType::F32;
    const DType of_factors = sum.dots ? graph_.type(sum.factors).dtype : DType::F32;
    const Shape y{sum.scatter.size, inner};
    return {Type(table.dtype, {table.shape[0], inner}), Type(of_weights, {entries, sum.heads()}),
            Type(graph_.type(graph_.node(sum.scatter.node).results[0]).dtype, y), Type(of_factors, y)};
  }

  Attrs attrs_of(const GatherSum& sum) const {
    Attrs attrs;
    if (sum.heads() != 1) attrs.set("heads", sum.heads());
    const DType x = graph_.type(sum.rows.table).dtype;
    const DType y = graph_.type(graph_.node(sum.scatter.node).results[0]).dtype;
    if (x != y) attrs.set("dtype", y);
    return attrs;
  }

  // What the sum takes, and beside it the sort of its indices and the lookup of its picks.
  double sum_us(const GatherSum& sum, double& sort_us, double& picks_us) const {
    const Type& indices = graph_.type(sum.scatter.indices);
    const Attrs size{{"size", sum.scatter.size}}, axis{{"axis", int64_t{0}}};
    const llvm::SmallVector<const Type*, 1> of_sort{&indices};
    const OpCall sort(get_op("sort_indices"), size, of_sort);
    const Types sorted = llvm::cantFail(infer(sort));
    sort_us = us_of(draft_, sort);
    const Type picks(graph_.type(sum.rows.indices).dtype, sorted[0].shape);
    const llvm::SmallVector<const Type*, 2> of_picks{&picks, &sorted[0]};
    picks_us = us_of(draft_, OpCall(get_op("gather"), axis, of_picks));
    const Shapes shapes = shapes_of(sum);
    llvm::SmallVector<const Type*, 8> operands{&shapes.x,  &picks,  &sorted[0], &sorted[1],
                                               &sorted[2], nullptr, nullptr,    nullptr};
    if (sum.rows.weights != ValueId::None) operands[5] = &shapes.weights;
    if (!sum.scatter.base.empty()) operands[6] = &shapes.y;
    if (sum.dots) operands[7] = &shapes.factors;
    const Attrs attrs = attrs_of(sum);
    return us_of(draft_, OpCall(get_op("gather_sum"), attrs, operands));
  }

  const llvm::SmallVector<ValueId, 4>& sorted_for(const GatherSum& sum, NodeId place) {
    llvm::SmallVector<ValueId, 4>& sorted = sorted_[sum.key()];
    if (sorted.empty()) {
      Builder b = builder_at(graph_, place);
      b.insert_before(node_behind(graph_, sum.scatter.indices));
      sorted = b.emit_all("sort_indices", {sum.scatter.indices}, {{"size", sum.scatter.size}});
    }
    return sorted;
  }

  // The row of the table for each sorted entry.
  ValueId picks_for(const GatherSum& sum, ValueId order, NodeId place) {
    ValueId& picks = picks_.try_emplace({sum.rows.indices, sum.key()}, ValueId::None).first->second;
    if (picks != ValueId::None) return picks;
    Builder b = builder_at(graph_, place);
    const ValueId flat = b.reshape(sum.rows.indices, {graph_.type(sum.rows.indices).elements()});
    return picks = b.emit("gather", {flat, order}, {{"axis", int64_t{0}}});
  }

  void replace(Builder& b, ValueId old, ValueId made) {
    const Type type = graph_.type(old);
    replace_and_rename(graph_, old, b.cast(b.reshape(made, type.shape), type.dtype));
  }

  const PlanDraft& draft_;
  Graph& graph_;
  std::map<SortKey, llvm::SmallVector<ValueId, 4>> sorted_;
  std::map<std::pair<ValueId, SortKey>, ValueId> picks_;
};

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  Graph& graph = draft.program.functions[function];
  Finder finder(graph);
  const std::vector<GatherSum> sums = finder.find();
  if (sums.empty()) return false;
  Maker maker(draft, graph);
  const double saved_us = maker.saved_us(sums);
  if (!(saved_us > 0)) return false;
  std::vector<NodeId> places;
  for (const GatherSum& sum : sums) places.push_back(finder.place(sum));
  for (size_t i = 0; i < sums.size(); ++i) maker.make(sums[i], places[i]);
  context.count("sums", static_cast<int64_t>(sums.size()));
  draft.functions[function] = {};
  context.decide("sums of looked up rows", std::to_string(sums.size()) + " look their rows up",
                 "saves " + format_us(saved_us));
  return true;
}

}  // namespace

constinit const PassInfo pass_sum_gathered{
    .name = "sum-gathered",
    .summary =
        "let sums by row look up what they add, where nothing else reads it and that is predicted to take less time",
    .plan = run,
};

}  // namespace plimsoll
