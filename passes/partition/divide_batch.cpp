#include "passes/partition/divide_batch.h"

// Every node is made anew on the rank's rows, in order. A value has up to three forms, each made of another when it is
// first read: whole (alike on all ranks), divided (the rank's rows) and partial (the rank's summand).
//
// Why it is right: a record's chunk claim (OpDef::chunk) says that the op on one rank's rows makes that rank's rows, or
// a summand, of its result. Gradients are those of the sum of all ranks' objectives, under which every op's own rule is
// right on each rank, and a parameter's gradient is a sum over the ranks.

#include "ir/builder.h"
#include "passes/partition/pieces.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include <cstring>
#include <map>

namespace plimsoll {
namespace {

struct Forms {
  ValueId whole = ValueId::None, divided = ValueId::None, partial = ValueId::None;
};

class BatchDivider {
 public:
  BatchDivider(Graph& graph, int64_t ranks) : graph_(graph), b_(graph), ranks_(ranks) {
    for (size_t i = 0; i < graph.value_count(); ++i) types_.push_back(graph.type(static_cast<ValueId>(i)));
  }

  Status run() {
    if (Status s = divide_inputs()) return s;
    for (NodeId id : graph_.order())
      if (Status s = divide(id)) return s;
    b_.insert_before(NodeId::None);
    for (Update& update : graph_.updates) update.value = whole(update.value);
    divide_loss();
    for (auto id = replaced_.rbegin(); id != replaced_.rend(); ++id) graph_.erase_node(*id);
    for (const auto& [value, name] : names_) graph_.rename(value, name);
    return Status::success();
  }

 private:
  // An input that is no batch, such as a mask of positions by positions, is divided too, and gathered where it is read.
  Status divide_inputs() {
    for (ValueId input : graph_.inputs) {
      Type type = graph_.type(input);
      if (type.rank() == 0) continue;
      if (type.shape[0] % ranks_ != 0)
        return usage_error("input " + graph_.value(input).name + " has " + llvm::Twine(type.shape[0]) +
                           " rows, which do not divide by " + llvm::Twine(ranks_) + " ranks");
      type.shape[0] /= ranks_;
      graph_.set_type(input, type);
      forms_[input].divided = input;
    }
    if (forms_.empty()) return model_error("the batch cannot be divided: no input of the model has rows");
    return Status::success();
  }

  Forms& forms(ValueId value) {
    auto [at, fresh] = forms_.try_emplace(value);
    if (fresh) at->second.whole = value;
    return at->second;
  }
  bool is_whole(ValueId value) { return value == ValueId::None || forms(value).whole != ValueId::None; }
  bool is_divided(ValueId value) { return value != ValueId::None && forms(value).divided != ValueId::None; }
  bool is_partial(ValueId value) { return value != ValueId::None && forms(value).partial != ValueId::None; }
  const Type& old_type(ValueId value) const { return types_[index_of(value)]; }

  Attrs group(llvm::ArrayRef<int64_t> shape = {}) const { return data_group(ranks_, shape); }

  ValueId whole(ValueId value) {
    if (is_whole(value)) return value == ValueId::None ? value : forms(value).whole;
    Forms& f = forms(value);
    f.whole = f.partial != ValueId::None ? b_.emit("reduce_all", {f.partial}, group())
                                         : b_.emit("gather_pieces", {f.divided}, group(old_type(value).shape));
    return f.whole;
  }

  // What is the same in every row needs no piece of its own.
  ValueId divided(ValueId value) {
    Forms& f = forms(value);
    if (f.divided != ValueId::None) return f.divided;
    Shape shape = old_type(value).shape;
    shape[0] /= ranks_;
    const ValueId source = whole(value);
    if (const Node* expand = producer_of(graph_, source, "expand"); expand && repeats_rows(*expand))
      return f.divided = b_.expand(expand->operands[0], shape);
    if (const Node* constant = producer_of(graph_, source, "constant"))
      if (std::optional<Tensor> rows = equal_rows(*constant->attrs.get_tensor("value"), shape))
        return f.divided = b_.constant(std::move(*rows));
    return f.divided = b_.emit("take_piece", {source}, group(shape));
  }

  bool repeats_rows(const Node& expand) const {
    const Shape& from = graph_.type(expand.operands[0]).shape;
    return from.size() < graph_.type(expand.results[0]).shape.size() || from[0] == 1;
  }

  std::optional<Tensor> equal_rows(const Tensor& tensor, const Shape& shape) const {
    Tensor first(Type(tensor.type().dtype, shape), tensor.data());
    const auto bytes = static_cast<size_t>(first.type().bytes());
    for (int64_t rank = 1; rank < ranks_; ++rank)
      if (std::memcmp(first.data(), static_cast<const char*>(tensor.data()) + static_cast<size_t>(rank) * bytes,
                      bytes) != 0)
        return std::nullopt;
    return first;
  }

  Status divide(NodeId id) {
    const Node node = graph_.node(id);  // a copy: making nodes moves nodes
    if (llvm::all_of(node.operands, [&](ValueId operand) { return is_unchanged(operand); })) return Status::success();
    b_.insert_before(id);
    b_.origin = node.origin;
    b_.phase = node.phase;
    replaced_.push_back(id);
    if (stays_a_sum(node))
      return make(node, node.attrs, &Forms::partial,
                  [&](ValueId v) { return is_partial(v) ? forms(v).partial : whole(v); });
    for (ValueId operand : node.operands)
      if (is_partial(operand)) whole(operand);
    if (const std::optional<ChunkCall> claim = claimed(node)) return make_rows(node, *claim);
    if (node.op->across_ranks) return make_across(node);
    return make(node, node.attrs, &Forms::whole, [&](ValueId v) { return whole(v); });
  }

  bool is_unchanged(ValueId value) { return value == ValueId::None || forms(value).whole == value; }

  bool stays_a_sum(const Node& node) {
    if (node.op->linear == Linear::No || !is_float(old_type(node.results[0]).dtype)) return false;
    size_t sums = 0;
    for (ValueId operand : node.operands) {
      if (!is_partial(operand) && !is_whole(operand)) return false;
      sums += is_partial(operand);
    }
    switch (node.op->linear) {
      case Linear::No: return false;
      case Linear::InAll: return sums == node.operands.size();
      case Linear::InOne: return sums == 1;
      case Linear::InFirst: return sums == 1 && is_partial(node.operands[0]);
    }
    return false;
  }

  // What the record says of one rank's rows, where it cuts all operands that come in rows. Ranks may differ only in
  // where they begin to draw random numbers.
  std::optional<ChunkCall> claimed(const Node& node) {
    llvm::SmallVector<const Type*, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(operand == ValueId::None ? nullptr : &old_type(operand));
    const OpCall call(*node.op, node.attrs, operands);
    std::optional<ChunkCall> claim = chunk_of(*node.op, call, {0, ranks_});
    if (!claim) return std::nullopt;
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (!is_whole(node.operands[i]) && !claim->cut[i]) return std::nullopt;
    std::optional<ChunkCall> next = chunk_of(*node.op, call, {1, ranks_});
    const int64_t first = claim->attrs.get_int("first_draw"), step = next->attrs.get_int("first_draw") - first;
    if (step != 0) claim->attrs.set("first_draw", first), next->attrs.set("first_draw", first);
    if (!(next->attrs == claim->attrs)) return std::nullopt;
    if (step != 0) claim->attrs.set("draws_per_rank", step);
    return claim;
  }

  template <typename OperandFn>
  Result<NodeId> create(const Node& node, const Attrs& attrs, OperandFn operand) {
    llvm::SmallVector<ValueId, 6> operands;
    for (size_t i = 0; i < node.operands.size(); ++i)
      operands.push_back(node.operands[i] == ValueId::None ? ValueId::None : operand(i));
    Result<NodeId> made = b_.create(*node.op, operands, attrs);
    if (!made) return in_context(model_name(graph_, graph_.value(node.results[0]).producer), made.takeError());
    graph_.node(*made).reason = node.reason;
    return made;
  }

  // The results have the form; `operand` gives the form of each operand that the node reads.
  template <typename FormFn>
  Status make(const Node& node, const Attrs& attrs, ValueId Forms::*form, FormFn operand) {
    Result<NodeId> made = create(node, attrs, [&](size_t i) { return operand(node.operands[i]); });
    if (!made) return made.takeError();
    for (size_t i = 0; i < node.results.size(); ++i) set(node.results[i], form, graph_.node(*made).results[i]);
    return Status::success();
  }

  void set(ValueId old, ValueId Forms::*form, ValueId now) {
    forms_[old].*form = now;
    names_.push_back({now, graph_.value(old).name});
  }

  Status make_rows(const Node& node, const ChunkCall& claim) {
    Result<NodeId> made = create(node, claim.attrs, [&](size_t i) {
      return claim.cut[i] ? divided(node.operands[i]) : whole(node.operands[i]);
    });
    if (!made) return made.takeError();
    const llvm::SmallVector<ValueId, 2> results = graph_.node(*made).results;
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId old = node.results[i];
      switch (combine_of(claim, i)) {
        case Combine::Rows: set(old, &Forms::divided, results[i]); break;
        case Combine::Sum: set(old, &Forms::partial, results[i]); break;
        case Combine::Mean: {
          const ValueId share = b_.scalar(1.0 / static_cast<double>(ranks_), graph_.type(results[i]).dtype);
          set(old, &Forms::partial, b_.emit("mul", {results[i], share}));
          break;
        }
        case Combine::WeightedMean: {
          // One division by what the samples of all ranks weigh; the labels alone decide it.
          const ValueId weight = b_.emit("reduce_all", {node.op->sample_weight(b_, *made)}, group());
          weight_of_[old] = weight;
          set(old, &Forms::partial, b_.emit("div", {results[i], weight}));
          break;
        }
      }
    }
    if (auto weight = weight_of_.find(node.results[0]); weight != weight_of_.end())
      forms_[node.results.back()].whole = weight->second;
    return Status::success();
  }

  Status make_across(const Node& node) {
    Node local = node;
    for (ValueId& operand : local.operands)
      if (!is_whole(operand)) operand = divided(operand);
    const llvm::SmallVector<ValueId, 4> results = node.op->across_ranks(b_, local, ranks_);
    for (size_t i = 0; i < results.size(); ++i) {
      const bool rows = graph_.type(results[i]) != old_type(node.results[i]);
      set(node.results[i], rows ? &Forms::divided : &Forms::whole, results[i]);
    }
    return Status::success();
  }

  // A loss that the ranks hold alike is as good as a summand of one part in `ranks` on each.
  void divide_loss() {
    Output& loss = graph_.outputs.front();
    const ValueId old = loss.value;
    loss.value = whole(old);
    ValueId objective = forms(old).partial;
    if (objective == ValueId::None)
      objective =
          b_.emit("mul", {loss.value, b_.scalar(1.0 / static_cast<double>(ranks_), graph_.type(loss.value).dtype)});
    graph_.outputs.push_back({objective_output.str(), objective});
    // Views may stand between the mean and the loss.
    for (ValueId value = old;;) {
      if (auto weight = weight_of_.find(value); weight != weight_of_.end())
        graph_.outputs.push_back({sample_weight_output.str(), weight->second});
      const NodeId producer = graph_.value(value).producer;
      if (producer == NodeId::None || !graph_.node(producer).op->is_view()) break;
      value = graph_.node(producer).operands[0];
    }
  }

  Graph& graph_;
  Builder b_;
  int64_t ranks_;
  std::vector<Type> types_;               // by value, as the graph was
  std::map<ValueId, Forms> forms_;        // by value of the graph as it was; values that are not here are whole
  std::map<ValueId, ValueId> weight_of_;  // by weighted mean: what all samples weigh
  std::vector<NodeId> replaced_;
  std::vector<std::pair<ValueId, std::string>> names_;
};

Result<bool> run(Graph& graph, PassContext& context) {
  const int64_t ranks = context.number("ranks");
  if (Status s = divide_batch(graph, ranks)) return s;
  context.count("ranks", ranks);
  return true;
}

constexpr PassOption pass_options[] = {{"ranks", 2, "how many ranks share the batch", 2}};

}  // namespace

Status divide_batch(Graph& graph, int64_t ranks) { return BatchDivider(graph, ranks).run(); }

constinit const PassInfo pass_divide_batch{
    .name = "divide-batch",
    .summary = "the graph of one rank that takes its rows of the batch, with sums over the ranks where rows mix",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = pass_options,
    .run = run,
};

}  // namespace plimsoll
