#include "passes/target/fusion_groups.h"

// Groups grow greedily, from the value whose traffic is largest to the smallest. A value is no longer written and read
// where the group of its producer takes in its readers, and it is read once instead of several times where its readers
// are one group. Nodes of a group have one shape and one phase; what has a smaller shape may be taken in too, where the
// group alone reads it. Reductions of values of that shape may be in a group too (passes/target/fusion_reductions.h).
//
// A group stands where one of its nodes stood: behind all that it reads and before all that reads it. Other nodes keep
// their places, so no cycle can come about. Views cost nothing and may move, so a value stands where its bytes are made
// and is read where its views are read.

#include "ir/fused_body.h"
#include "passes/rewrite/match.h"
#include "passes/target/fusion_reductions.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>

namespace plimsoll {
namespace {

constexpr int64_t no_reader = std::numeric_limits<int64_t>::max();

// A value of a smaller shape may be computed once for every element that reads it, so its producers must be few. Six
// are a batch norm's factor and offset and one node more.
constexpr size_t max_repeated_nodes = 6;

// The first result of a fused op may take the bytes of one of so many first operands.
constexpr size_t overlaid_operands = 4;

// Do the nodes read the value both as dropout's counter and as elements? A body has it as one of the two.
bool is_counter_and_elements(const Graph& graph, llvm::ArrayRef<NodeId> nodes, ValueId value) {
  if (!is_drawn_from(graph, nodes, value)) return false;
  return llvm::any_of(nodes, [&](NodeId id) {
    const Node& node = graph.node(id);
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (node.operands[i] == value && !(node.op->name == "dropout" && i == 1)) return true;
    return false;
  });
}

// Which numbers a node's random draws begin at; a fused op has one such place.
bool has_same_draws(const Node& a, const Node& b) {
  return llvm::all_of(draw_attrs, [&](llvm::StringRef name) { return a.attrs.get_int(name) == b.attrs.get_int(name); });
}

class Grouping {
 public:
  explicit Grouping(const Graph& graph)
      : graph_(graph),
        order_(graph.order()),
        kept_(graph.value_count()),
        place_(graph.node_slots()),
        group_(graph.node_slots(), none) {
    for (const Output& output : graph.outputs) kept_[index_of(output.value)] = true;
    for (const Update& update : graph.updates) kept_[index_of(update.value)] = true;
    for (const StateGradient& gradient : graph.gradients) kept_[index_of(gradient.value)] = true;
    for (size_t i = 0; i < order_.size(); ++i) add_node(order_[i], static_cast<int64_t>(i));
  }

  void grow() {
    for (bool merged = true; merged;) {
      merged = false;
      for (ValueId value : by_traffic()) merged |= merge_around(value);
    }
  }

  FusionChoice take() const {
    FusionChoice choice;
    std::vector<size_t> groups;
    for (size_t g = 0; g < groups_.size(); ++g)
      if (groups_[g].nodes.size() > 1 && totals_of(graph_, groups_[g].nodes, shape_of(groups_[g]))) groups.push_back(g);
    llvm::sort(groups, [&](size_t a, size_t b) { return groups_[a].place < groups_[b].place; });
    for (size_t g : groups) {
      choice.groups.push_back(described(groups_[g]));
      choice.saved_bytes += traffic_before(groups_[g]) - traffic_of(choice.groups.back());
    }
    return choice;
  }

 private:
  static constexpr size_t none = ~size_t{0};

  struct Group {
    std::vector<NodeId> nodes;  // sorted by their own places
    int64_t place = 0;
  };

  void add_node(NodeId id, int64_t place) {
    place_[index_of(id)] = place;
    if (!fits_fused_body(graph_, graph_.node(id)) && !is_fusible_reduction(graph_, graph_.node(id))) return;
    group_[index_of(id)] = groups_.size();
    groups_.push_back({{id}, place});
  }

  // ---- Places ----

  size_t group_of(NodeId id) const { return id == NodeId::None ? none : group_[index_of(id)]; }
  int64_t place_of(NodeId id) const {
    const size_t group = group_of(id);
    return group == none ? place_[index_of(id)] : groups_[group].place;
  }

  // The node that makes the bytes of a value; None of inputs, states and constants.
  NodeId maker_of(ValueId value) const {
    for (;;) {
      const NodeId id = graph_.value(value).producer;
      if (id == NodeId::None || graph_.node(id).op->name == "constant") return NodeId::None;
      if (!graph_.node(id).op->is_view()) return id;
      value = operand_of(graph_.node(id), graph_.node(id).op->view_of);
    }
  }

  // The first place at which a node outside `inside` reads the value or a view of it.
  int64_t first_reader(ValueId value, llvm::ArrayRef<NodeId> inside) const {
    int64_t first = no_reader;
    for (NodeId user : graph_.value(value).users) {
      const Node& node = graph_.node(user);
      if (node.op->is_view())
        first = std::min(first, first_reader(node.results[0], {}));
      else if (!llvm::is_contained(inside, user))
        first = std::min(first, place_of(user));
    }
    return first;
  }

  // Where the nodes may become one op, and which place that is; none where one of them would have to come both before
  // and behind another node.
  std::optional<int64_t> place_for(llvm::ArrayRef<NodeId> nodes) const {
    int64_t last_maker = -1, reader = no_reader;
    for (NodeId id : nodes) {
      for (ValueId operand : graph_.node(id).operands) {
        const NodeId maker = maker_of(operand);
        if (maker == NodeId::None) continue;
        const bool direct = graph_.value(operand).producer == maker;
        if (llvm::is_contained(nodes, maker)) {
          if (!direct) return std::nullopt;  // a view of what the group itself makes
          continue;
        }
        last_maker = std::max(last_maker, place_of(maker));
      }
      reader = std::min(reader, first_reader(graph_.node(id).results[0], nodes));
    }
    for (NodeId id : llvm::reverse(nodes)) {
      const int64_t place = place_[index_of(id)];
      if (place < reader) return place > last_maker ? std::optional(place) : std::nullopt;
    }
    return std::nullopt;
  }

  // ---- Merging ----

  const Node& first_of(const Group& group) const { return graph_.node(group.nodes.front()); }
  const Shape& shape_of(NodeId id) const { return iterated_shape(graph_, graph_.node(id)); }
  // That of most elements, which every result has that is no total.
  const Shape& shape_of(const Group& group) const {
    const Shape* largest = &shape_of(group.nodes.front());
    for (NodeId id : group.nodes)
      if (element_count(shape_of(id)) > element_count(*largest)) largest = &shape_of(id);
    return *largest;
  }

  // Of equal ones those that a group makes come first: where they go, nothing is written.
  std::vector<ValueId> by_traffic() const {
    std::vector<bool> seen(graph_.value_count());
    std::vector<ValueId> values;
    for (NodeId id : order_) {
      if (group_of(id) == none) continue;
      for (ValueId operand : graph_.node(id).operands)
        if (!seen[index_of(operand)]) {
          seen[index_of(operand)] = true;
          values.push_back(operand);
        }
    }
    const auto rank = [&](ValueId value) {
      const bool is_made_here = group_of(graph_.value(value).producer) != none;
      return std::pair(-graph_.type(value).bytes(), !is_made_here);
    };
    llvm::stable_sort(values, [&](ValueId a, ValueId b) { return rank(a) < rank(b); });
    return values;
  }

  bool merge_around(ValueId value) {
    llvm::SmallVector<NodeId, 8> nodes;
    const NodeId producer = graph_.value(value).producer;
    const bool is_made_here = group_of(producer) != none;
    if (is_made_here) nodes.push_back(producer);
    for (NodeId user : graph_.value(value).users)
      if (group_of(user) != none && (is_made_here || shape_of(user) == graph_.type(value).shape)) nodes.push_back(user);
    bool merged = false;
    for (size_t i = 0; i < nodes.size(); ++i)
      for (size_t j = i + 1; j < nodes.size(); ++j) {
        const bool is_chain = i == 0 && is_made_here;
        if (is_chain || shape_of(nodes[i]) == graph_.type(value).shape)
          merged |= merge(group_of(nodes[i]), group_of(nodes[j]));
      }
    return merged;
  }

  bool merge(size_t into, size_t from) {
    if (into == from) return false;
    Group merged;
    merged.nodes = groups_[into].nodes;
    merged.nodes.insert(merged.nodes.end(), groups_[from].nodes.begin(), groups_[from].nodes.end());
    llvm::sort(merged.nodes, [&](NodeId a, NodeId b) { return place_[index_of(a)] < place_[index_of(b)]; });
    if (!is_alike(groups_[into], groups_[from]) || !is_small(merged)) return false;
    const std::optional<int64_t> place = place_for(merged.nodes);
    if (!place) return false;
    merged.place = *place;
    for (NodeId id : groups_[from].nodes) group_[index_of(id)] = into;
    groups_[into] = std::move(merged);
    groups_[from].nodes.clear();
    return true;
  }

  bool is_alike(const Group& a, const Group& b) const {
    if (first_of(a).phase != first_of(b).phase) return false;
    for (NodeId x : a.nodes)
      for (NodeId y : b.nodes)
        if (graph_.node(x).op->name == "dropout" && graph_.node(y).op->name == "dropout" &&
            !has_same_draws(graph_.node(x), graph_.node(y)))
          return false;
    return true;
  }

  // Within the bounds of a body, with results of one shape, and little computed more than once.
  bool is_small(const Group& group) const {
    const FusionGroup described = this->described(group);
    size_t nodes = group.nodes.size(), repeated = 0;
    for (NodeId id : group.nodes)
      for (ValueId operand : graph_.node(id).operands) nodes += is_one_number(graph_, operand);
    if (described.results.empty() || nodes > max_body_nodes || described.operands.size() > max_body_operands ||
        described.results.size() > max_body_results)
      return false;
    const Shape& shape = shape_of(group);
    const std::optional<GroupTotals> totals = totals_of(graph_, group.nodes, shape);
    if (!totals) return false;
    Shape read;
    for (ValueId operand : described.operands) {
      if (is_counter_and_elements(graph_, group.nodes, operand)) return false;
      if (!is_drawn_from(graph_, group.nodes, operand))
        if (const auto both = broadcast_shapes(read, graph_.type(operand).shape)) read = *both;
    }
    if (read != shape) return false;
    if (has_misleading_bytes(described, *totals)) return false;
    for (NodeId id : group.nodes) {
      if (shape_of(id) == shape || totals->has(graph_.node(id).results[0])) continue;
      if (graph_.node(id).op->name == "dropout") return false;
      ++repeated;
    }
    return repeated <= max_repeated_nodes && llvm::all_of(described.results, [&](ValueId result) {
             return totals->has(result) || graph_.type(result).shape == shape;
           });
  }

  // An operand that repeats or is read for totals, among those whose bytes the first result may take, with as many
  // bytes as the result.
  bool has_misleading_bytes(const FusionGroup& group, const GroupTotals& totals) const {
    const Type& result = graph_.type(group.results.front());
    const bool is_total = totals.has(group.results.front());
    return llvm::any_of(llvm::ArrayRef<ValueId>(group.operands).take_front(overlaid_operands), [&](ValueId operand) {
      return graph_.type(operand).bytes() == result.bytes() &&
             (is_total || graph_.type(operand).elements() != result.elements());
    });
  }

  // ---- What a group reads and gives ----

  FusionGroup described(const Group& group) const {
    FusionGroup result;
    result.nodes = group.nodes;
    const auto is_inside = [&](NodeId id) { return llvm::is_contained(group.nodes, id); };
    for (NodeId id : group.nodes) {
      if (place_[index_of(id)] == group.place) result.place = id;
      for (ValueId operand : graph_.node(id).operands)
        if (!is_inside(graph_.value(operand).producer) && !is_one_number(graph_, operand) &&
            !llvm::is_contained(result.operands, operand))
          result.operands.push_back(operand);
      const ValueId made = graph_.node(id).results[0];
      const bool is_read = llvm::any_of(graph_.value(made).users, [&](NodeId user) { return !is_inside(user); });
      if (is_read || kept_[index_of(made)]) result.results.push_back(made);
    }
    const int64_t elements = element_count(shape_of(group));
    for (auto* values : {&result.operands, &result.results})
      std::stable_partition(values->begin(), values->end(),
                            [&](ValueId value) { return graph_.type(value).elements() == elements; });
    return result;
  }

  int64_t traffic_before(const Group& group) const {
    int64_t bytes = 0;
    for (NodeId id : group.nodes) {
      bytes += graph_.type(graph_.node(id).results[0]).bytes();
      for (ValueId operand : graph_.node(id).operands) bytes += graph_.type(operand).bytes();
    }
    return bytes;
  }

  int64_t traffic_of(const FusionGroup& group) const {
    int64_t bytes = 0;
    for (ValueId value : group.operands) bytes += graph_.type(value).bytes();
    for (ValueId value : group.results) bytes += graph_.type(value).bytes();
    return bytes;
  }

  const Graph& graph_;
  std::vector<NodeId> order_;
  std::vector<bool> kept_;      // by value: an output, an update or a gradient that is shown
  std::vector<int64_t> place_;  // by node, in the graph's order
  std::vector<size_t> group_;   // by node
  std::vector<Group> groups_;
};

}  // namespace

bool is_drawn_from(const Graph& graph, llvm::ArrayRef<NodeId> nodes, ValueId value) {
  return llvm::any_of(nodes, [&](NodeId id) {
    const Node& node = graph.node(id);
    return node.op->name == "dropout" && node.operands[1] == value;
  });
}

bool is_one_number(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  return producer != NodeId::None && graph.node(producer).op->name == "constant" && graph.type(value).elements() == 1;
}

FusionChoice choose_fusions(const Graph& graph) {
  Grouping grouping(graph);
  grouping.grow();
  return grouping.take();
}

}  // namespace plimsoll
