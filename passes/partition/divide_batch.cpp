#include "passes/partition/divide_batch.h"

// Every node is made anew on the rank's rows, in order. A value has up to three forms, each made of another when it is
// first read: whole (alike on all ranks), divided (the rank's rows) and partial (the rank's summand).
//
// Why it is right: a record's chunk claim (OpDef::chunk) says that the op on one rank's rows makes that rank's rows, or
// a summand, of its result. Gradients are those of the sum of all ranks' objectives, under which every op's own rule is
// right on each rank, and a parameter's gradient is a sum over the ranks.

#include "ir/builder.h"
#include "ir/ops/common/leave_out_rows.h"
#include "passes/partition/pieces.h"
#include "passes/partition/resize_batch.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include "llvm/ADT/Sequence.h"

#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>

namespace plimsoll {
namespace {

struct Forms {
  ValueId whole = ValueId::None, divided = ValueId::None, partial = ValueId::None;
};

// The inputs whose rows a value's rows are made of: row by row, or after all rows were gathered on the way.
struct RowsOf {
  std::set<ValueId> direct, gathered;
};

// A batch that was filled up so that it divides: the last ranks' rows behind its end count nothing.
struct FilledBatch {
  const Graph& before;  // the graph of the batch as it was
  int64_t samples, rows_of_rank;
};

class BatchDivider {
 public:
  // Every input in `batch` has rows that divide by `ranks`; the others are whole on every rank.
  BatchDivider(Graph& graph, int64_t ranks, Statistics statistics, llvm::ArrayRef<ValueId> batch,
               std::optional<FilledBatch> filled = std::nullopt)
      : graph_(graph), b_(graph), ranks_(ranks), statistics_(statistics), filled_(filled) {
    for (size_t i = 0; i < graph.value_count(); ++i) types_.push_back(graph.type(static_cast<ValueId>(i)));
    for (ValueId input : graph.inputs) llvm::is_contained(batch, input) ? divide_input(input) : keep_input(input);
  }

  // The inputs whose rows are used as rows: they meet another input's, or are summed up into what only the ranks
  // together have. The rows of other inputs are gathered wherever they are read. Valid after run().
  const std::set<ValueId>& used_as_rows() const { return used_as_rows_; }

  Status run() {
    for (NodeId id : graph_.order())
      if (Status s = divide(id)) return s;
    b_.insert_before(NodeId::None);
    for (Update& update : graph_.updates) update.value = filled_ ? true_rows(update.value) : whole(update.value);
    divide_loss();
    for (auto id = replaced_.rbegin(); id != replaced_.rend(); ++id) graph_.erase_node(*id);
    for (const auto& [value, name] : names_) graph_.rename(value, name);
    return Status::success();
  }

 private:
  void divide_input(ValueId input) {
    Type type = graph_.type(input);
    type.shape[0] /= ranks_;
    graph_.set_type(input, type);
    forms_[input].divided = input;
    rows_of_[input].direct = {input};
  }
  void keep_input(ValueId input) { graph_.whole_inputs.push_back(input); }

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
    const std::optional<ChunkCall> claim = claimed(node);
    if (claim && can_leave_out(node, *claim)) {
      note_inputs(node, [&](size_t i) { return claim->cut[i]; });
      return make_rows(node, *claim);
    }
    if (!claim && node.op->across_ranks && is_divided(node.operands[0]) && can_leave_out_across(node)) {
      note_inputs(node, [&](size_t i) { return is_divided(node.operands[i]); });
      return make_across(node);
    }
    note_gathered(node);
    if (filled_ && is_before(id)) return make_of_true_rows(filled_->before.node(id));
    return make(node, node.attrs, &Forms::whole, [&](ValueId v) { return whole(v); });
  }

  // ---- Batches that were filled up ----

  bool is_before(NodeId id) const { return index_of(id) < filled_->before.node_slots(); }

  // The value's type with the batch as it was.
  const Type& true_type(ValueId value) const {
    return index_of(value) < filled_->before.value_count() ? filled_->before.type(value) : old_type(value);
  }

  // Whether rows that count nothing are rows of it along dimension 0 alone, if at all.
  bool is_filled_along_rows(ValueId value) const {
    if (value == ValueId::None) return true;
    const Shape &now = old_type(value).shape, &before = true_type(value).shape;
    return now.size() == before.size() &&
           std::equal(now.begin() + !now.empty(), now.end(), before.begin() + !now.empty());
  }

  // Can a rank's rows be made of its rows, such that those that count nothing do not show in others? Where results add
  // rows up, the op must know how to leave some out.
  bool can_leave_out(const Node& node, const ChunkCall& claim) {
    if (!filled_) return true;
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (!claim.cut[i] && node.operands[i] != ValueId::None &&
          old_type(node.operands[i]) != true_type(node.operands[i]))
        return false;
    const size_t first = static_cast<size_t>(llvm::find(claim.cut, true) - claim.cut.begin());
    const bool may_add_up = may_leave_out_rows(*node.op) && has_rows_of_samples(node.operands[first]);
    for (size_t i = 0; i < node.results.size(); ++i)
      if (combine_of(claim, i) != Combine::Rows && !may_add_up) return false;
    return llvm::all_of(node.operands, [&](ValueId v) { return is_filled_along_rows(v); }) &&
           llvm::all_of(node.results, [&](ValueId v) { return is_filled_along_rows(v); });
  }

  bool can_leave_out_across(const Node& node) const {
    return !filled_ || (may_leave_out_rows(*node.op) && has_rows_of_samples(node.operands[0]));
  }

  // Has each sample as many rows of it?
  bool has_rows_of_samples(ValueId value) const {
    return old_type(value).shape[0] / ranks_ % filled_->rows_of_rank == 0;
  }

  // On every rank alike, the rows that count.
  ValueId true_rows(ValueId value) {
    if (value == ValueId::None) return value;
    const Shape& shape = true_type(value).shape;
    if (old_type(value).shape == shape) return whole(value);
    ValueId& made = true_rows_.try_emplace(value, ValueId::None).first->second;
    if (made != ValueId::None) return made;
    if (is_divided(value) && !is_whole(value)) return made = b_.emit("gather_pieces", {divided(value)}, group(shape));
    const Ints none(shape.size(), 0), ones(shape.size(), 1);
    return made = b_.emit("slice", {whole(value)},
                          {{"starts", none}, {"steps", ones}, {"sizes", Ints(shape.begin(), shape.end())}});
  }

  // Every rank computes it, as with one rank. What counts nothing is filled with first rows again where ranks then take
  // theirs.
  Status make_of_true_rows(const Node& before) {
    llvm::SmallVector<ValueId, 6> operands;
    for (ValueId operand : before.operands) operands.push_back(true_rows(operand));
    Result<NodeId> made = create(before, before.attrs, operands);
    if (!made) return made.takeError();
    const llvm::SmallVector<ValueId, 2> results = graph_.node(*made).results;
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId old = before.results[i];
      const ValueId filled = filled_up(results[i], old_type(old).shape);
      if (filled != results[i]) true_rows_[old] = results[i];
      set(old, &Forms::whole, filled);
    }
    return Status::success();
  }

  ValueId filled_up(ValueId value, const Shape& shape) {
    for (size_t d = 0; d < shape.size(); ++d) {
      Ints sizes(b_.type(value).shape.begin(), b_.type(value).shape.end());
      const int64_t lacking = shape[d] - sizes[d];
      if (lacking == 0) continue;
      sizes[d] = lacking;
      const ValueId first = b_.emit(
          "slice", {value}, {{"starts", Ints(sizes.size(), 0)}, {"steps", Ints(sizes.size(), 1)}, {"sizes", sizes}});
      value = b_.emit("concat", {value, first}, {{"axis", static_cast<int64_t>(d)}});
    }
    return value;
  }

  // Follows which inputs' rows a node's results are made of: those of the operands that it reads in rows.
  void note_inputs(const Node& node, llvm::function_ref<bool(size_t)> reads_rows) {
    RowsOf made;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      auto found = rows_of_.find(node.operands[i]);
      if (found == rows_of_.end() || !reads_rows(i)) continue;
      std::set<ValueId>& kept = is_divided(node.operands[i]) ? made.direct : made.gathered;
      kept.insert(found->second.direct.begin(), found->second.direct.end());
      made.gathered.insert(found->second.gathered.begin(), found->second.gathered.end());
    }
    const bool meet = !made.direct.empty() && made.direct.size() + made.gathered.size() > 1;
    if (meet) used_as_rows_.insert(made.gathered.begin(), made.gathered.end());
    if (meet) used_as_rows_.insert(made.direct.begin(), made.direct.end());
    for (ValueId result : node.results) rows_of_[result] = made;
  }
  // All rows come together here; from now on they are gathered ones.
  void note_gathered(const Node& node) {
    RowsOf made;
    for (ValueId operand : node.operands)
      if (auto found = rows_of_.find(operand); found != rows_of_.end()) {
        made.gathered.insert(found->second.direct.begin(), found->second.direct.end());
        made.gathered.insert(found->second.gathered.begin(), found->second.gathered.end());
      }
    for (ValueId result : node.results) rows_of_[result] = made;
  }
  void use_as_rows(const Node& node) {
    const std::set<ValueId>& rows = rows_of_[node.results[0]].direct;
    used_as_rows_.insert(rows.begin(), rows.end());
  }

  bool is_unchanged(ValueId value) { return value == ValueId::None || forms(value).whole == value; }

  // Of elementwise ops and views alone: what others make of a sum may be larger, and take longer to add up.
  bool stays_a_sum(const Node& node) {
    const LinearForm& form = node.op->linear.first;
    if ((!node.op->elementwise && !node.op->is_view()) || !is_float(old_type(node.results[0]).dtype)) return false;
    llvm::SmallVector<bool, 4> is_present;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const ValueId operand = node.operands[i];
      is_present.push_back(operand != ValueId::None);
      if (!is_partial(operand) && !is_whole(operand)) return false;
      if (is_partial(operand) && !is_float(old_type(operand).dtype)) return false;
      if (is_partial(operand) && !form.has(node.op->operands, i)) return false;
    }
    const auto is_summand = [&](size_t operand) { return is_partial(node.operands[operand]); };
    const auto terms = present_terms(form, node.op->operands, is_present);
    return !terms.empty() &&
           llvm::all_of(terms, [&](const PresentTerm& term) { return llvm::count_if(term.factors, is_summand) == 1; });
  }

  // What the record says of one rank's rows, where it cuts an operand that comes in rows; those that it reads whole are
  // gathered. Ranks may differ only in where they begin to draw random numbers.
  std::optional<ChunkCall> claimed(const Node& node) {
    llvm::SmallVector<const Type*, 4> operands;
    for (ValueId operand : node.operands) operands.push_back(operand == ValueId::None ? nullptr : &old_type(operand));
    const OpCall call(*node.op, node.attrs, operands);
    std::optional<ChunkCall> claim = chunk_of(*node.op, call, {0, ranks_});
    if (!claim) return std::nullopt;
    auto cuts_rows = [&](size_t i) { return claim->cut[i] && is_divided(node.operands[i]); };
    if (llvm::none_of(llvm::seq<size_t>(0, node.operands.size()), cuts_rows)) return std::nullopt;
    std::optional<ChunkCall> next = chunk_of(*node.op, call, {1, ranks_});
    const int64_t first = claim->attrs.get_int("first_draw"), step = next->attrs.get_int("first_draw") - first;
    if (step != 0) claim->attrs.set("first_draw", first), next->attrs.set("first_draw", first);
    if (!(next->attrs == claim->attrs)) return std::nullopt;
    if (step != 0) claim->attrs.set("draws_per_rank", step);
    return claim;
  }

  template <typename OperandFn>
  llvm::SmallVector<ValueId, 6> operands_of(const Node& node, OperandFn operand) {
    llvm::SmallVector<ValueId, 6> operands;
    for (size_t i = 0; i < node.operands.size(); ++i)
      operands.push_back(node.operands[i] == ValueId::None ? ValueId::None : operand(i));
    return operands;
  }

  Result<NodeId> create(const Node& node, const Attrs& attrs, llvm::ArrayRef<ValueId> operands) {
    Result<NodeId> made = b_.create(*node.op, operands, attrs);
    if (!made) return in_context(model_name(graph_, graph_.value(node.results[0]).producer), made.takeError());
    graph_.node(*made).reason = node.reason;
    return made;
  }

  // The results have the form; `operand` gives the form of each operand that the node reads.
  template <typename FormFn>
  Status make(const Node& node, const Attrs& attrs, ValueId Forms::*form, FormFn operand) {
    Result<NodeId> made = create(node, attrs, operands_of(node, [&](size_t i) { return operand(node.operands[i]); }));
    if (!made) return made.takeError();
    for (size_t i = 0; i < node.results.size(); ++i) set(node.results[i], form, graph_.node(*made).results[i]);
    return Status::success();
  }

  void set(ValueId old, ValueId Forms::*form, ValueId now) {
    forms_[old].*form = now;
    names_.push_back({now, graph_.value(old).name});
  }

  // A bool for each of the rank's rows: is it one of the batch's? Pieces of ones have zeros behind the whole's end.
  ValueId counting(int64_t rows) {
    ValueId& counts = counting_.try_emplace(rows, ValueId::None).first->second;
    if (counts != ValueId::None) return counts;
    Tensor ones(Type(DType::Bool, {rows / filled_->rows_of_rank * filled_->samples}));
    for (int64_t i = 0; i < ones.type().elements(); ++i) ones.view().set_int(i, 1);
    return counts = b_.emit("take_piece", {b_.constant(std::move(ones))}, group({rows}), "counts");
  }

  // Rows behind the end of the batch add nothing to what the ranks add up.
  void leave_out(const Node& node, const ChunkCall& claim, llvm::MutableArrayRef<ValueId> operands, Attrs& attrs) {
    const size_t first = static_cast<size_t>(llvm::find(claim.cut, true) - claim.cut.begin());
    leave_out_rows(b_, *node.op, counting(graph_.type(operands[first]).shape[0]), operands, attrs);
  }

  Status make_rows(const Node& node, const ChunkCall& claim) {
    llvm::SmallVector<ValueId, 6> operands =
        operands_of(node, [&](size_t i) { return claim.cut[i] ? divided(node.operands[i]) : whole(node.operands[i]); });
    Attrs attrs = claim.attrs;
    const auto adds_up = [&](size_t result) { return combine_of(claim, result) != Combine::Rows; };
    if (filled_ && llvm::any_of(llvm::seq<size_t>(0, node.results.size()), adds_up))
      leave_out(node, claim, operands, attrs);
    Result<NodeId> made = create(node, attrs, operands);
    if (!made) return made.takeError();
    const llvm::SmallVector<ValueId, 2> results = graph_.node(*made).results;
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId old = node.results[i];
      if (combine_of(claim, i) != Combine::Rows) use_as_rows(node);
      switch (combine_of(claim, i)) {
        case Combine::Rows: set(old, &Forms::divided, results[i]); break;
        case Combine::Sum: set(old, &Forms::partial, results[i]); break;
        case Combine::Mean: {
          const ValueId share = b_.scalar(share_of_rank(), graph_.type(results[i]).dtype);
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

  // The rank's rows over those that count.
  double share_of_rank() const {
    return filled_ ? static_cast<double>(filled_->rows_of_rank) / static_cast<double>(filled_->samples)
                   : 1.0 / static_cast<double>(ranks_);
  }

  Status make_across(const Node& node) {
    Node local = node;
    for (ValueId& operand : local.operands) operand = is_divided(operand) ? divided(operand) : whole(operand);
    use_as_rows(node);
    const llvm::SmallVector<ValueId, 4> results =
        filled_ ? across_counting(local) : node.op->across_ranks(b_, local, ranks_, statistics_);
    for (size_t i = 0; i < results.size(); ++i) {
      const bool rows = graph_.type(results[i]) != old_type(node.results[i]);
      set(node.results[i], rows ? &Forms::divided : &Forms::whole, results[i]);
    }
    return Status::success();
  }

  // Of a batch that was filled up: `local` has the rank's rows, all of which some operand has.
  llvm::SmallVector<ValueId, 4> across_counting(const Node& local) {
    const int64_t rows = graph_.type(local.operands[0]).shape[0];
    return across_counting_rows(b_, local, {counting(rows), filled_->samples, filled_->rows_of_rank}, ranks_,
                                statistics_);
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
  Statistics statistics_;
  std::optional<FilledBatch> filled_;
  std::map<int64_t, ValueId> counting_;   // by the number of rows on a rank
  std::map<ValueId, ValueId> true_rows_;  // by value of the graph as it was, of those that were filled up
  std::vector<Type> types_;               // by value, as the graph was
  std::map<ValueId, Forms> forms_;        // by value of the graph as it was; values that are not here are whole
  std::map<ValueId, ValueId> weight_of_;  // by weighted mean: what all samples weigh
  std::map<ValueId, RowsOf> rows_of_;     // by value of the graph as it was
  std::set<ValueId> used_as_rows_;
  std::vector<NodeId> replaced_;
  std::vector<std::pair<ValueId, std::string>> names_;
};

Result<bool> run_divide_batch(Graph& graph, PassContext& context) {
  const int64_t ranks = context.number("ranks");
  const Statistics statistics = context.text("batch-norm") == "local" ? Statistics::OfOwnRows : Statistics::OfAllRanks;
  if (Status s = divide_batch(graph, ranks, statistics)) return s;
  context.count("ranks", ranks);
  return true;
}

constexpr PassOption pass_options[] = {
    {"ranks", 2, "how many ranks share the batch", 2},
    {"batch-norm", "synchronised", "statistics of all ranks' rows (synchronised), or of the rank's own rows (local)"}};

}  // namespace

std::vector<ValueId> inputs_used_as_rows(const Graph& graph, int64_t ranks, llvm::ArrayRef<ValueId> inputs) {
  Graph trial = graph;
  BatchDivider divider(trial, ranks, Statistics::OfAllRanks, inputs);
  if (Status s = divider.run()) return llvm::consumeError(std::move(s)), std::vector<ValueId>();
  return {divider.used_as_rows().begin(), divider.used_as_rows().end()};
}

Status divide_batch(Graph& graph, int64_t ranks, Statistics statistics) {
  Result<BatchInputs> batch = find_batch(graph);
  if (!batch) return batch.takeError();
  if (batch->inputs.empty()) return model_error("the batch cannot be divided: no input of the model has rows");
  const auto uneven = llvm::find_if(batch->inputs, [&](ValueId i) { return graph.type(i).shape[0] % ranks != 0; });
  if (uneven == batch->inputs.end()) return BatchDivider(graph, ranks, statistics, batch->inputs).run();
  const std::string which = "input " + graph.value(*uneven).name + " has " +
                            std::to_string(graph.type(*uneven).shape[0]) + " rows, which do not divide by " +
                            std::to_string(ranks) + " ranks";
  int64_t samples = 0;  // each has as many rows in an input
  for (ValueId input : batch->inputs) samples = std::gcd(samples, graph.type(input).shape[0]);
  const int64_t share = rows_of_rank(samples, ranks);
  if (share * (ranks - 1) >= samples)
    return usage_error(which + "; with " + llvm::Twine(share) + " for each, the last ranks would have none");
  const Graph before = graph;
  const FilledBatch filled{before, samples, share};
  if (Status s = resize_batch(graph, *batch, samples, share * ranks)) return in_context(which, std::move(s));
  return BatchDivider(graph, ranks, statistics, batch->inputs, filled).run();
}

constinit const PassInfo pass_divide_batch{
    .name = "divide-batch",
    .summary = "the graph of one rank that takes its rows of the batch, with sums over the ranks where rows mix",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = pass_options,
    .run = run_divide_batch,
};

}  // namespace plimsoll
