#include "passes/target/fusion_remakes.h"

#include "ir/fused_body.h"
#include "passes/rewrite/match.h"
#include "passes/target/fusion_groups.h"
#include "passes/target/fusion_reductions.h"

#include "llvm/ADT/STLExtras.h"

#include <map>

namespace plimsoll {

bool is_read_in_backward(const Graph& graph, ValueId value) {
  return llvm::any_of(graph.value(value).users, [&](NodeId user) {
    const Node& node = graph.node(user);
    return node.op->is_view() ? is_read_in_backward(graph, node.results[0]) : node.phase == Phase::Backward;
  });
}

bool only_elementwise_reads_in_backward(const Graph& graph, ValueId value) {
  bool any = false;
  for (NodeId user : graph.value(value).users) {
    const Node& node = graph.node(user);
    if (node.op->is_view()) return false;
    if (node.phase == Phase::Forward) continue;
    if (node.phase != Phase::Backward || !fits_fused_body(graph, node)) return false;
    if (graph.type(node.results[0]).shape != graph.type(value).shape) return false;
    any = true;
  }
  return any;
}

namespace {

// Does a comparison for equality read the value, or what elementwise nodes of backward make of it? As the gradient of a
// maximum does, which finds an operand's place by its bits.
bool is_compared(const Graph& graph, ValueId value) {
  llvm::SmallVector<NodeId, 16> readers;
  const auto reach = [&](ValueId read) {
    for (NodeId user : graph.value(read).users) {
      const Node& node = graph.node(user);
      if (node.phase == Phase::Backward && fits_fused_body(graph, node) && !llvm::is_contained(readers, user))
        readers.push_back(user);
    }
  };
  reach(value);
  for (size_t i = 0; i < readers.size(); ++i) {
    if (graph.node(readers[i]).op->name == "equal") return true;
    reach(graph.node(readers[i]).results[0]);
  }
  return false;
}

// A value of forward and the nodes that make it, in their order, its own last.
struct Remake {
  ValueId value;
  std::vector<NodeId> nodes;
};

bool is_batch_norm(const Node& node) { return node.op->name == "batch_norm" || node.op->name == "batch_norm_given"; }

bool has_batch_norm(const Graph& graph, llvm::ArrayRef<NodeId> nodes) {
  return llvm::any_of(nodes, [&](NodeId id) { return is_batch_norm(graph.node(id)); });
}

// What it reads takes no more bytes than the value and is read in backward anyway.
class RemakeChooser {
 public:
  explicit RemakeChooser(const Graph& graph) : graph_(graph), is_remade_(graph.node_slots()) {}

  std::vector<Remake> choose() {
    std::vector<Remake> chosen;
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      const ValueId value = graph_.node(id).results[0];
      if (!is_remakable(id) || !only_elementwise_reads_in_backward(graph_, value)) continue;
      Remake remake{value, {}};
      read_.clear();
      made_ = value;
      is_written_ = !is_float(graph_.type(value).dtype) || !only_elementwise_reads_in_forward(value);
      if (!add(id, remake.nodes) || read_bytes(value) > graph_.type(value).bytes()) continue;
      if (has_batch_norm(graph_, remake.nodes) && is_compared(graph_, value)) continue;
      is_remade_[index_of(id)] = true;
      chosen.push_back(std::move(remake));
    }
    return chosen;
  }

 private:
  static constexpr size_t max_nodes = 8;  // of a remake
  // Values whose bytes are less than this share of another's are read for nothing beside it.
  static constexpr int64_t negligible_share = 16;

  bool is_remakable(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.phase != Phase::Forward) return false;
    if (is_batch_norm(node))
      return operand_of(node, "residual") == ValueId::None && is_read_in_backward(graph_, operand_of(node, "x"));
    return node.op->name != "dropout" && fits_fused_body(graph_, node);
  }

  // Adds the node behind those that make its operands of what is there; false where that is not possible.
  bool add(NodeId id, std::vector<NodeId>& nodes) {
    if (llvm::is_contained(nodes, id)) return true;
    const Node& node = graph_.node(id);
    if (is_batch_norm(node))
      read_.push_back(operand_of(node, "x"));
    else
      for (ValueId operand : node.operands)
        if (!is_one_number(graph_, operand) && !add_operand(node, operand, nodes)) return false;
    nodes.push_back(id);
    return nodes.size() <= max_nodes;
  }

  bool add_operand(const Node& reader, ValueId operand, std::vector<NodeId>& nodes) {
    const NodeId producer = graph_.value(operand).producer;
    const bool is_remade = producer != NodeId::None && is_remade_[index_of(producer)];
    if (!is_remade && (producer == NodeId::None || is_read_in_backward(graph_, operand))) return add_read(operand);
    const std::vector<NodeId> nodes_before = nodes;
    const std::vector<ValueId> read_before = read_;
    if (is_remakable(producer) && graph_.type(operand).shape == graph_.type(reader.results[0]).shape &&
        add(producer, nodes))
      return true;
    // Of a cast to a wider type the operand is the smaller of the two to save, where it cannot be made again itself.
    const bool is_narrower =
        reader.op->name == "cast" && graph_.type(operand).bytes() < graph_.type(reader.results[0]).bytes();
    if (is_remade || (!is_narrower && !is_saved_instead(operand))) return false;
    nodes = nodes_before;
    read_ = read_before;
    return add_read(operand);
  }

  // What no body makes is written anyway, and can be saved in the place of a value that is not: results of products,
  // for instance, and whatever is small. What is only moved may be read where it was before.
  bool is_saved_instead(ValueId operand) const {
    constexpr llvm::StringLiteral moves[] = {"transpose", "expand", "pad", "gather"};
    const Node& maker = graph_.node(graph_.value(operand).producer);
    if (is_written_ || fits_fused_body(graph_, maker) || is_fusible_reduction(graph_, maker)) return false;
    return is_negligible(operand, made_) || (!maker.op->is_view() && !llvm::is_contained(moves, maker.op->name));
  }

  bool is_negligible(ValueId read, ValueId made) const {
    return graph_.type(read).bytes() * negligible_share <= graph_.type(made).bytes();
  }

  bool only_elementwise_reads_in_forward(ValueId value) const {
    return !leaves_graph(graph_, value) && llvm::all_of(graph_.value(value).users, [&](NodeId user) {
      const Node& node = graph_.node(user);
      return node.phase != Phase::Forward || fits_fused_body(graph_, node);
    });
  }

  bool add_read(ValueId value) {
    if (!llvm::is_contained(read_, value)) read_.push_back(value);
    return true;
  }

  int64_t read_bytes(ValueId made) const {
    int64_t bytes = 0;
    for (ValueId value : read_)
      if (!is_negligible(value, made)) bytes += graph_.type(value).bytes();
    return bytes;
  }

  const Graph& graph_;
  std::vector<bool> is_remade_;   // by node
  std::vector<ValueId> read_;     // by the nodes of one remake, from outside
  ValueId made_ = ValueId::None;  // by the remake
  bool is_written_ = false;       // in forward: is that a mask, or do others than elementwise nodes read it there?
};

// The result of a batch norm from its operand, and from the mean and the variance of each channel.
ValueId normalise_again(Builder& b, const Node& norm) {
  const ValueId x = operand_of(norm, "x");
  const Type type = b.type(x);
  const DType wide = type.dtype == DType::F64 ? DType::F64 : DType::F32;
  const bool has_moments = norm.op->name == "batch_norm_given";
  const ValueId mean = has_moments ? operand_of(norm, "mean") : norm.results[1];
  const ValueId var = has_moments ? operand_of(norm, "var") : norm.results[2];
  // The channels are the last dimension, or else the second one.
  Shape over_channels = b.type(mean).shape;
  if (norm.attrs.get_int("channels_last", 0) == 0) over_channels.resize(type.rank() - 1, 1);
  const auto of_channels = [&](ValueId value) { return b.cast(b.reshape(value, over_channels), wide); };

  const ValueId deviation_below =
      b.emit("rsqrt", {b.emit("add", {of_channels(var), b.scalar(norm.attrs.get_float("eps"), wide)})});
  const ValueId factor = b.emit("mul", {deviation_below, of_channels(operand_of(norm, "scale"))});
  const ValueId offset =
      b.emit("sub", {of_channels(operand_of(norm, "bias")), b.emit("mul", {of_channels(mean), factor})});
  ValueId y = b.emit("add", {b.emit("mul", {b.cast(x, wide), factor}), offset});
  const llvm::StringRef activation = norm.attrs.get_string("activation", "none");
  if (activation != "none") y = b.emit(activation, {y});
  return b.cast(y, type.dtype);
}

class Remaker {
 public:
  explicit Remaker(Graph& graph) : graph_(graph), order_(graph) {}

  // Each reader in backward gets a copy of the nodes in front of it, which it is fused with. Of a batch norm's many
  // nodes, readers that elementwise nodes join with each other have one copy together.
  void add(const Remake& remake) {
    llvm::SmallVector<NodeId, 4> readers;
    for (NodeId user : graph_.value(remake.value).users)
      if (graph_.node(user).phase == Phase::Backward && !llvm::is_contained(readers, user)) readers.push_back(user);
    llvm::sort(readers, [&](NodeId a, NodeId b) { return order_[a] < order_[b]; });
    while (!readers.empty()) {
      llvm::SmallVector<NodeId, 16> joined{readers.front()};
      if (has_batch_norm(graph_, remake.nodes)) add_nodes_around(joined);
      const ValueId again = make_again(remake, readers.front());
      for (NodeId reader : readers)
        if (llvm::is_contained(joined, reader)) replace_operand(reader, remake.value, again);
      llvm::erase_if(readers, [&](NodeId reader) { return llvm::is_contained(joined, reader); });
    }
  }

 private:
  static constexpr size_t max_joined = 32;

  bool is_joined(NodeId id, const Shape& shape) const {
    if (id == NodeId::None) return false;
    const Node& node = graph_.node(id);
    return node.phase == Phase::Backward && fits_fused_body(graph_, node) &&
           graph_.type(node.results[0]).shape == shape;
  }

  // Elementwise nodes of the first one's shape that read each other's results.
  void add_nodes_around(llvm::SmallVector<NodeId, 16>& nodes) const {
    const Shape& shape = graph_.type(graph_.node(nodes.front()).results[0]).shape;
    const auto reach = [&](NodeId id) {
      if (nodes.size() < max_joined && is_joined(id, shape) && !llvm::is_contained(nodes, id)) nodes.push_back(id);
    };
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = graph_.node(nodes[i]);
      for (ValueId operand : node.operands) reach(graph_.value(operand).producer);
      for (NodeId user : graph_.value(node.results[0]).users) reach(user);
    }
  }

  ValueId make_again(const Remake& remake, NodeId reader) {
    Builder b = builder_at(graph_, reader);
    std::map<ValueId, ValueId> again;
    for (NodeId id : remake.nodes) {
      const Node node = graph_.node(id);
      llvm::SmallVector<ValueId, 4> operands = node.operands;
      for (ValueId& operand : operands)
        if (const auto made = again.find(operand); made != again.end()) operand = made->second;
      const ValueId made = is_batch_norm(node) ? normalise_again(b, node)
                                               : b.emit(node.op->name, operands, node.attrs,
                                                        graph_.value(node.results[0]).name + ".again");
      again[node.results[0]] = made;
      order_.add(made, reader);
    }
    return again[remake.value];
  }

  void replace_operand(NodeId reader, ValueId from, ValueId to) {
    for (size_t i = 0; i < graph_.node(reader).operands.size(); ++i)
      if (graph_.node(reader).operands[i] == from) graph_.set_operand(reader, i, to);
  }

  Graph& graph_;
  NodeOrder order_;
};

}  // namespace

int64_t remake_in_backward(Graph& graph) {
  const std::vector<Remake> remakes = RemakeChooser(graph).choose();
  Remaker remaker(graph);
  for (const Remake& remake : remakes) remaker.add(remake);
  return static_cast<int64_t>(remakes.size());
}

}  // namespace plimsoll
