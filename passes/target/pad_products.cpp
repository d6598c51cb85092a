#include "ir/support/align.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"
#include "passes/target/pad_heads.h"
#include "passes/target/padding.h"

#include <utility>
#include <variant>

// Matrix products of 16-bit operands whose rows begin at 16-byte borders are three to four times as fast as others.
// Rows of 196 tokens or 650 features get padding behind their end, where that takes less time than the copies that it
// needs (passes/target/padding.h). The copies of parameters are made in each step, so parameters, their gradients and
// saved files are as they were. Heads of attention get padding, too (passes/target/pad_heads.h).

namespace plimsoll {
namespace {

// By dimension; they are padded or cut off.
using Cuts = std::map<int64_t, Cut>;

class Padder {
 public:
  Padder(Graph& graph, const PaddingChoice& padding) : graph_(graph) {
    for (const PaddedCall& each : padding.calls) calls_[each.node].push_back(&each.call);
    for (const PaddedCall& each : padding.calls)
      if (nodes_.empty() || nodes_.back() != each.node) nodes_.push_back(each.node);
  }

  Status run() {
    for (NodeId id : nodes_)
      if (Status s = remake(id)) return s;
    for (const auto& [old, now] : replaced_) graph_.replace_uses(old, now);
    for (auto id = nodes_.rbegin(); id != nodes_.rend(); ++id) graph_.erase_node(*id);
    for (const auto& [value, name] : names_) graph_.rename(value, name);
    return Status::success();
  }

 private:
  struct Form {
    ValueId value = ValueId::None;
    Cuts cuts;
  };

  Status remake(NodeId id) {
    const Node node = graph_.node(id);  // a copy: making nodes moves nodes
    const std::vector<const DividedCall*>& calls = calls_.at(id);
    Builder b = builder_at(graph_, id);
    llvm::SmallVector<ValueId, 4> operands(node.operands.begin(), node.operands.end());
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i] != ValueId::None)
        operands[i] = in_form(b, operands[i], cuts_at(calls, &DividedCall::operands, i));
    Result<NodeId> made = b.create(*node.op, operands, attrs_of(node, calls));
    if (!made) return in_context(model_name(graph_, id), made.takeError());
    graph_.node(*made).reason = node.reason;
    for (size_t i = 0; i < node.results.size(); ++i)
      take_result(b, node.results[i], {graph_.node(*made).results[i], cuts_at(calls, &DividedCall::results, i)});
    return Status::success();
  }

  // Where the value is read with padding alone, that has its name.
  void take_result(Builder& b, ValueId old, Form made) {
    const std::string name = graph_.value(old).name;
    const bool is_read = is_read_besides(old), has_padding = !made.cuts.empty();
    names_.push_back({made.value, is_read && has_padding ? name + ".padded" : name});
    made_[old] = std::move(made);
    if (!is_read) return;
    const ValueId whole = in_form(b, old, {});
    replaced_.push_back({old, whole});
    if (has_padding) names_.push_back({whole, name});
  }

  bool is_read_besides(ValueId value) const {
    return leaves_graph(graph_, value) ||
           llvm::any_of(graph_.value(value).users, [&](NodeId user) { return !calls_.count(user); });
  }

  using Side = llvm::SmallVector<std::optional<Cut>, 4> DividedCall::*;
  static Cuts cuts_at(llvm::ArrayRef<const DividedCall*> calls, Side side, size_t index) {
    Cuts cuts;
    for (const DividedCall* call : calls)
      if (const std::optional<Cut>& cut = (call->*side)[index]) cuts[cut->dim] = *cut;
    return cuts;
  }

  // Lists of sizes have an entry for each dimension or part, and a call changes those of its own dimension.
  static Attrs attrs_of(const Node& node, llvm::ArrayRef<const DividedCall*> calls) {
    Attrs attrs = node.attrs;
    for (const DividedCall* call : calls)
      for (const auto& [name, value] : call->attrs.entries()) {
        if (!std::holds_alternative<Ints>(value)) continue;
        const llvm::ArrayRef<int64_t> before = node.attrs.get_ints(name), now = std::get<Ints>(value);
        if (now == before) continue;
        const llvm::ArrayRef<int64_t> so_far = attrs.get_ints(name);
        Ints list(so_far.begin(), so_far.end());
        for (size_t i = 0; i < now.size(); ++i)
          if (now[i] != before[i]) list[i] = now[i];
        attrs.set(name, std::move(list));
      }
    return attrs;
  }

  // The value of the graph as it was, with padding in these dimensions and in no other.
  ValueId in_form(Builder& b, ValueId value, const Cuts& wanted) {
    const auto known = made_.find(value);
    const Form from = known == made_.end() ? Form{value, {}} : known->second;
    Cuts off = from.cuts, on = wanted;
    for (const auto& each : wanted) off.erase(each.first);
    for (const auto& each : from.cuts) on.erase(each.first);
    if (off.empty() && on.empty()) return from.value;
    Ints dims;
    for (const auto& each : wanted) dims.push_back(each.first);
    ValueId& copy = copies_.try_emplace({value, dims}, ValueId::None).first->second;
    if (copy == ValueId::None) copy = resized(b, resized(b, from.value, off, Resize::CutOff), on, Resize::Pad);
    return copy;
  }

  enum class Resize : uint8_t { Pad, CutOff };

  // Blocks have a dimension of their own meanwhile.
  static ValueId resized(Builder& b, ValueId value, const Cuts& cuts, Resize how) {
    if (cuts.empty()) return value;
    const Shape shape = b.type(value).shape;
    Ints in_blocks, after, resized_shape(shape.begin(), shape.end());
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      const auto cut = cuts.find(static_cast<int64_t>(dim));
      if (cut == cuts.end()) {
        in_blocks.push_back(shape[dim]);
        after.push_back(0);
        continue;
      }
      const auto blocks = static_cast<int64_t>(cut->second.blocks.size());
      const int64_t more = (cut->second.parts[0] - cut->second.blocks[0]) * (how == Resize::Pad ? 1 : -1);
      if (blocks > 1) in_blocks.push_back(blocks), after.push_back(0);
      in_blocks.push_back(shape[dim] / blocks);
      after.push_back(more);
      resized_shape[dim] += blocks * more;
    }
    const Ints before(after.size(), 0);
    const ValueId made = b.emit("pad", {b.reshape(value, in_blocks)}, {{"before", before}, {"after", after}},
                                b.graph().value(value).name + (how == Resize::Pad ? ".padded" : ".cut"));
    return b.reshape(made, resized_shape);
  }

  Graph& graph_;
  std::map<NodeId, std::vector<const DividedCall*>> calls_;
  std::vector<NodeId> nodes_;                           // in order, each once
  std::map<ValueId, Form> made_;                        // by value of the graph as it was
  std::map<std::pair<ValueId, Ints>, ValueId> copies_;  // in these dimensions with padding
  std::vector<std::pair<ValueId, ValueId>> replaced_;
  std::vector<std::pair<ValueId, std::string>> names_;
};

std::string in_mib(int64_t bytes) { return std::to_string((bytes + (1 << 19)) >> 20) + " MiB"; }

std::string description(int64_t size, int64_t multiple, int64_t products) {
  return "rows of " + std::to_string(size) + " padded to " + std::to_string(align_up(size, multiple)) + " in " +
         std::to_string(products) + (products == 1 ? " product" : " products");
}

// Padding makes new values, whose other dimensions are looked at in the next round.
Result<bool> run_pad_products(Graph& graph, PassContext& context) {
  const PaddingCosts costs{context.number("multiple"), context.number("kernel-bytes"), context.number("left-size")};
  std::set<DimOfValue> seen;
  bool changed = pad_heads(graph, context, costs.multiple, context.number("few-rows"));
  for (bool again = true; std::exchange(again, false);)
    for (NodeId id : graph.order()) {
      if (graph.node(id).erased) continue;
      for (const DimOfValue& at : odd_rows(graph, graph.node(id), costs)) {
        if (seen.count(at)) continue;
        const std::optional<PaddingChoice> padding = choose_padding(graph, at, costs, seen);
        if (!padding) continue;
        const int64_t size = graph.type(at.first).shape[static_cast<size_t>(at.second)];
        context.decide(graph.value(graph.node(id).results[0]).name,
                       description(size, costs.multiple, padding->products),
                       "saves the time in which memory moves " + in_mib(padding->saved_bytes) +
                           ", copies and padding take that of " + in_mib(padding->copied_bytes));
        context.count("products", padding->products);
        if (Status s = Padder(graph, *padding).run()) return s;
        changed = again = true;
        break;
      }
    }
  return changed;
}

constexpr PassOption pass_options[] = {
    {"multiple", 8, "rows of products of 16-bit operands are padded to a multiple of this many elements", 2},
    {"left-size", int64_t{0},
     "most rows and columns of a matrix at the left of many for which kernels take rows as they are; 0: there are "
     "none"},
    {"kernel-bytes", 10'000'000, "bytes that memory moves in the time that a kernel takes beside its work"},
    {"few-rows", 64, "heads of attention of no more rows and columns stay as they are", 0}};

}  // namespace

constinit const PassInfo pass_pad_products{
    .name = "pad-products",
    .summary =
        "pad the rows of matrix products of 16-bit operands to 16-byte borders where that is worth its copies, and the "
        "heads of 16-bit attention",
    .stage = Stage::Forward,
    .options = pass_options,
    .run = run_pad_products,
};

}  // namespace plimsoll
