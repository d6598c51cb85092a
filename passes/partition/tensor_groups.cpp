#include "passes/partition/tensor_groups.h"

// A group grows from one dimension of one parameter: every op that reads or makes a divided value says what else is
// divided with it, until an op makes summands. A group in which some op wants a divided value whole is no candidate.
// The groups of all dimensions of all parameters are; the best are taken first, and what they take is no longer free.

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace plimsoll {
namespace {

// What matrix units compute in the time in which a link carries one byte; from 800 for a 4090 without peer access to
// 2,400 for an H200.
constexpr double flops_per_byte = 2000;
constexpr double state_bytes_per_element = 16;  // of a trained parameter: master, two moments, gradient
constexpr double passes_of_step = 3;            // forward once, backward twice

class GroupFinder {
 public:
  GroupFinder(const Graph& graph, int64_t ranks, const MayCutFn& may_cut)
      : graph_(graph), ranks_(ranks), may_cut_(may_cut), parameters_(graph.value_count(), nullptr) {
    for (const State& state : graph.states)
      if (state.role == StateRole::Parameter) parameters_[index_of(state.value)] = &state;
  }

  TensorGroups run(Rows rows) {
    std::vector<TensorGroup> candidates;
    for (const State& state : graph_.states) {
      const Type& type = graph_.type(state.value);
      if (state.role != StateRole::Parameter || type.rank() < 2) continue;
      for (int64_t dim = 0; dim < type.rank(); ++dim)
        if (std::optional<TensorGroup> group = grow(state.value, whole_dim(type, dim)))
          candidates.push_back(std::move(*group));
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const TensorGroup& a, const TensorGroup& b) { return a.gain() > b.gain(); });
    for (TensorGroup& candidate : candidates) try_take(std::move(candidate));
    explain_whole();
    if (rows == Rows::Divided) divide_rows();
    return std::move(found_);
  }

 private:
  static Cut whole_dim(const Type& type, int64_t dim) { return {dim, {type.shape[static_cast<size_t>(dim)]}}; }

  void try_take(TensorGroup candidate) {
    if (candidate.gain() <= 0) return;
    if (overlaps_taken(candidate)) {
      if (cuts_.count(candidate.seed)) return;
      std::optional<TensorGroup> smaller = grow(candidate.seed, candidate.cuts.at(candidate.seed));
      if (!smaller || smaller->gain() <= 0) return;
      candidate = std::move(*smaller);
    }
    for (const auto& [value, cut] : candidate.cuts) cuts_[value] = cut;
    for (const auto& [id, call] : candidate.calls) {
      nodes_.insert(id);
      if (call.sums) sums_.insert(graph_.node(id).results[0]);
    }
    found_.taken.push_back(std::move(candidate));
  }

  bool overlaps_taken(const TensorGroup& group) const {
    return llvm::any_of(group.cuts, [&](const auto& each) { return cuts_.count(each.first) > 0; }) ||
           llvm::any_of(group.calls, [&](const auto& each) { return nodes_.count(each.first) > 0; });
  }

  // ---- Rows ----

  // The first dimension that has more than one element: its parts are runs of memory.
  static std::optional<Cut> leading_rows(const Type& type) {
    for (int64_t dim = 0; dim + 1 < type.rank(); ++dim)
      if (type.shape[static_cast<size_t>(dim)] > 1) return whole_dim(type, dim);
    return std::nullopt;
  }

  void divide_rows() {
    for (ValueId sum : sums_) {
      const std::optional<Cut> rows = leading_rows(graph_.type(sum));
      if (!rows || !divides_evenly(*rows, ranks_) || cuts_.count(sum)) continue;
      if (std::optional<TensorGroup> between = grow_from(sum, *rows, nullptr)) take_rows(std::move(*between));
    }
  }

  void take_rows(TensorGroup group) {
    for (const auto& [value, cut] : group.cuts) cuts_[value] = cut;
    for (const auto& each : group.calls) nodes_.insert(each.first);
    found_.rows.push_back(std::move(group));
  }

  // ---- Growing ----

  // Where some op needs larger parts than sizes say, such as whole heads, the group grows again with these.
  std::optional<TensorGroup> grow(ValueId seed, Cut cut) {
    for (std::optional<int64_t> larger; can_divide(cut, ranks_); cut = with_part(seed, cut.dim, *larger)) {
      const int64_t part = part_size(cut, ranks_);
      larger.reset();
      std::optional<TensorGroup> group = grow_from(seed, cut, &larger);
      if (!larger || *larger <= part) return cuts_otherwise({seed}, {cut}) ? std::nullopt : std::move(group);
    }
    return std::nullopt;
  }

  Cut with_part(ValueId value, int64_t dim, int64_t part) const {
    return cut_in_parts(dim, {graph_.type(value).shape[static_cast<size_t>(dim)]}, {part}, ranks_);
  }

  // `larger`, unless null: the part of the seed's dimension that an op asks for.
  std::optional<TensorGroup> grow_from(ValueId seed, const Cut& cut, std::optional<int64_t>* larger) {
    TensorGroup group;
    group.seed = seed;
    group.cuts[seed] = cut;
    std::vector<ValueId> open{seed};
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      for (NodeId id : neighbours(value))
        if (!group.calls.count(id) && !nodes_.count(id)) try_join(group, id, value, open, larger);
      if (larger && *larger) return std::nullopt;
    }
    return weigh(group) ? std::optional(std::move(group)) : std::nullopt;
  }

  llvm::SmallVector<NodeId, 4> neighbours(ValueId value) const {
    llvm::SmallVector<NodeId, 4> nodes(graph_.value(value).users.begin(), graph_.value(value).users.end());
    if (graph_.value(value).producer != NodeId::None) nodes.push_back(graph_.value(value).producer);
    return nodes;
  }

  // The node works on parts if what it makes of one divided operand or result agrees with all that is divided so far.
  void try_join(TensorGroup& group, NodeId id, ValueId value, std::vector<ValueId>& open,
                std::optional<int64_t>* larger) {
    const Node& node = graph_.node(id);
    const bool is_result = graph_.value(value).producer == id;
    const auto& side = is_result ? llvm::ArrayRef<ValueId>(node.results) : llvm::ArrayRef<ValueId>(node.operands);
    const CutAt known{is_result ? CutAt::Side::Result : CutAt::Side::Operand,
                      static_cast<size_t>(llvm::find(side, value) - side.begin()), group.cuts.at(value)};
    const std::optional<DividedCall>& call = divided(id, known);
    if (call && larger)
      *larger = std::max(*larger, larger_part(group, known, is_result ? call->results : call->operands));
    if (!call || !agrees(group, node.operands, call->operands) || !agrees(group, node.results, call->results)) return;
    if (cuts_sum_across_runs(node.operands, call->operands) || cuts_otherwise(node.operands, call->operands)) return;
    cut_values(group, node.operands, call->operands, open);
    cut_values(group, node.results, call->results, open);
    group.calls.emplace(id, *call);
  }

  // What a dimension of one parameter divides, those of others divide too: groups that grow into most of a model meet
  // the same calls again.
  const std::optional<DividedCall>& divided(NodeId id, const CutAt& known) {
    const auto is_known = [&](const auto& call) {
      return call.first.side == known.side && call.first.index == known.index && call.first.cut == known.cut;
    };
    auto& calls = divided_[id];
    if (const auto found = llvm::find_if(calls, is_known); found != calls.end()) return found->second;
    const Node& node = graph_.node(id);
    const llvm::SmallVector<const Type*, 4> operands = operand_types(graph_, node);
    calls.emplace_back(known, divide_call(*node.op, OpCall(*node.op, node.attrs, operands), result_types(graph_, node),
                                          known, ranks_));
    return calls.back().second;
  }

  // Of the seed, what makes the known part as large as the node needs it. None where it is so, or cannot be.
  std::optional<int64_t> larger_part(const TensorGroup& group, const CutAt& known,
                                     llvm::ArrayRef<std::optional<Cut>> side) const {
    const std::optional<Cut>& needed = side[known.index];
    if (!needed || needed->dim != known.cut.dim || needed->blocks != known.cut.blocks) return std::nullopt;
    const int64_t block = known.cut.blocks[0], part = part_of_block(*needed, 0, ranks_);
    if (part <= part_of_block(known.cut, 0, ranks_)) return std::nullopt;
    const int64_t of_seed = group.cuts.at(group.seed).blocks[0];
    return (part * of_seed + block - 1) / block;
  }

  bool agrees(const TensorGroup& group, llvm::ArrayRef<ValueId> values, llvm::ArrayRef<std::optional<Cut>> cuts) const {
    std::map<ValueId, Cut> here;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == ValueId::None || !cuts[i]) continue;
      const auto in_group = group.cuts.find(values[i]);
      if (in_group != group.cuts.end() ? in_group->second != *cuts[i] : cuts_.count(values[i]) > 0) return false;
      const auto [at, fresh] = here.try_emplace(values[i], *cuts[i]);
      if (!fresh && at->second != *cuts[i]) return false;
    }
    return true;
  }

  // A sum comes in pieces that are runs of memory. In other parts it is read whole, and each rank takes its part of
  // what is made of it.
  bool cuts_sum_across_runs(llvm::ArrayRef<ValueId> values, llvm::ArrayRef<std::optional<Cut>> cuts) const {
    for (size_t i = 0; i < values.size(); ++i)
      if (cuts[i] && sums_.count(values[i]) && !parts_are_runs(values[i], *cuts[i])) return true;
    return false;
  }

  // A parameter that is not to be cut so is read whole by the node, which then stays out of the group.
  bool cuts_otherwise(llvm::ArrayRef<ValueId> values, llvm::ArrayRef<std::optional<Cut>> cuts) const {
    for (size_t i = 0; i < values.size() && may_cut_; ++i)
      if (values[i] != ValueId::None && cuts[i] && is_parameter(values[i]) &&
          !may_cut_(*parameters_[index_of(values[i])], *cuts[i]))
        return true;
    return false;
  }

  void cut_values(TensorGroup& group, llvm::ArrayRef<ValueId> values, llvm::ArrayRef<std::optional<Cut>> cuts,
                  std::vector<ValueId>& open) const {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == ValueId::None || !cuts[i] || !group.cuts.emplace(values[i], *cuts[i]).second) continue;
      if (graph_.value(values[i]).producer != NodeId::None || is_parameter(values[i])) open.push_back(values[i]);
    }
  }

  bool is_parameter(ValueId value) const { return parameters_[index_of(value)] != nullptr; }

  // ---- Weighing ----

  // Of a value, what a rank does not have.
  double saved_share(const Cut& cut) const {
    const int64_t size = std::accumulate(cut.blocks.begin(), cut.blocks.end(), int64_t{0});
    return 1 - static_cast<double>(part_size(cut, ranks_)) / static_cast<double>(size);
  }

  // Of the work of a node, what a rank does not do.
  double saved_share(const DividedCall& call) const {
    double saved = 1;
    for (const std::optional<Cut>& cut : llvm::concat<const std::optional<Cut>>(call.operands, call.results))
      if (cut) saved = std::min(saved, saved_share(*cut));
    return saved;
  }

  // False where the group is no candidate.
  bool weigh(TensorGroup& group) const {
    for (const auto& [value, cut] : group.cuts)
      if (!weigh_value(group, value, cut)) return false;
    for (const auto& [id, call] : group.calls) {
      const Node& node = graph_.node(id);
      group.saved_flops += passes_of_step * saved_share(call) * flops_of(graph_, node);
      // A sum sends each byte twice, and its gradient is a sum again.
      if (call.sums)
        group.sent_bytes +=
            4 * (1 - 1 / static_cast<double>(ranks_)) * static_cast<double>(graph_.type(node.results[0]).bytes());
    }
    return true;
  }

  bool weigh_value(TensorGroup& group, ValueId value, const Cut& cut) const {
    const Type& type = graph_.type(value);
    if (is_parameter(value)) {
      const double bytes = parameters_[index_of(value)]->trained ? state_bytes_per_element
                                                                 : static_cast<double>(dtype_bytes(type.dtype));
      group.saved_state_bytes += saved_share(cut) * bytes * static_cast<double>(type.elements());
      return !is_read_whole(group, value);
    }
    if (sums_.count(value) && !parts_are_runs(value, cut)) return false;
    if (group.calls.count(graph_.value(value).producer) || sums_.count(value)) return !is_read_whole(group, value);
    return cut.blocks.size() == 1;  // the whole is there, and each rank takes its part
  }

  bool is_read_whole(const TensorGroup& group, ValueId value) const {
    const auto is_it = [&](const auto& each) { return each.value == value; };
    if (llvm::any_of(graph_.outputs, is_it) || llvm::any_of(graph_.updates, is_it)) return true;
    return llvm::any_of(graph_.value(value).users, [&](NodeId user) {
      const auto call = group.calls.find(user);
      if (call == group.calls.end()) return !reads_gathered_rows(value, group.cuts.at(value), user);
      const Node& node = graph_.node(user);
      for (size_t i = 0; i < node.operands.size(); ++i)
        if (node.operands[i] == value && !call->second.operands[i]) return true;
      return false;
    });
  }

  // Matmuls that are divided already read the rows of all ranks, one part after the other.
  bool reads_gathered_rows(ValueId value, const Cut& cut, NodeId reader) const {
    return nodes_.count(reader) > 0 && !is_parameter(value) && parts_are_runs(value, cut);
  }

  // Is a part a run of memory, and the ranks' parts one after the other?
  bool parts_are_runs(ValueId value, const Cut& cut) const {
    const llvm::ArrayRef<int64_t> dims = graph_.type(value).shape;
    return element_count(dims.take_front(static_cast<size_t>(cut.dim))) == 1 && cut.blocks.size() == 1;
  }

  void explain_whole() {
    for (const State& state : graph_.states) {
      const Type& type = graph_.type(state.value);
      if (state.role != StateRole::Parameter || type.rank() < 2 || cuts_.count(state.value)) continue;
      std::optional<TensorGroup> best;
      for (int64_t dim = 0; dim < type.rank(); ++dim)
        if (std::optional<TensorGroup> group = grow(state.value, whole_dim(type, dim)))
          if (!best || group->gain() > best->gain()) best = std::move(group);
      std::string why = "no dimension of " + to_string(type) + " divides by " + std::to_string(ranks_) +
                        " through all ops that follow, up to a sum";
      if (best)
        why = "dividing it would send " + std::to_string(static_cast<int64_t>(best->sent_bytes)) +
              " bytes a step and save no more";
      found_.whole.push_back({state.value, why});
    }
  }

  const Graph& graph_;
  int64_t ranks_;
  const MayCutFn& may_cut_;
  std::vector<const State*> parameters_;  // by value
  std::map<NodeId, std::vector<std::pair<CutAt, std::optional<DividedCall>>>> divided_;
  TensorGroups found_;
  std::map<ValueId, Cut> cuts_;  // of all groups that are taken
  std::set<NodeId> nodes_;
  std::set<ValueId> sums_;  // of which each rank makes a summand
};

}  // namespace

double TensorGroup::gain() const { return saved_state_bytes + saved_flops / flops_per_byte - sent_bytes; }

TensorGroups choose_tensor_groups(const Graph& graph, int64_t ranks, Rows rows, const MayCutFn& may_cut) {
  return GroupFinder(graph, ranks, may_cut).run(rows);
}

}  // namespace plimsoll
