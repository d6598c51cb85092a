#include "passes/place/place_parts.h"

#include "ir/support/align.h"
#include "passes/place/place_buffers.h"

#include "llvm/ADT/DenseSet.h"

#include <algorithm>
#include <map>

// The buffer of a part becomes a run of bytes of its whole's buffer, with all that was written over each other in it.
// This is right where no value is written over bytes of another that is still read. Within each buffer it holds
// already, so it is looked at between the values of one buffer, and what lies inside it, and those of the other:
//   - a result of split or slice is not written, and a concatenation not where its parts lie inside it;
//   - of all other values, none that has some of the same bytes may be read from the write on.
// Bytes that persist are written by updates alone. States that a concatenation joins lie one after the other, and it
// lies over them where they change behind its last reader. A whole takes all of its bytes from the first write to a
// part of it on, or up to the last read. Where all parts inside would raise the peak, those are copied that ask for the
// longest life: the first written of a concatenation, the last read of a split. Offsets of parts are aligned as those
// of buffers are, since kernels rely on it.

namespace plimsoll {
namespace {

class PartPlacer {
 public:
  PartPlacer(const Graph& graph, const BufferAssignment& assigned, const PartOptions& options)
      : graph_(graph), assigned_(assigned), options_(options) {
    s_.buffers = assigned.buffers;
    s_.of.resize(assigned.buffers.size());
    s_.bytes_in_place.assign(graph.node_slots(), 0);
    values_.resize(assigned.buffers.size());
    is_unwritten_.assign(graph.value_count(), false);
    life_of_.assign(graph.value_count(), -1);
    for (size_t v = 0; v < graph.value_count(); ++v) {
      const auto value = static_cast<ValueId>(v);
      if (const int32_t buffer = assigned.buffer_of[v]; buffer >= 0 && root_of(graph, value) == value)
        values_[buffer].push_back(value);
    }
  }

  PlacedParts run() {
    sum_live_bytes();
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (assigned_.position[index_of(id)] >= 0) visit(id);
    return std::move(s_);
  }

 private:
  struct Join {
    NodeId node;
    ValueId whole, part;
    int64_t begin_bytes;
    bool is_split;  // the part is the node's result, and not the whole
  };

  void sum_live_bytes() {
    live_.assign(static_cast<size_t>(assigned_.instructions) + 1, 0);
    for (const Buffer& buffer : s_.buffers)
      if (is_placed(buffer, MemorySpace::Device)) add_live(live_, buffer.first, buffer.last, padded(buffer));
    peak_ = *std::max_element(live_.begin(), live_.end());
  }

  static void add_live(std::vector<int64_t>& live, int32_t first, int32_t last, int64_t bytes) {
    for (int32_t at = first; at <= last; ++at) live[static_cast<size_t>(at)] += bytes;
  }

  int64_t padded(const Buffer& buffer) const {
    return align_up(std::max<int64_t>(buffer.bytes, 1), options_.alignment);
  }

  void visit(NodeId id) {
    const Node& node = graph_.node(id);
    const PartRunsFn runs = node.op->result_runs ? node.op->result_runs : node.op->operand_runs;
    if (!runs) return;
    const llvm::SmallVector<const Type*, 4> types = operand_types(graph_, node);
    const llvm::SmallVector<int64_t, 4> begins = runs(OpCall(*node.op, node.attrs, types));
    const bool is_split = node.op->result_runs;
    if (!is_split && lie_side_by_side(node, begins) && outlives(node.results[0])) return place_over_states(id);
    llvm::SmallVector<Join, 4> joins;
    llvm::SmallDenseSet<int32_t> buffers;
    for (size_t i = 0; i < begins.size(); ++i) {
      const ValueId part = is_split ? node.results[i] : root_of(graph_, node.operands[i]);
      const ValueId whole = is_split ? root_of(graph_, node.operands[0]) : node.results[0];
      const Join join{id, whole, part, begins[i] * dtype_bytes(graph_.type(whole).dtype), is_split};
      if (may_join(join) && buffers.insert(buffer_of(part)).second) joins.push_back(join);
    }
    std::stable_sort(joins.begin(), joins.end(), [&](const Join& a, const Join& b) {
      const Buffer &one = s_.buffers[buffer_of(a.part)], &other = s_.buffers[buffer_of(b.part)];
      return is_split ? one.last < other.last : one.first > other.first;
    });
    while (!joins.empty() && !keeps_peak(joins)) joins.pop_back();
    if (saves_half(node, joins))
      for (const Join& join : joins) place(join);
  }

  // Few bytes are not worth what a longer life does to the layout.
  bool saves_half(const Node& node, llvm::ArrayRef<Join> joins) const {
    int64_t bytes = 0;
    for (ValueId result : node.results) bytes += graph_.type(result).bytes();
    for (const Join& join : joins) bytes -= 2 * s_.buffers[buffer_of(join.part)].bytes;
    return bytes <= 0;
  }

  // Are the operands states that lie as the concatenation puts them?
  bool lie_side_by_side(const Node& concat, llvm::ArrayRef<int64_t> begins) const {
    if (options_.state_offset.empty() || begins.empty()) return false;
    const ValueId first = root_of(graph_, concat.operands[0]);
    for (size_t i = 0; i < begins.size(); ++i) {
      const ValueId part = root_of(graph_, concat.operands[i]);
      const Buffer& buffer = s_.buffers[buffer_of(part)];
      if (buffer.kind != Buffer::Kind::State || buffer.space != MemorySpace::Device || buffer.first_value != part ||
          options_.state_offset[index_of(part)] !=
              options_.state_offset[index_of(first)] + begins[i] * dtype_bytes(graph_.type(part).dtype))
        return false;
    }
    return true;
  }

  // Is nothing written in the bytes of a concatenation of states before its last read?
  bool outlives(ValueId whole) const {
    const int32_t own = buffer_of(whole);
    if (s_.buffers[own].kind != Buffer::Kind::Transient || values_[own].size() != 1) return false;
    return llvm::none_of(graph_.node(graph_.value(whole).producer).operands, [&](ValueId operand) {
      return llvm::any_of(values_[buffer_of(root_of(graph_, operand))], [&](ValueId state) {
        return !is_unwritten_[index_of(state)] && written_at(state) >= 0 && last_use(whole) >= written_at(state);
      });
    });
  }

  void place_over_states(NodeId concat) {
    const ValueId whole = graph_.node(concat).results[0];
    Buffer& buffer = s_.buffers[buffer_of(whole)];
    add_live(live_, buffer.first, buffer.last, -padded(buffer));
    buffer.kind = Buffer::Kind::Part;
    s_.of[buffer_of(whole)] = {buffer_of(root_of(graph_, graph_.node(concat).operands[0])), ValueId::None, 0};
    s_.bytes_in_place[index_of(concat)] = buffer.bytes;
    ++s_.count;
  }

  int32_t buffer_of(ValueId value) const { return assigned_.buffer_of[index_of(value)]; }
  int32_t written_at(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return producer == NodeId::None ? -1 : assigned_.position[index_of(producer)];
  }
  int32_t last_use(ValueId value) const { return assigned_.last_use[index_of(value)]; }

  bool may_join(const Join& join) const {
    const int32_t part = buffer_of(join.part), whole = buffer_of(join.whole);
    const Buffer &inner = s_.buffers[part], &outer = s_.buffers[whole];
    const auto has_all = [&](const Buffer& buffer, ValueId value) {
      return buffer.space == MemorySpace::Device && buffer.bytes == graph_.type(value).bytes();
    };
    if (inner.kind != Buffer::Kind::Transient || !has_all(inner, join.part) || !has_all(outer, join.whole))
      return false;
    if (s_.of[whole].buffer >= 0 && s_.of[whole].whole == ValueId::None) return false;  // it is several buffers
    if (inner.bytes == 0 || join.begin_bytes % options_.alignment != 0 || s_.outermost(whole).first == part)
      return false;
    const bool is_made_there = join.is_split || outer.first_value == join.whole;
    return is_made_there && keeps_values(join);
  }

  // Where `value` begins in the outermost buffer.
  int64_t begin_of(ValueId value) const { return s_.outermost(buffer_of(value)).second; }

  // Is no value written over one that is read later?
  bool keeps_values(const Join& join) const {
    const auto [root, begin] = s_.outermost(buffer_of(join.whole));
    const int32_t part = buffer_of(join.part);
    const bool persists = !is_placed(s_.buffers[root], MemorySpace::Device);
    const int64_t shift = begin + join.begin_bytes;
    for (ValueId inner : values_[part]) {
      const bool is_written = !is_unwritten_[index_of(inner)] && !(join.is_split && inner == join.part);
      if (persists && is_written) return false;
      const int64_t from = shift + begin_of(inner), to = from + graph_.type(inner).bytes();
      for (ValueId outer : values_[root]) {
        const int64_t outer_from = begin_of(outer), outer_to = outer_from + graph_.type(outer).bytes();
        if (from >= outer_to || outer_from >= to) continue;
        if (is_written && is_read_behind(outer, written_at(inner))) return false;
        const bool is_whole = !join.is_split && outer == join.whole;
        if (!is_whole && is_written_in(outer, from - outer_from, to - outer_from) &&
            is_read_behind(inner, written_at(outer)))
          return false;
      }
    }
    return true;
  }

  // Is the value there when instruction `at` writes, and read by it or behind it?
  bool is_read_behind(ValueId value, int32_t at) const { return written_at(value) <= at && last_use(value) >= at; }

  // Are some of the bytes [from, to) of the value written as it is made?
  bool is_written_in(ValueId value, int64_t from, int64_t to) const {
    if (is_unwritten_[index_of(value)]) return false;
    const auto runs = in_place_.find(value);
    return runs == in_place_.end() || llvm::none_of(runs->second, [&](const std::pair<int64_t, int64_t>& run) {
             return run.first <= from && to <= run.second;
           });
  }

  // Does the largest sum of live bytes stay where it is if all of these parts of one whole lie inside it, and does that
  // not live too long?
  bool keeps_peak(llvm::ArrayRef<Join> joins) const {
    const Buffer& outer = s_.buffers[s_.outermost(buffer_of(joins.front().whole)).first];
    if (!is_placed(outer, MemorySpace::Device)) return true;
    std::vector<int64_t> live = live_;
    add_live(live, outer.first, outer.last, -padded(outer));
    int32_t first = outer.first, last = outer.last;
    for (const Join& join : joins) {
      const Buffer& inner = s_.buffers[buffer_of(join.part)];
      add_live(live, inner.first, inner.last, -padded(inner));
      first = std::min(first, inner.first), last = std::max(last, inner.last);
    }
    if (outer.first - first + last - outer.last > options_.max_more_life) return false;
    add_live(live, first, last, padded(outer));
    return *std::max_element(live.begin() + first, live.begin() + last + 1) <= peak_;
  }

  void place(const Join& join) {
    const int32_t part = buffer_of(join.part), whole = buffer_of(join.whole);
    const int32_t root = s_.outermost(whole).first;
    Buffer &inner = s_.buffers[part], &outer = s_.buffers[root];
    add_live(live_, inner.first, inner.last, -padded(inner));
    if (is_placed(outer, MemorySpace::Device)) {
      add_live(live_, outer.first, outer.last, -padded(outer));
      outer.first = std::min(outer.first, inner.first);
      outer.last = std::max(outer.last, inner.last);
      add_live(live_, outer.first, outer.last, padded(outer));
    }
    inner.kind = Buffer::Kind::Part;
    s_.of[part] = {whole, join.whole, join.begin_bytes};
    for (int32_t at = part; s_.of[at].buffer >= 0; at = s_.of[at].buffer)
      lengthen(s_.of[at].whole, inner.first, inner.last);
    values_[root].insert(values_[root].end(), values_[part].begin(), values_[part].end());
    values_[part].clear();
    if (join.is_split)
      is_unwritten_[index_of(join.part)] = true;
    else
      in_place_[join.whole].push_back({join.begin_bytes, join.begin_bytes + inner.bytes});
    s_.bytes_in_place[index_of(join.node)] += inner.bytes;
    ++s_.count;
  }

  void lengthen(ValueId whole, int32_t first, int32_t last) {
    int32_t& life = life_of_[index_of(whole)];
    if (life < 0) {
      life = static_cast<int32_t>(s_.lives.size());
      s_.lives.push_back({whole, first, last});
    }
    s_.lives[life].first = std::min(s_.lives[life].first, first);
    s_.lives[life].last = std::max(s_.lives[life].last, last);
  }

  const Graph& graph_;
  const BufferAssignment& assigned_;
  const PartOptions options_;
  PlacedParts s_;
  std::vector<std::vector<ValueId>> values_;  // by buffer that is no part: its values, and those of what lies inside
  std::vector<bool> is_unwritten_;            // by value: a part that was taken out in place
  // By concatenation, the bytes of it that are parts in place.
  std::map<ValueId, llvm::SmallVector<std::pair<int64_t, int64_t>, 4>> in_place_;
  std::vector<int32_t> life_of_;  // by value: of s_.lives, -1: none
  std::vector<int64_t> live_;     // by instruction, in device memory
  int64_t peak_ = 0;
};

}  // namespace

std::pair<int32_t, int64_t> PlacedParts::outermost(int32_t buffer) const {
  int64_t begin = 0;
  for (; of[buffer].buffer >= 0; buffer = of[buffer].buffer) begin += of[buffer].begin_bytes;
  return {buffer, begin};
}

std::vector<llvm::SmallVector<ValueId, 4>> joined_states(const Graph& graph, int64_t alignment) {
  std::vector<bool> is_free(graph.value_count(), false);
  for (const State& state : graph.states) is_free[index_of(state.value)] = state.space == MemorySpace::Device;
  std::vector<llvm::SmallVector<ValueId, 4>> joined;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const Node& node = graph.node(id);
    if (!node.op->operand_runs) continue;
    const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
    llvm::SmallVector<ValueId, 4> states;
    for (int64_t begin : node.op->operand_runs(OpCall(*node.op, node.attrs, types))) {
      const ValueId state = root_of(graph, node.operands[states.size()]);
      const int64_t begin_bytes = begin * dtype_bytes(graph.type(state).dtype);
      if (!is_free[index_of(state)] || llvm::is_contained(states, state) || begin_bytes % alignment != 0) break;
      states.push_back(state);
    }
    if (states.size() < 2 || states.size() != node.operands.size()) continue;
    for (ValueId state : states) is_free[index_of(state)] = false;
    joined.push_back(std::move(states));
  }
  return joined;
}

PlacedParts place_parts(const Graph& graph, const BufferAssignment& assigned, const PartOptions& options) {
  return PartPlacer(graph, assigned, options).run();
}

}  // namespace plimsoll
