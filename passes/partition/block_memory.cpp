#include "passes/partition/block_memory.h"

#include "ir/awaited.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/dependence.h"

#include "llvm/ADT/StringSet.h"

#include <algorithm>
#include <optional>

namespace plimsoll {
namespace {

// The first function of the block's program, laid out in its order.
class BlockStep {
 public:
  BlockStep(PlanDraft& draft, const BlockTrial& trial)
      : graph_(draft.program.functions.front()),
        trial_(trial),
        buffers_(assign_buffers(graph_, draft.writers(0), {}, *draft.catalog)),
        scales_(buffers_.buffers.size(), false),
        is_gradient_(buffers_.buffers.size(), false) {
    find_what_scales();
    for (NodeId id : instructions_of(graph_))
      if (graph_.node(id).phase == Phase::Forward)
        last_forward_ = std::max(last_forward_, buffers_.position[index_of(id)]);
  }

  void fill_in(StageBlock& block) const {
    std::vector<int64_t> live(static_cast<size_t>(buffers_.instructions) + 1, 0);
    for (size_t i = 0; i < buffers_.buffers.size(); ++i) {
      const Buffer& buffer = buffers_.buffers[i];
      if (buffer.space != MemorySpace::Device || buffer.kind == Buffer::Kind::State) continue;
      const bool stays = buffer.kind != Buffer::Kind::Transient || (!scales_[i] && is_kept(buffer));
      if (stays) {
        block.step_bytes += buffer.bytes;
        continue;
      }
      // Of several micro-batches each makes gradients beside the sums.
      if (is_gradient_[i] && trial_.keeps_gradients && trial_.micro_batches == 1) continue;
      const int64_t bytes = bytes_of(i);
      if (is_kept(buffer)) block.kept_bytes += bytes;
      if (is_kept(buffer) && is_received(graph_.value(buffer.first_value).producer)) block.received_bytes += bytes;
      live[static_cast<size_t>(buffer.first)] += bytes;
      live[static_cast<size_t>(buffer.last) + 1] -= bytes;
    }
    int64_t now = 0;
    for (int64_t change : live) block.peak_bytes = std::max(block.peak_bytes, now += change);
    if (!trial_.keeps_gradients) return;
    for (const StateGradient& gradient : graph_.gradients) block.step_bytes += graph_.type(gradient.value).bytes();
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (is_received_parameter(id)) block.step_bytes += graph_.type(graph_.node(id).results.front()).bytes();
  }

  // What goes over behind the block comes first, then the largest values, which cost least per byte where instructions
  // are bound by their bytes.
  void find_remats(StageBlock& block, llvm::function_ref<double(const Graph&, const Node&)> node_us) const {
    std::vector<ValueId> kept;
    for (NodeId id : instructions_of(graph_)) {
      const Node& node = graph_.node(id);
      if (node.phase == Phase::Forward && node.op->repeatable)
        for (ValueId result : node.results)
          if (is_kept_value(result)) kept.push_back(result);
    }
    std::stable_sort(kept.begin(), kept.end(),
                     [&](ValueId a, ValueId b) { return graph_.type(a).bytes() > graph_.type(b).bytes(); });
    const ValueId sent = sent_forward();
    if (sent != ValueId::None && !llvm::is_contained(kept, sent)) kept.insert(kept.begin(), sent);
    std::vector<bool> dropped(graph_.value_count(), false), runs_again(graph_.node_slots(), false);
    for (ValueId value : kept) {
      std::vector<NodeId> added;
      dropped[index_of(value)] = true;
      if (!make_again(value, dropped, runs_again, added)) {
        dropped[index_of(value)] = false;
        for (NodeId id : added) runs_again[index_of(id)] = false;
        continue;
      }
      double us = 0;
      for (NodeId id : added) us += node_us(graph_, graph_.node(id));
      if (value == sent && !is_kept_value(value))
        block.again_us = us;
      else
        block.remats.push_back({bytes_of(static_cast<size_t>(buffers_.buffer_of[index_of(value)])), us});
    }
    std::stable_sort(block.remats.begin(), block.remats.end(), [](const StageSaving& a, const StageSaving& b) {
      return a.us * static_cast<double>(b.bytes) < b.us * static_cast<double>(a.bytes);
    });
  }

 private:
  // A kept buffer is written in forward and read in backward.
  bool is_kept(const Buffer& buffer) const { return buffer.first <= last_forward_ && buffer.last > last_forward_; }

  bool is_kept_value(ValueId value) const {
    const int32_t at = buffers_.buffer_of[index_of(value)];
    if (at < 0 || root_of(graph_, value) != value || !scales_[static_cast<size_t>(at)]) return false;
    const Buffer& buffer = buffers_.buffers[static_cast<size_t>(at)];
    return buffer.first_value == value && buffer.kind == Buffer::Kind::Transient && is_kept(buffer);
  }

  // The last value of the block that forward sends; none where it is the last block.
  ValueId sent_forward() const {
    ValueId sent = ValueId::None;
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (graph_.node(id).op->name == "send" && graph_.node(id).phase == Phase::Forward)
        sent = root_of(graph_, graph_.node(id).operands.front());
    return sent;
  }

  int64_t bytes_of(size_t buffer) const {
    const int64_t bytes = buffers_.buffers[buffer].bytes;
    return scales_[buffer] ? (bytes + trial_.micro_batches - 1) / trial_.micro_batches : bytes;
  }

  bool is_received(NodeId id) const { return id != NodeId::None && graph_.node(id).op->name == "receive"; }
  bool is_received_parameter(NodeId id) const {
    return is_received(id) && llvm::is_contained(trial_.parameters, graph_.type(graph_.node(id).results.front()));
  }

  // What depends on the batch and is no gradient of a parameter has the rows of one micro-batch.
  void find_what_scales() {
    std::vector<ValueId> rows = graph_.inputs;
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (is_received(id) && !is_received_parameter(id)) rows.push_back(graph_.node(id).results.front());
    const std::vector<bool> dependent = dependent_on(rows);
    for (size_t value = 0; value < dependent.size(); ++value)
      if (const int32_t at = buffers_.buffer_of[value]; at >= 0 && dependent[value])
        scales_[static_cast<size_t>(at)] = true;
    for (const StateGradient& gradient : graph_.gradients)
      if (const int32_t at = buffers_.buffer_of[index_of(root_of(graph_, gradient.value))]; at >= 0)
        scales_[static_cast<size_t>(at)] = false, is_gradient_[static_cast<size_t>(at)] = true;
    for (int32_t workspace : buffers_.workspace_of)
      if (workspace >= 0) scales_[static_cast<size_t>(workspace)] = false;
  }

  std::vector<bool> dependent_on(llvm::ArrayRef<ValueId> sources) const {
    std::vector<bool> dependent(graph_.value_count(), false);
    for (ValueId source : sources) dependent[index_of(source)] = true;
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (any_in(graph_.node(id).operands, dependent))
        for (ValueId result : graph_.node(id).results) dependent[index_of(result)] = true;
    return dependent;
  }

  // Lists the instructions that have to run again besides those that do already. False where one of them may not.
  bool make_again(ValueId value, const std::vector<bool>& dropped, std::vector<bool>& runs_again,
                  std::vector<NodeId>& added) const {
    const ValueId root = root_of(graph_, value);
    const NodeId producer = graph_.value(root).producer;
    if (producer == NodeId::None || runs_again[index_of(producer)]) return true;
    const int32_t at = buffers_.buffer_of[index_of(root)];
    const bool is_there = at < 0 || buffers_.buffers[static_cast<size_t>(at)].kind != Buffer::Kind::Transient ||
                          (is_kept(buffers_.buffers[static_cast<size_t>(at)]) && !dropped[index_of(root)]);
    if (is_there) return true;
    const Node& node = graph_.node(producer);
    if (!node.op->repeatable || is_awaited(node)) return false;
    runs_again[index_of(producer)] = true;
    added.push_back(producer);
    return llvm::all_of(node.operands, [&](ValueId operand) {
      return operand == ValueId::None || make_again(operand, dropped, runs_again, added);
    });
  }

  const Graph& graph_;
  const BlockTrial& trial_;
  BufferAssignment buffers_;
  std::vector<bool> scales_;       // by buffer: has it the rows of one micro-batch?
  std::vector<bool> is_gradient_;  // by buffer: of a parameter
  int32_t last_forward_ = -1;
};

}  // namespace

void measure_memory(StageBlock& block, PlanDraft& step, const BlockTrial& trial,
                    llvm::function_ref<double(const Graph&, const Node&)> node_us) {
  llvm::StringSet<> counted;
  for (const Graph& function : step.program.functions)
    for (const State& state : function.states) {
      if (!counted.insert(function.value(state.value).name).second) continue;
      block.bytes += function.type(state.value).bytes();
      if (state.role == StateRole::Optimizer) block.host_bytes += function.type(state.value).bytes();
    }
  const BlockStep laid_out(step, trial);
  laid_out.fill_in(block);
  laid_out.find_remats(block, node_us);
}

}  // namespace plimsoll
