#include "passes/remat/remat_problem.h"

#include "ir/awaited.h"
#include "ir/support/align.h"
#include "passes/analysis/buffer_assignment.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/transfer_waits.h"

#include <algorithm>
#include <set>

namespace plimsoll {
namespace {

// Values that backward makes are offered only where the instructions up to a reader are so many, without another that
// reads them, and where all of these values together are at some place such a share of what the largest instruction
// holds.
constexpr int32_t min_instructions_between = 32;
constexpr double min_kept_share = 0.25;

// The problem's values are the root values with bytes of their own in the arena's transient part.
class ProblemBuilder {
 public:
  ProblemBuilder(const Graph& graph, llvm::ArrayRef<NodeId> writers, const DeviceDescription& device,
                 const KernelCatalog& catalog)
      : graph_(graph),
        device_(device),
        catalog_(catalog),
        position_(graph.node_slots(), -1),
        value_of_(graph.value_count(), -1),
        written_(graph.value_count()) {
    instructions_ = instructions_of(graph);
    for (const CopyInFlight& transfer : transfers_in_flight(graph, writers)) in_flight_.insert(transfer.copy);
    problem_.duplex_shares = device.duplex_shares();
    problem_.copy_interference = device.interference_of_copies();
    problem_.collective_shares = device.collective_shares();
    for (ValueId input : graph.inputs) add_value(input, graph.type(input).bytes());
    for (const Update& update : graph.updates) add_value(update.value, 0);
    for (size_t i = 0; i < instructions_.size(); ++i) position_[index_of(instructions_[i])] = static_cast<int32_t>(i);
    for (size_t i = 0; i < writers.size(); ++i)
      written_[index_of(graph.updates[i].state)].push_back(
          {elements_of(graph.node(writers[i]), graph.updates[i].value), position_[index_of(writers[i])]});
    for (NodeId id : instructions_) add_op(id);
    for (NodeId writer : writers) {
      RematOp& op = problem_.ops[position_[index_of(writer)]];
      op.repeatable = false;
      op.not_before = position_[index_of(writer)];
    }
    for (const Output& output : graph.outputs)
      if (int32_t v = value(output.value); v >= 0) problem_.live_out[v] = 1;
  }

  GraphRematProblem take() {
    return {std::move(problem_), std::move(values_), std::move(largest_), std::move(dearest_)};
  }

  // Offers the values that forward saves for backward, and those of backward where these are asked for.
  void add_offloads(int64_t host_bytes, Offered offered) {
    if (device_.to_host_gb_per_s <= 0 || device_.from_host_gb_per_s <= 0) return;
    std::vector<Offload> offloads = offloads_of([&](size_t i, ValueId result) { return is_saved(i, result); });
    std::vector<Offload> of_backward;
    if (offered == Offered::AlsoOfBackward && !has_collectives_ && backward_keeps_much())
      of_backward = offloads_of([&](size_t i, ValueId result) { return kept_in_backward(i, result).count > 0; });
    // Of many values of several ranks' programs those that take longest to make are offered: forward is as long as
    // copies take, and what costs less to make again is no better on the host.
    if (has_collectives_ && offloads.size() > max_offloads) keep_most_gain(offloads);
    const int64_t saved_bytes = take_largest(offloads, largest_), kept_bytes = take_largest(of_backward, largest_);
    problem_.offloads = largest_;
    if (saved_bytes + kept_bytes <= host_bytes) return;
    llvm::append_range(offloads, of_backward);
    keep_dearest(offloads, host_bytes);
    take_largest(offloads, dearest_);
    for (const OffloadOption& option : dearest_)
      if (llvm::none_of(largest_, [&](const OffloadOption& other) { return other.value == option.value; }))
        problem_.offloads.push_back(option);
  }

 private:
  struct Offload {
    int64_t bytes;
    double made_us;
    OffloadOption option;
  };

  // Of results for which `is_offered` and whose copies take longer than a few launches.
  template <typename IsOffered>
  std::vector<Offload> offloads_of(IsOffered is_offered) const {
    std::vector<Offload> offloads;
    for (size_t i = 0; i < instructions_.size(); ++i)
      for (ValueId result : graph_.node(instructions_[i]).results) {
        const int64_t bytes = graph_.type(result).bytes();
        const double to_host = 1e-3 * static_cast<double>(bytes) / device_.to_host_gb_per_s;
        const double to_device = 1e-3 * static_cast<double>(bytes) / device_.from_host_gb_per_s;
        if (std::min(to_host, to_device) >= device_.min_copy_us() && is_offered(i, result))
          offloads.push_back({rounded(bytes),
                              problem_.ops[i].cost_us,
                              {value(result), to_host + device_.launch_us, to_device + device_.launch_us}});
      }
    return offloads;
  }

  // Returns the bytes of the options it added.
  static int64_t take_largest(llvm::ArrayRef<Offload> offloads, std::vector<OffloadOption>& options) {
    std::vector<Offload> largest = offloads.vec();
    std::stable_sort(largest.begin(), largest.end(),
                     [](const Offload& a, const Offload& b) { return a.bytes > b.bytes; });
    largest.resize(std::min(largest.size(), max_offloads));
    int64_t bytes = 0;
    for (const Offload& offload : largest) {
      options.push_back(offload.option);
      bytes += offload.bytes;
    }
    return bytes;
  }

  // Keeps the values whose remats cost most beyond what computing loses to their copies.
  void keep_most_gain(std::vector<Offload>& offloads) const {
    const auto gain_us = [&](const Offload& offload) {
      return offload.made_us - problem_.copy_interference.us(offload.option.to_host_us) -
             problem_.copy_interference.us(offload.option.to_device_us);
    };
    std::stable_sort(offloads.begin(), offloads.end(),
                     [&](const Offload& a, const Offload& b) { return gain_us(a) > gain_us(b); });
    offloads.resize(std::min(offloads.size(), max_offloads));
    llvm::erase_if(offloads, [&](const Offload& offload) { return gain_us(offload) <= 0; });
  }

  // Keeps the values that take longest to make per byte, as many as there is room for.
  static void keep_dearest(std::vector<Offload>& offloads, int64_t room) {
    std::stable_sort(offloads.begin(), offloads.end(), [](const Offload& a, const Offload& b) {
      return a.made_us * static_cast<double>(b.bytes) > b.made_us * static_cast<double>(a.bytes);
    });
    llvm::erase_if(offloads, [&](const Offload& offload) {
      if (offload.bytes > room) return true;
      room -= offload.bytes;
      return false;
    });
  }

  static constexpr size_t max_offloads = 200;  // each one makes every change of the search slower

  // Whether the instruction computes the result, which has bytes of the arena.
  bool computes_in(Phase phase, size_t instruction, ValueId result) const {
    const Node& node = graph_.node(instructions_[instruction]);
    return node.phase == phase && node.op->engine == Engine::Compute && problem_.value_bytes[value(result)] > 0;
  }

  bool is_saved(size_t producer, ValueId result) const {
    return computes_in(Phase::Forward, producer, result) &&
           llvm::any_of(readers_of(graph_, result),
                        [&](NodeId reader) { return graph_.node(reader).phase != Phase::Forward; });
  }

  // The instructions between two that make or read a value, themselves not counted.
  struct Gap {
    int32_t first = 0, count = 0;
  };

  // The longest gap of a value of backward, where that is long.
  Gap kept_in_backward(size_t producer, ValueId result) const {
    if (!computes_in(Phase::Backward, producer, result)) return {};
    llvm::SmallVector<int32_t, 4> touched{static_cast<int32_t>(producer)};
    for (NodeId reader : readers_of(graph_, result)) touched.push_back(position_[index_of(reader)]);
    llvm::sort(touched);
    Gap longest;
    for (size_t i = 1; i < touched.size(); ++i)
      if (const int32_t count = touched[i] - touched[i - 1] - 1; count > longest.count)
        longest = {touched[i - 1] + 1, count};
    return longest.count >= min_instructions_between ? longest : Gap();
  }

  // Such as the gradient of a table that the head and the lookups share, or all gradients where a norm of all of them
  // comes before the first update.
  bool backward_keeps_much() const {
    std::vector<int64_t> change(instructions_.size() + 1, 0);  // of kept bytes, by instruction
    int64_t largest = 0, kept = 0, most_kept = 0;
    for (size_t i = 0; i < instructions_.size(); ++i) {
      const RematOp& op = problem_.ops[i];
      int64_t bytes = op.workspace_bytes;
      for (int32_t v : op.reads) bytes += problem_.value_bytes[v];
      for (int32_t v : op.writes) bytes += problem_.value_bytes[v];
      for (const InPlaceReuse& pair : op.in_place) bytes -= problem_.value_bytes[pair.written];
      largest = std::max(largest, bytes);
      for (ValueId result : graph_.node(instructions_[i]).results) {
        const Gap gap = kept_in_backward(i, result);
        if (gap.count == 0) continue;
        change[gap.first] += problem_.value_bytes[value(result)];
        change[gap.first + gap.count] -= problem_.value_bytes[value(result)];
      }
    }
    for (int64_t bytes : change) most_kept = std::max(most_kept, kept += bytes);
    return static_cast<double>(most_kept) >= min_kept_share * static_cast<double>(largest);
  }

  int32_t value(ValueId id) const { return value_of_[index_of(root_of(graph_, id))]; }

  int64_t rounded(int64_t bytes) const { return align_up(bytes, device_.alignment_bytes); }

  void add_value(ValueId id, int64_t bytes) {
    value_of_[index_of(id)] = static_cast<int32_t>(problem_.value_bytes.size());
    problem_.value_bytes.push_back(rounded(bytes));
    problem_.live_out.push_back(0);
    values_.push_back(id);
  }

  void add_op(NodeId id) {
    const Node& node = graph_.node(id);
    RematOp op;
    const KernelCandidate kernel = chosen_kernel(graph_, node, catalog_);
    op.cost_us = predicted_us(graph_, node, kernel, device_);
    op.workspace_bytes = rounded(kernel.workspace_bytes);
    op.engine = is_copy(node.op->engine) ? node.op->engine : Engine::Compute;
    op.repeatable = node.op->repeatable && (node.phase != Phase::Update || is_fetched(node));
    for (ValueId operand : node.operands)
      if (operand != ValueId::None) add_read(op, node, operand);
    for (ValueId result : node.results) {
      const bool on_host = written_space(node.op->engine) == MemorySpace::Host;
      if (value_of_[index_of(result)] < 0)
        add_value(result, on_host ? 0 : std::max<int64_t>(graph_.type(result).bytes(), 1));
      op.writes.push_back(value(result));
    }
    for (const InPlacePair& pair : in_place_pairs(graph_, node)) add_reuse(op, pair);
    if (is_awaited(node))
      op.cost_us = cost_of_transfer(id, op.cost_us);
    else if (node.op->engine == Engine::Ranks)
      make_collective(op, node);
    problem_.ops.push_back(std::move(op));
  }

  // When the other stage comes is not known. What it sends in time costs what computing loses beside the link.
  double cost_of_transfer(NodeId id, double alone_us) const {
    return in_flight_.count(id) ? device_.collective_interference * alone_us / device_.collective_share : alone_us;
  }

  // The search for remats sees what computing loses to a collective; its interval and the link come later. One that
  // writes over what it reads stays where it is.
  void make_collective(RematOp& op, const Node& node) {
    op.link_us = op.cost_us;
    op.cost_us = problem_.collective_shares.min_cost_us(op.link_us);
    has_collectives_ = true;
    op.kind = static_cast<int32_t>(llvm::find(collectives_, node.op) - collectives_.begin());
    if (op.kind == static_cast<int32_t>(collectives_.size())) collectives_.push_back(node.op);
    if (!op.in_place.empty()) op.not_before = problem_.op_count();
  }

  // Elements of a state that a node reads or writes. Copies may have a part of them.
  struct Elements {
    int64_t begin, end;
    bool meets(const Elements& other) const { return begin < other.end && other.begin < end; }
  };
  Elements elements_of(const Node& node, ValueId value) const {
    const int64_t elements = graph_.type(value).elements();
    if (!is_copy(node.op->engine) || !node.attrs.has("begin")) return {0, std::max<int64_t>(elements, 1)};
    const int64_t begin = node.attrs.get_int("begin");
    return {begin, begin + graph_.type(node.results[0]).elements()};
  }

  void add_read(RematOp& op, const Node& node, ValueId operand) {
    if (int32_t v = value(operand); v >= 0) {
      if (!llvm::is_contained(op.reads, v)) op.reads.push_back(v);
      return;
    }
    for (const auto& [elements, at] : written_[index_of(root_of(graph_, operand))])
      if (elements.meets(elements_of(node, operand))) op.remat_until = std::min(op.remat_until, at);
  }

  // Does the node make its results of nothing that a step computes? Updates repeat such nodes alone.
  bool is_fetched(const Node& node) const {
    return node.op->engine == Engine::ToDevice || llvm::all_of(node.operands, [&](ValueId operand) {
             if (operand == ValueId::None) return true;
             const NodeId producer = graph_.value(root_of(graph_, operand)).producer;
             return producer != NodeId::None && !is_instruction(graph_.node(producer));
           });
  }

  // The search itself follows where an operand is used last.
  void add_reuse(RematOp& op, const InPlacePair& pair) {
    const int32_t written = value(pair.result), read = value(pair.root);
    if (read < 0) return;
    if (problem_.value_bytes[written] != problem_.value_bytes[read]) return;
    if (llvm::none_of(op.in_place,
                      [&](const InPlaceReuse& other) { return other.written == written || other.read == read; }))
      op.in_place.push_back({written, read});
  }

  const Graph& graph_;
  const DeviceDescription& device_;
  const KernelCatalog& catalog_;
  RematProblem problem_;
  std::vector<ValueId> values_;
  std::vector<OffloadOption> largest_, dearest_;
  std::vector<NodeId> instructions_;
  std::vector<int32_t> position_;  // by node
  std::set<NodeId> in_flight_;     // sends and receives beside computing
  bool has_collectives_ = false;
  llvm::SmallVector<const OpDef*, 4> collectives_;  // by kind
  std::vector<int32_t> value_of_;                   // by value of the graph; -1: a view, or persistent
  // By state value: the elements that an instruction writes, and which one.
  std::vector<llvm::SmallVector<std::pair<Elements, int32_t>, 1>> written_;
};

}  // namespace

GraphRematProblem graph_remat_problem(const Graph& graph, llvm::ArrayRef<NodeId> writers,
                                      const DeviceDescription& device, const KernelCatalog& catalog, int64_t host_bytes,
                                      Offered offered) {
  ProblemBuilder builder(graph, writers, device, catalog);
  if (host_bytes > 0) builder.add_offloads(host_bytes, offered);
  return builder.take();
}

}  // namespace plimsoll
