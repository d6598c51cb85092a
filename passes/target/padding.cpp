#include "passes/target/padding.h"

#include "ir/support/align.h"
#include "passes/rewrite/match.h"
#include "passes/target/left_products.h"
#include "passes/target/min_cut.h"
#include "passes/target/padding_numbers.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

// From one dimension on, ops' records say what is longer with it (OpDef::divide, asked for one rank whose part reaches
// beyond the end), which gives all nodes that could work on padding. Which of them do is a minimum cut: a product with
// odd rows that stays as it is costs the time that padding would save, and a value that is made on one side and read on
// the other costs a copy.

namespace plimsoll {
namespace {

// What matrix units of 16 bits compute while memory moves a byte: 190 for an H200, 260 for an H100, 170 for a 4090.
constexpr double flops_per_byte = 200;
// How many times longer, at least, a product takes whose rows are odd (fitted in runtime/kernels/matmul.cpp), where
// multiplying bounds it and where reading and writing does.
constexpr double slowdown_of_odd_rows = 3, slowdown_of_odd_bytes = 6;
constexpr int64_t not_here_bytes = int64_t{1} << 50;
constexpr size_t max_calls = 200'000;  // of one choice; larger ones stay unpadded, so that planning stays fast

bool all_are_same(llvm::ArrayRef<int64_t> list) {
  return llvm::all_of(list, [&](int64_t each) { return each == list.front(); });
}

// Dimensions of elementwise operands are counted from the right, and those of one element are repeated.
std::optional<DividedCall> padded_elementwise(const Graph& graph, const Node& node, const Cut& known, size_t own_rank) {
  const size_t from_right = own_rank - static_cast<size_t>(known.dim);
  const Shape& whole = graph.type(node.results[0]).shape;
  const auto cut_of = [&](ValueId value) -> std::optional<Cut> {
    const Shape& shape = graph.type(value).shape;
    if (shape.size() < from_right || shape[shape.size() - from_right] != whole[whole.size() - from_right])
      return std::nullopt;
    return Cut{static_cast<int64_t>(shape.size() - from_right), known.blocks, known.parts};
  };
  DividedCall call;
  for (ValueId operand : node.operands) call.operands.push_back(cut_of(operand));
  call.results = {cut_of(node.results[0])};
  call.attrs = node.attrs;
  return call;
}

// visit(dimension) for each that is padded.
template <typename Visit>
void for_each_dim(llvm::ArrayRef<ValueId> values, llvm::ArrayRef<std::optional<Cut>> cuts, Visit visit) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != ValueId::None && cuts[i]) visit(DimOfValue(values[i], cuts[i]->dim));
}

// Of a layer with fewer columns on one side than a 16-byte word has, these rows stay odd whatever the others get, and
// kernels for narrow sides take them as they are.
bool is_narrow_layer(const Graph& graph, const Node& node, int64_t multiple) {
  constexpr int64_t most_wide = 256;
  if (node.op->name != llvm::StringRef("linear")) return false;
  const int64_t inner = graph.type(node.operands[0]).shape.back(), columns = graph.type(node.results[0]).shape.back();
  return std::min(inner, columns) < multiple && std::max(inner, columns) <= most_wide;
}

class PaddingFinder {
 public:
  PaddingFinder(const Graph& graph, const PaddingCosts& costs) : graph_(graph), costs_(costs) {}

  std::optional<PaddingChoice> run(DimOfValue seed, std::set<DimOfValue>& seen) {
    const int64_t size = graph_.type(seed.first).shape[static_cast<size_t>(seed.second)];
    grow(seed, {seed.second, {size}, {align_up(size, costs_.multiple)}});
    for (const auto& each : cuts_) seen.insert(each.first);
    if (calls_.size() > max_calls) return std::nullopt;
    const NodeOrder order(graph_);
    llvm::stable_sort(calls_, [&](const PaddedCall& a, const PaddedCall& b) { return order[a.node] < order[b.node]; });
    drop_unknown_padding();
    keep_calls(cheapest());
    drop_unknown_padding();
    PaddingChoice found = weighed();
    if (found.saved_bytes <= found.copied_bytes) return std::nullopt;
    found.calls = std::move(calls_);
    return found;
  }

 private:
  // ---- All nodes that could work on padding ----

  void grow(DimOfValue seed, const Cut& cut) {
    cuts_[seed] = cut;
    std::vector<DimOfValue> open{seed};
    while (!open.empty() && calls_.size() <= max_calls) {
      const DimOfValue at = open.back();
      open.pop_back();
      llvm::SmallVector<NodeId, 4> nodes(graph_.value(at.first).users.begin(), graph_.value(at.first).users.end());
      if (graph_.value(at.first).producer != NodeId::None) nodes.push_back(graph_.value(at.first).producer);
      for (NodeId id : nodes)
        if (!joined_.count({id, at})) try_join(id, at, open);
    }
  }

  void try_join(NodeId id, DimOfValue at, std::vector<DimOfValue>& open) {
    const Node& node = graph_.node(id);
    std::optional<DividedCall> call = call_with(id, at);
    if (!call || call->make || !agrees(node.operands, call->operands) || !agrees(node.results, call->results)) return;
    add_dims(id, node.operands, call->operands, open);
    add_dims(id, node.results, call->results, open);
    calls_.push_back({id, std::move(*call)});
  }

  std::optional<DividedCall> call_with(NodeId id, DimOfValue at) const {
    const Node& node = graph_.node(id);
    const Cut& cut = cuts_.at(at);
    const bool is_result = graph_.value(at.first).producer == id;
    const auto side = is_result ? llvm::ArrayRef<ValueId>(node.results) : llvm::ArrayRef<ValueId>(node.operands);
    const auto index = static_cast<size_t>(llvm::find(side, at.first) - side.begin());
    const PaddedKind kind = padded_kind(graph_, node);
    if (kind == PaddedKind::None) return std::nullopt;
    if (kind == PaddedKind::Elementwise)
      return padded_elementwise(graph_, node, cut, graph_.type(at.first).shape.size());
    const CutAt known{is_result ? CutAt::Side::Result : CutAt::Side::Operand, index, cut};
    constexpr int64_t ranks = 1;
    return node.op->divide(OpCall(*node.op, node.attrs, operand_types(graph_, node)), result_types(graph_, node), known,
                           ranks);
  }

  // Does what the node makes of one dimension agree with all that is padded so far? Blocks are equally long, so that a
  // reshape brings them side by side.
  bool agrees(llvm::ArrayRef<ValueId> values, llvm::ArrayRef<std::optional<Cut>> cuts) const {
    std::map<DimOfValue, Cut> here;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == ValueId::None || !cuts[i]) continue;
      const Cut& cut = *cuts[i];
      if (cut.parts.size() != cut.blocks.size() || !all_are_same(cut.parts) || !all_are_same(cut.blocks)) return false;
      const auto known = cuts_.find({values[i], cut.dim});
      if (known != cuts_.end() && known->second != cut) return false;
      const auto [at, fresh] = here.try_emplace({values[i], cut.dim}, cut);
      if (!fresh && at->second != cut) return false;
    }
    // A value that is read twice is padded in both places.
    for (const auto& each : here)
      for (size_t i = 0; i < values.size(); ++i)
        if (values[i] == each.first.first && (!cuts[i] || cuts[i]->dim != each.first.second)) return false;
    return true;
  }

  void add_dims(NodeId id, llvm::ArrayRef<ValueId> values, llvm::ArrayRef<std::optional<Cut>> cuts,
                std::vector<DimOfValue>& open) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == ValueId::None || !cuts[i]) continue;
      const DimOfValue at{values[i], cuts[i]->dim};
      joined_.insert({id, at});
      if (cuts_.emplace(at, *cuts[i]).second) open.push_back(at);
    }
  }

  // ---- What stands in the padding ----

  void keep_calls(const std::vector<bool>& kept) {
    std::vector<PaddedCall> left;
    for (size_t i = 0; i < calls_.size(); ++i)
      if (kept[i]) left.push_back(std::move(calls_[i]));
    calls_ = std::move(left);
  }

  // Leaves out nodes behind which the padding would not be a known number, or would add to a sum.
  void drop_unknown_padding() {
    PaddingNumbers numbers;
    std::vector<bool> kept;
    for (const PaddedCall& each : calls_) {
      const std::optional<double> number = padding_behind(graph_, each, numbers);
      kept.push_back(number.has_value());
      const Node& node = graph_.node(each.node);
      for (size_t i = 0; number && i < node.results.size(); ++i)
        if (each.call.results[i]) numbers[{node.results[i], each.call.results[i]->dim}] = *number;
    }
    keep_calls(kept);
  }

  // ---- Which nodes do ----

  // Of a product whose rows are odd in two ways, half for each of them.
  int64_t saved_by(const PaddedCall& each) const {
    const Node& node = graph_.node(each.node);
    const std::vector<DimOfValue> odd = odd_rows(graph_, node, costs_);
    bool is_padded = false;
    const auto look = [&](DimOfValue at) { is_padded |= llvm::is_contained(odd, at); };
    for_each_dim(node.operands, each.call.operands, look);
    for_each_dim(node.results, each.call.results, look);
    if (!is_padded) return 0;
    std::set<int64_t> sizes;
    for (const auto& [value, dim] : odd) sizes.insert(graph_.type(value).shape[static_cast<size_t>(dim)]);
    int64_t bytes = graph_.type(node.results[0]).bytes();
    for (ValueId operand : node.operands)
      if (operand != ValueId::None) bytes += graph_.type(operand).bytes();
    const double multiplied = flops_of(graph_, node) / flops_per_byte, moved = static_cast<double>(bytes);
    const double as_it_is = std::max(multiplied * slowdown_of_odd_rows, moved * slowdown_of_odd_bytes);
    return static_cast<int64_t>(as_it_is - std::max(multiplied, moved)) / static_cast<int64_t>(sizes.size());
  }

  // What else than products reads and writes more.
  int64_t added_by(const PaddedCall& each) const {
    const Node& node = graph_.node(each.node);
    int64_t bytes = 0;
    for (size_t i = 0; i < node.results.size() && !node.op->is_view(); ++i)
      if (each.call.results[i]) bytes += bytes_of_padding(node.results[i], *each.call.results[i]);
    return bytes;
  }

  int64_t bytes_of_padding(ValueId value, const Cut& cut) const {
    const Type& type = graph_.type(value);
    const int64_t size = type.shape[static_cast<size_t>(cut.dim)], blocks = static_cast<int64_t>(cut.blocks.size());
    return type.bytes() / size * (blocks * cut.parts[0] - size);
  }

  bool is_narrowed_state(NodeId id) const {
    const Node& node = graph_.node(id);
    return node.op->name == "cast" && graph_.find_state(node.operands[0]) &&
           dtype_bytes(graph_.type(node.results[0]).dtype) < dtype_bytes(graph_.type(node.operands[0]).dtype);
  }

  // A parameter is padded before it is cast to 16 bits, so that its gradient has its f32 behind the padding, too. The
  // two change places once it is differentiated (fold-casts-into-reductions).
  int64_t bytes_to_pad(ValueId value) const {
    const Value& v = graph_.value(value);
    if (v.producer != NodeId::None && is_narrowed_state(v.producer)) return not_here_bytes;
    const bool is_cast = llvm::all_of(v.users, [&](NodeId user) { return is_narrowed_state(user); });
    return bytes_to_cut_off(value) / (is_cast ? 2 : 1);
  }

  int64_t bytes_to_cut_off(ValueId value) const { return 2 * graph_.type(value).bytes() + costs_.kernel_bytes; }

  struct Uses {
    std::optional<size_t> maker;  // the call, if any, that makes the dimension with padding
    llvm::SmallVector<size_t, 4> readers;
    std::set<NodeId> nodes;  // of the readers
  };

  std::map<DimOfValue, Uses> uses_of_dims() const {
    std::map<DimOfValue, Uses> uses;
    for (size_t i = 0; i < calls_.size(); ++i) {
      for_each_dim(graph_.node(calls_[i].node).results, calls_[i].call.results,
                   [&](DimOfValue at) { uses[at].maker = i; });
      for_each_dim(graph_.node(calls_[i].node).operands, calls_[i].call.operands, [&](DimOfValue at) {
        uses[at].readers.push_back(i);
        uses[at].nodes.insert(calls_[i].node);
      });
    }
    return uses;
  }

  // Is the value read without padding in that dimension?
  bool is_read_besides(ValueId value, const Uses& uses) const {
    const auto is_it = [&](const auto& each) { return each.value == value; };
    return llvm::any_of(graph_.outputs, is_it) || llvm::any_of(graph_.updates, is_it) ||
           llvm::any_of(graph_.value(value).users, [&](NodeId user) { return !uses.nodes.count(user); });
  }

  // Vertices are the calls; those on the source's side work on padding. Two vertices beside them stand for each
  // dimension's copy to padding and from there.
  std::vector<bool> cheapest() const {
    const std::map<DimOfValue, Uses> dims = uses_of_dims();
    const size_t source = calls_.size(), sink = source + 1;
    MinCut problem(sink + 1 + 2 * dims.size());
    for (size_t i = 0; i < calls_.size(); ++i) {
      problem.add_edge(source, i, saved_by(calls_[i]));
      problem.add_edge(i, sink, added_by(calls_[i]));
    }
    size_t next = sink + 1;
    for (const auto& [at, uses] : dims) {
      const size_t with_padding = next++, without = next++;
      problem.add_edge(with_padding, uses.maker.value_or(sink), bytes_to_pad(at.first));
      if (uses.maker) problem.add_edge(*uses.maker, without, bytes_to_cut_off(at.first));
      for (size_t reader : uses.readers) {
        problem.add_edge(reader, with_padding, MinCut::unbounded);
        problem.add_edge(without, reader, MinCut::unbounded);
      }
      if (is_read_besides(at.first, uses)) problem.add_edge(without, sink, MinCut::unbounded);
    }
    std::vector<bool> side = problem.source_side(source, sink);
    side.resize(calls_.size());
    return side;
  }

  PaddingChoice weighed() const {
    PaddingChoice padding;
    for (const PaddedCall& each : calls_) {
      const int64_t saved = saved_by(each);
      padding.products += saved > 0;
      padding.saved_bytes += saved;
      padding.copied_bytes += added_by(each);
    }
    for (const auto& [at, uses] : uses_of_dims())
      if (!uses.maker)
        padding.copied_bytes += bytes_to_pad(at.first);
      else if (is_read_besides(at.first, uses))
        padding.copied_bytes += bytes_to_cut_off(at.first);
    return padding;
  }

  const Graph& graph_;
  PaddingCosts costs_;
  std::map<DimOfValue, Cut> cuts_;
  std::set<std::pair<NodeId, DimOfValue>> joined_;
  std::vector<PaddedCall> calls_;
};

}  // namespace

std::vector<DimOfValue> odd_rows(const Graph& graph, const Node& node, const PaddingCosts& costs) {
  std::vector<DimOfValue> odd;
  const int64_t multiple = costs.multiple;
  const bool is_product = padded_kind(graph, node) == PaddedKind::Product;
  if (!is_product || !is_16_bit_float(graph.type(node.operands[0]).dtype)) return odd;
  if (is_narrow_layer(graph, node, multiple) || is_left_product(graph, node, costs.left_size)) return odd;
  const auto look = [&](ValueId value) {
    const Shape& shape = graph.type(value).shape;
    if (shape.back() % multiple != 0 && shape.back() > multiple)
      odd.push_back({value, static_cast<int64_t>(shape.size()) - 1});
  };
  for (size_t factor = 0; factor < 2; ++factor) look(node.operands[factor]);
  if (!graph.type(node.results[0]).shape.empty()) look(node.results[0]);
  return odd;
}

std::optional<PaddingChoice> choose_padding(const Graph& graph, DimOfValue dim, const PaddingCosts& costs,
                                            std::set<DimOfValue>& seen) {
  return PaddingFinder(graph, costs).run(dim, seen);
}

}  // namespace plimsoll
