#include "passes/offload/update_pieces.h"

#include "ir/builder.h"
#include "ir/support/align.h"
#include "ir/support/units.h"
#include "passes/analysis/cost_model.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

// Each piece does what the whole does to its elements, so results are equal bit for bit. States are read and written in
// place: nobody else reads a state between the first piece and the last, and a piece writes only the part that it read.

namespace plimsoll {
namespace {

// A whole update may hold so many times what a piece does: the first of these that does not make too many pieces.
// Smaller pieces leave more room for copies beside the update.
constexpr int64_t pieces_of_whole[] = {8, 4, 2};
constexpr int64_t max_few_updates = 8;       // so many always come in the smallest pieces
constexpr int64_t max_pieces = 32;           // of an update; each is a handful of instructions
constexpr int64_t instructions_a_piece = 5;  // of the program, at least: more pieces make searches too long
constexpr double whole_growth = 1.05;        // of what may stay whole, from one try to the next
// Elements that a piece has a multiple of. An op that goes by blocks is cut where its record allows chunks of so many.
constexpr int64_t piece_multiple = 1024;
// Bytes that a piece has a multiple of in every state, so that each begins where a device wants values to begin.
constexpr int64_t part_multiple_bytes = 1024;

// Instructions that make the next values of states together, element by element.
struct Group {
  std::vector<NodeId> nodes;             // in order
  std::set<NodeId> drawing;              // those of them whose random draws go by element
  llvm::SmallVector<size_t, 4> updates;  // indices into Graph::updates
  int64_t elements = 0;
  int64_t multiple = piece_multiple;  // of elements, which a piece has
  int64_t bytes = 0;                  // most that one of the nodes holds on the device
};

// The elements of a value that belong to each `piece_multiple` elements of the group: as many, or fewer of what blocks
// of them share, such as scales. A last block may have less than its elements. 0: the value has nothing for some piece.
int64_t share_of(const Type& type, int64_t elements) { return type.elements() * piece_multiple / elements; }

// The least elements of the group in multiples of which a piece's part of the value has a multiple of the bytes.
int64_t multiple_for(const Type& type, int64_t elements) {
  const int64_t bytes = share_of(type, elements) * dtype_bytes(type.dtype);
  return piece_multiple * (part_multiple_bytes / std::gcd(bytes, part_multiple_bytes));
}

// Pieces of an update whose instructions hold so many bytes.
int64_t pieces_of(int64_t bytes, int64_t piece_bytes) {
  return std::clamp<int64_t>((bytes + piece_bytes - 1) / piece_bytes, 2, max_pieces);
}

UpdateCut cut_of(int64_t whole_bytes, int64_t pieces) {
  return {whole_bytes, std::max<int64_t>(whole_bytes / pieces, 1)};
}

// Device bytes of a node's operands, results and workspace. What the node may write over is counted once.
int64_t bytes_at(const Graph& graph, NodeId id, const KernelCatalog& catalog) {
  const Node& node = graph.node(id);
  llvm::SmallVector<ValueId, 8> roots;
  int64_t bytes = chosen_kernel(graph, node, catalog).workspace_bytes;
  for (ValueId operand : node.operands) {
    if (operand == ValueId::None || llvm::is_contained(roots, root_of(graph, operand))) continue;
    roots.push_back(root_of(graph, operand));
    bytes += graph.type(roots.back()).bytes();
  }
  llvm::SmallVector<ValueId, 4> reused;
  for (ValueId result : node.results) {
    const bool in_place = llvm::any_of(in_place_pairs(graph, node), [&](const InPlacePair& pair) {
      if (pair.result != result || llvm::is_contained(reused, pair.root)) return false;
      reused.push_back(pair.root);
      return true;
    });
    if (!in_place) bytes += graph.type(result).bytes();
  }
  return bytes;
}

// The attributes of an op whose first element is number `begin` of the whole.
Attrs with_draws_from(const Attrs& whole, int64_t begin) {
  Attrs attrs = whole;
  attrs.set("first_draw", whole.get_int("first_draw") + begin);
  return attrs;
}

class GroupFinder {
 public:
  GroupFinder(const Graph& graph, const llvm::StringSet<>& on_host, const KernelCatalog& catalog)
      : graph_(graph),
        catalog_(catalog),
        position_(graph.node_slots(), -1),
        lives_on_host_(graph.value_count(), false) {
    for (const State& state : graph.states)
      lives_on_host_[index_of(state.value)] = on_host.contains(graph.value(state.value).name);
    for (size_t i = 0; i < graph.updates.size(); ++i) updates_of_[graph.updates[i].value].push_back(i);
    for (const Output& output : graph.outputs) shown_.insert(output.value);
    for (const StateGradient& gradient : graph.gradients) shown_.insert(gradient.value);
    int32_t at = 0;
    for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) position_[index_of(id)] = at++;
  }

  std::vector<Group> find() {
    std::vector<Group> groups;
    std::set<NodeId> seen;
    for (const Update& update : graph_.updates) {
      const NodeId writer = graph_.value(update.value).producer;
      const int64_t elements = graph_.type(update.state).elements();
      if (writer == NodeId::None || !lives_on_host(update.state) || seen.count(writer)) continue;
      if (elements < 2 * piece_multiple) continue;
      std::optional<Group> group = grow(writer, elements);
      if (!group || elements < 2 * group->multiple) continue;
      seen.insert(group->nodes.begin(), group->nodes.end());
      groups.push_back(std::move(*group));
    }
    return groups;
  }

 private:
  int32_t position_of(NodeId id) const { return position_[index_of(id)]; }

  bool lives_on_host(ValueId value) const { return lives_on_host_[index_of(value)]; }

  bool has_all(ValueId value, int64_t elements) const {
    return value != ValueId::None && graph_.type(value).elements() == elements;
  }

  // How an op computes each element from those at its place, as if the operands were flat.
  enum class Cuttable : uint8_t { No, Yes, WithDraws };
  Cuttable cuttable(NodeId id, int64_t elements) const {
    const Node& node = graph_.node(id);
    if (node.op->is_view() || node.op->engine != Engine::Compute || node.operands.empty()) return Cuttable::No;
    llvm::SmallVector<Type, 8> types;
    llvm::SmallVector<const Type*, 8> operands;
    bool same_shape = true;
    types.reserve(node.operands.size());
    for (ValueId operand : node.operands) {
      if (operand == ValueId::None) {
        operands.push_back(nullptr);
        continue;
      }
      const std::optional<Type> pair = of_two_pieces(graph_.type(operand), elements);
      if (!pair) return Cuttable::No;
      same_shape &= !has_all(operand, elements) || graph_.type(operand).shape == graph_.type(node.results[0]).shape;
      types.push_back(*pair);
      operands.push_back(&types.back());
    }
    if (!same_shape || !has_all(node.results[0], elements)) return Cuttable::No;
    const OpCall call(*node.op, node.attrs, operands);
    Result<Types> results = infer(call);
    if (!results) return consumeError(results.takeError()), Cuttable::No;
    const std::optional<ChunkCall> second = chunk_of(*node.op, call, {1, 2});
    if (!second || results->front().elements() != 2 * piece_multiple) return Cuttable::No;
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (second->cut[i] != (operands[i] && operands[i]->rank() > 0)) return Cuttable::No;
    for (size_t r = 0; r < node.results.size(); ++r)
      if (combine_of(*second, r) != Combine::Rows) return Cuttable::No;
    if (second->attrs == node.attrs) return Cuttable::Yes;
    return second->attrs == with_draws_from(node.attrs, piece_multiple) ? Cuttable::WithDraws : Cuttable::No;
  }

  // The type as of two pieces of the least size, all elements along one dimension; scalars stay.
  static std::optional<Type> of_two_pieces(const Type& type, int64_t elements) {
    if (type.rank() == 0) return type;
    const int64_t count = 2 * share_of(type, elements);
    return count > 0 ? std::optional(Type(type.dtype, {count})) : std::nullopt;
  }

  // The cuttable nodes around `writer` through which only states go in and next values come out.
  std::optional<Group> grow(NodeId writer, int64_t elements) {
    std::map<int32_t, NodeId> nodes;  // by position
    std::set<NodeId> drawing;
    std::vector<NodeId> work{writer};
    while (!work.empty()) {
      const NodeId id = work.back();
      work.pop_back();
      if (nodes.count(position_of(id)) || (id != writer && graph_.node(id).phase != Phase::Update)) continue;
      const Cuttable found = cuttable(id, elements);
      if (found == Cuttable::No) continue;
      nodes[position_of(id)] = id;
      if (found == Cuttable::WithDraws) drawing.insert(id);
      for (ValueId operand : graph_.node(id).operands)
        if (has_all(operand, elements) && graph_.value(operand).producer != NodeId::None)
          work.push_back(graph_.value(operand).producer);
      for (ValueId result : graph_.node(id).results)
        if (has_all(result, elements))
          work.insert(work.end(), graph_.value(result).users.begin(), graph_.value(result).users.end());
    }
    prune(nodes, elements);
    if (!nodes.count(position_of(writer))) return std::nullopt;
    Group group;
    group.elements = elements;
    group.drawing = std::move(drawing);
    for (const auto& [at, id] : nodes) {
      group.nodes.push_back(id);
      group.bytes = std::max(group.bytes, bytes_at(graph_, id, catalog_));
      for (ValueId operand : graph_.node(id).operands)
        if (operand != ValueId::None && graph_.type(operand).rank() > 0)
          group.multiple = std::lcm(group.multiple, multiple_for(graph_.type(operand), elements));
      for (ValueId result : graph_.node(id).results)
        if (auto found = updates_of_.find(result); found != updates_of_.end())
          group.updates.append(found->second.begin(), found->second.end());
    }
    return group;
  }

  // Takes away nodes whose elements others read too, or that write a state of the device, until none is left of them.
  void prune(std::map<int32_t, NodeId>& nodes, int64_t elements) {
    const auto stays = [&](NodeId id) {
      return llvm::all_of(graph_.node(id).results, [&](ValueId result) {
        const auto found = updates_of_.find(result);
        if (!has_all(result, elements) && found == updates_of_.end()) return true;
        if (shown_.count(result) || share_of(graph_.type(result), elements) == 0) return false;
        if (found != updates_of_.end())
          if (found->second.size() > 1 || !lives_on_host(graph_.updates[found->second.front()].state)) return false;
        return llvm::all_of(graph_.value(result).users,
                            [&](NodeId user) { return nodes.count(position_of(user)) > 0; });
      });
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (auto at = nodes.begin(); at != nodes.end();) {
        const bool leaves = !stays(at->second);
        at = leaves ? nodes.erase(at) : std::next(at);
        changed |= leaves;
      }
    }
  }

  const Graph& graph_;
  const KernelCatalog& catalog_;
  std::map<ValueId, llvm::SmallVector<size_t, 1>> updates_of_;  // by next value
  std::set<ValueId> shown_;                                     // outputs and gradients
  std::vector<int32_t> position_;                               // by node
  std::vector<bool> lives_on_host_;                             // by value: states that shall live there
};

// Makes the pieces of one group.
class Cutter {
 public:
  Cutter(Graph& graph, std::vector<NodeId>& writers, const llvm::StringSet<>& on_host, const Group& group)
      : graph_(graph), writers_(writers), on_host_(on_host), group_(group) {}

  // Moves the nodes side by side, so that no next value waits for the last of them.
  void gather() {
    if (group_.nodes.size() < 2 || !is_place(group_.nodes.front())) return;
    const NodeId behind = graph_.next_node(group_.nodes.front());
    for (NodeId id : llvm::ArrayRef<NodeId>(group_.nodes).drop_front())
      if (id != behind) graph_.move_before(id, behind);
  }

  bool cut(int64_t piece_bytes) {
    const std::optional<NodeId> place = find_place();
    if (!place) return false;
    before_ = *place;
    const int64_t count = pieces_of(group_.bytes, piece_bytes);
    length_ = align_up((group_.elements + count - 1) / count, group_.multiple);
    if (length_ >= group_.elements) return false;
    reason_ = "a piece of " + std::to_string((group_.elements + length_ - 1) / length_) + "; the whole would hold " +
              format_bytes(group_.bytes);
    for (int64_t begin = 0; begin < group_.elements; begin += length_)
      add_piece(begin, std::min(begin + length_, group_.elements));
    join_others();
    replace_updates();
    for (NodeId id : llvm::reverse(group_.nodes)) graph_.erase_node(id);
    return true;
  }

 private:
  bool is_state(ValueId value) const { return graph_.find_state(value) != nullptr; }
  bool is_on_host(ValueId value) const { return is_state(value) && on_host_.contains(graph_.value(value).name); }
  bool has_all(ValueId value) const {
    return value != ValueId::None && graph_.type(value).elements() == group_.elements;
  }
  // Every piece has a part of it.
  bool is_cut(ValueId value) const { return value != ValueId::None && graph_.type(value).rank() > 0; }
  bool is_next_value(ValueId value) const {
    return llvm::any_of(group_.updates, [&](size_t update) { return graph_.updates[update].value == value; });
  }
  bool is_own(NodeId id) const { return llvm::is_contained(group_.nodes, id); }

  // The node before which all pieces stand: what they read is made, what they write is read by nobody any more, and
  // what they read is not yet written. That is where the first or where the last node of the group stands, if anywhere.
  std::optional<NodeId> find_place() const {
    for (NodeId place : {group_.nodes.front(), group_.nodes.back()})
      if (is_place(place)) return place;
    return std::nullopt;
  }

  bool is_place(NodeId place) const {
    std::vector<bool> is_behind(graph_.node_slots(), false);
    for (NodeId id = place; id != NodeId::None; id = graph_.next_node(id)) is_behind[index_of(id)] = true;
    const auto behind = [&](NodeId id) { return is_behind[index_of(id)]; };
    std::set<ValueId> read, written;
    for (size_t update : group_.updates) written.insert(graph_.updates[update].state);
    for (NodeId id : group_.nodes) {
      for (ValueId operand : graph_.node(id).operands) {
        if (operand == ValueId::None) continue;
        const NodeId producer = graph_.value(operand).producer;
        if (producer != NodeId::None && !is_own(producer) && behind(producer)) return false;
        read.insert(root_of(graph_, operand));
      }
      for (ValueId result : graph_.node(id).results)
        for (NodeId user : graph_.value(result).users)
          if (!is_own(user) && !behind(user)) return false;
    }
    for (ValueId state : written)
      for (NodeId reader : readers_of(graph_, state))
        if (!is_own(reader) && behind(reader)) return false;
    for (size_t i = 0; i < writers_.size(); ++i)
      if (!is_own(writers_[i]) && read.count(graph_.updates[i].state) && !behind(writers_[i])) return false;
    return true;
  }

  NodeId add(const OpDef& op, llvm::ArrayRef<ValueId> operands, Attrs attrs, const std::string& name,
             const Node& like) {
    llvm::SmallVector<const Type*, 8> types;
    for (ValueId operand : operands) types.push_back(operand == ValueId::None ? nullptr : &graph_.type(operand));
    const Types results = llvm::cantFail(infer(OpCall(op, attrs, types)));
    std::vector<std::string> names;
    for (size_t i = 0; i < results.size(); ++i)
      names.push_back(graph_.unique_name(
          i < like.results.size() && &op == like.op ? graph_.value(like.results[i]).name + ".piece" : name));
    const OriginId origin = like.origin;
    const NodeId id = graph_.add_node(op, operands, std::move(attrs), results, names, before_);
    graph_.node(id).phase = like.phase;
    graph_.node(id).origin = origin;
    graph_.node(id).reason = reason_;
    return id;
  }

  ValueId add_one(llvm::StringRef op, ValueId operand, Attrs attrs, const std::string& name, const Node& like) {
    return graph_.node(add(get_op(op), {operand}, std::move(attrs), name, like)).results[0];
  }

  // Where the part of a value begins that belongs to the group's elements from `begin` on, a piece's first or the end.
  int64_t begin_in(ValueId value, int64_t begin) const {
    const Type& type = graph_.type(value);
    return begin == group_.elements ? type.elements() : begin / piece_multiple * share_of(type, group_.elements);
  }

  // The part of a value that the group reads for its elements [first, end).
  ValueId part_of(ValueId value, int64_t first, int64_t end, const Node& like) {
    const int64_t begin = begin_in(value, first), count = begin_in(value, end) - begin;
    const std::string name = graph_.value(value).name;
    if (is_on_host(value))
      return add_one("to_device", value, {{"begin", begin}, {"elements", count}}, name + ".reload", like);
    ValueId& flat = flat_.try_emplace(value, value).first->second;
    if (graph_.type(flat).rank() != 1)
      flat = add_one("reshape", value, {{"shape", Ints{graph_.type(value).elements()}}}, name + ".flat", like);
    return add_one("slice", flat, {{"starts", Ints{begin}}, {"steps", Ints{1}}, {"sizes", Ints{count}}},
                   name + ".piece", like);
  }

  void add_piece(int64_t begin, int64_t end) {
    std::map<ValueId, ValueId> piece;
    for (NodeId id : group_.nodes)
      for (ValueId operand : graph_.node(id).operands)
        if (is_cut(operand) && !is_own_value(operand) && !piece.count(operand))
          piece[operand] = part_of(operand, begin, end, graph_.node(id));
    for (NodeId id : group_.nodes) {
      const Node& node = graph_.node(id);
      llvm::SmallVector<ValueId, 8> operands;
      for (ValueId operand : node.operands) operands.push_back(is_cut(operand) ? piece.at(operand) : operand);
      const bool draws = group_.drawing.count(id) > 0;
      const NodeId copy = add(*node.op, operands, draws ? with_draws_from(node.attrs, begin) : node.attrs, "", node);
      for (size_t r = 0; r < node.results.size(); ++r) {
        const ValueId whole = graph_.node(id).results[r], part = graph_.node(copy).results[r];
        piece[whole] = part;
        if (!has_all(whole) && !is_next_value(whole)) others_[whole].push_back(part);
      }
    }
    for (size_t update : group_.updates) {
      const ValueId whole = graph_.updates[update].value;
      const Node& like = graph_.node(graph_.value(whole).producer);
      written_[update].push_back(add_one("to_host", piece.at(whole), {{"begin", begin_in(whole, begin)}},
                                         graph_.value(whole).name + ".host", like));
    }
  }

  bool is_own_value(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return producer != NodeId::None && is_own(producer);
  }

  // Results with a few elements of each piece, such as norms of blocks, are put together.
  void join_others() {
    for (const auto& [whole, parts] : others_) {
      if (!graph_.is_used(whole)) continue;
      const Node& like = graph_.node(graph_.value(whole).producer);
      const NodeId joined = add(get_op("concat"), parts, {{"axis", int64_t{0}}}, graph_.value(whole).name, like);
      graph_.replace_uses(whole, graph_.node(joined).results[0]);
    }
  }

  void replace_updates() {
    for (auto& [update, parts] : written_) {
      const ValueId state = graph_.updates[update].state;
      graph_.updates[update].value = parts.front();
      writers_[update] = graph_.value(parts.front()).producer;
      for (ValueId part : llvm::ArrayRef<ValueId>(parts).drop_front()) {
        graph_.updates.push_back({state, part});
        writers_.push_back(graph_.value(part).producer);
      }
    }
  }

  Graph& graph_;
  std::vector<NodeId>& writers_;
  const llvm::StringSet<>& on_host_;
  const Group& group_;
  NodeId before_ = NodeId::None;
  int64_t length_ = 0;  // elements of a piece; the last one may have fewer
  std::string reason_;
  std::map<ValueId, ValueId> flat_;                          // by value that the group reads
  std::map<ValueId, llvm::SmallVector<ValueId, 8>> others_;  // by result that has fewer elements: its pieces
  std::map<size_t, llvm::SmallVector<ValueId, 8>> written_;  // by update: the pieces of the next value
};

}  // namespace

UpdateCut fine_cut(int64_t whole_bytes) { return cut_of(whole_bytes, pieces_of_whole[0]); }

UpdateCut choose_update_cut(const PlanDraft& draft, const llvm::StringSet<>& on_host) {
  int64_t most = 1, instructions = 0;
  std::vector<int64_t> sizes;  // of the updates
  for (const Graph& graph : draft.program.functions) {
    std::set<NodeId> cut;
    for (const Group& group : GroupFinder(graph, on_host, *draft.catalog).find()) {
      cut.insert(group.nodes.begin(), group.nodes.end());
      sizes.push_back(group.bytes);
    }
    for (NodeId id : instructions_of(graph)) {
      ++instructions;
      if (!cut.count(id)) most = std::max(most, bytes_at(graph, id, *draft.catalog));
    }
  }
  const bool are_few = llvm::count_if(sizes, [&](int64_t bytes) { return bytes > most; }) <= max_few_updates;
  const auto is_short_enough = [&](const UpdateCut& cut) {
    int64_t pieces = 0;
    for (int64_t bytes : sizes) pieces += bytes > cut.whole_bytes ? pieces_of(bytes, cut.piece_bytes) : 0;
    return are_few || pieces * instructions_a_piece <= instructions;
  };
  for (int64_t pieces : pieces_of_whole)
    if (const UpdateCut cut = cut_of(most, pieces); is_short_enough(cut)) return cut;
  UpdateCut cut = cut_of(most, llvm::ArrayRef(pieces_of_whole).back());
  while (!is_short_enough(cut))
    cut = cut_of(static_cast<int64_t>(whole_growth * static_cast<double>(cut.whole_bytes)) + 1,
                 llvm::ArrayRef(pieces_of_whole).back());
  return cut;
}

void update_in_pieces(Graph& graph, std::vector<NodeId>& writers, const llvm::StringSet<>& on_host,
                      const KernelCatalog& catalog, const UpdateCut& cut) {
  for (const Group& group : GroupFinder(graph, on_host, catalog).find())
    if (Cutter cutter(graph, writers, on_host, group); group.bytes <= cut.whole_bytes || !cutter.cut(cut.piece_bytes))
      cutter.gather();
}

}  // namespace plimsoll
