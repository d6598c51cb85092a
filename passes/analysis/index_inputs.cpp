#include "passes/analysis/index_inputs.h"

#include "ir/evaluate.h"
#include "ir/op_def.h"
#include "passes/analysis/dependence.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

// A position is evaluated as this number plus its index, so that fills such as -100 and 0 are told from positions.
constexpr int64_t first_position = int64_t{1} << 20;

// The input whose elements `value` holds; None where they are computed.
ValueId moved_input(const Graph& graph, ValueId value) {
  while (graph.value(value).producer != NodeId::None) {
    const Node& node = graph.node(graph.value(value).producer);
    if (!node.op->only_moves()) return ValueId::None;
    value = node.operands.front();
  }
  return llvm::is_contained(graph.inputs, value) ? value : ValueId::None;
}

// The one graph input that decides `value`, by way of constants alone; None where there are others, or states.
ValueId only_input(const Graph& graph, const std::vector<bool>& contributes) {
  for (const State& state : graph.states)
    if (contributes[index_of(state.value)]) return ValueId::None;
  ValueId found = ValueId::None;
  for (ValueId input : graph.inputs) {
    if (!contributes[index_of(input)]) continue;
    if (found != ValueId::None) return ValueId::None;
    found = input;
  }
  return found;
}

// `value` computed from the positions of `input` in place of its elements; none where that cannot be evaluated.
std::optional<Tensor> evaluate_positions(const Graph& graph, ValueId input, ValueId value,
                                         const std::vector<bool>& contributes) {
  std::vector<std::optional<Tensor>> values(graph.value_count());
  Tensor positions(graph.type(input));
  for (int64_t i = 0; i < positions.type().elements(); ++i) positions.view().set_int(i, first_position + i);
  values[index_of(input)] = std::move(positions);
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const Node& node = graph.node(id);
    if (!any_in(node.results, contributes)) continue;
    llvm::SmallVector<const Tensor*, 4> operands;
    for (ValueId operand : node.operands)
      operands.push_back(operand == ValueId::None ? nullptr : &*values[index_of(operand)]);
    Result<std::vector<Tensor>> results = evaluate_node(*node.op, node.attrs, operands);
    if (!results) {
      llvm::consumeError(results.takeError());
      return std::nullopt;
    }
    for (size_t i = 0; i < results->size(); ++i) values[index_of(node.results[i])] = std::move((*results)[i]);
  }
  return std::move(values[index_of(value)]);
}

// Where a dimension of `time` elements was shortened on the way to `value`, the first element that is left; none where
// no slice did that. The way goes through first operands, which have the positions in all ops between a model's blocks
// and its loss.
std::optional<int64_t> first_position_left(const Graph& graph, ValueId value, int64_t time) {
  while (graph.value(value).producer != NodeId::None) {
    const Node& node = graph.node(graph.value(value).producer);
    const ValueId operand = node.operands.empty() ? ValueId::None : node.operands.front();
    if (operand == ValueId::None) return std::nullopt;
    const Shape &whole = graph.type(operand).shape, &part = graph.type(value).shape;
    if (node.op->name == "slice")
      for (size_t d = 0; d < whole.size(); ++d)
        if (whole[d] == time && part[d] < time && node.attrs.get_ints("steps")[d] == 1)
          return node.attrs.get_ints("starts")[d];
    value = operand;
  }
  return std::nullopt;
}

// Row r of the loss compares the prediction at position t with the label at t + shift; none where rows differ in that.
std::optional<int64_t> common_shift(const Tensor& labels, int64_t samples, int64_t time, int64_t first_logit) {
  const int64_t rows = labels.type().elements() / samples;
  std::optional<int64_t> shift;
  for (int64_t r = 0; r < labels.type().elements(); ++r) {
    const int64_t position = labels.get_int(r) - first_position;
    if (position < 0 || position >= samples * time) continue;  // a fill, which the loss ignores
    const int64_t here = position % time - (r % rows + first_logit);
    if (position / time != r / rows || (shift && *shift != here)) return std::nullopt;
    shift = here;
  }
  return shift;
}

// The shift between the predictions and the labels of one loss over [samples, time] labels.
std::optional<int64_t> shift_of(const Graph& graph, const Node& loss, ValueId input, const std::vector<bool>& below) {
  const Shape& shape = graph.type(input).shape;
  const ValueId labels = operand_of(loss, loss.op->class_labels);
  const int64_t rows = graph.type(labels).elements();
  if (shape.size() != 2 || shape[0] == 0 || rows % shape[0] != 0) return std::nullopt;
  std::optional<int64_t> first = 0;
  if (rows < graph.type(input).elements()) first = first_position_left(graph, loss.operands.front(), shape[1]);
  const std::optional<Tensor> positions = evaluate_positions(graph, input, labels, below);
  return first && positions ? common_shift(*positions, shape[0], shape[1], *first) : std::nullopt;
}

class IndexInputs {
 public:
  explicit IndexInputs(const Graph& graph) : graph_(graph) {}

  std::vector<IndexInput> find() {
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      const Node& node = graph_.node(id);
      if (node.op->name == "gather") add_table(node);
      if (node.op->is_loss_over_classes()) add_loss(node);
    }
    return std::move(found_);
  }

 private:
  IndexInput& entry(ValueId input) {
    const std::string& name = graph_.value(input).name;
    const auto at = llvm::find_if(found_, [&](const IndexInput& other) { return other.name == name; });
    if (at != found_.end()) return *at;
    found_.push_back({});
    found_.back().name = name;
    return found_.back();
  }

  void limit(IndexInput& input, int64_t count) {
    input.count = input.count == 0 ? count : std::min(input.count, count);
  }

  void add_table(const Node& node) {
    const ValueId input = moved_input(graph_, operand_of(node, "indices"));
    if (input == ValueId::None) return;
    const Shape& table = graph_.type(node.operands.front()).shape;
    IndexInput& index = entry(input);
    index.is_token = true;
    limit(index, table[static_cast<size_t>(node.attrs.get_int("axis"))]);
  }

  void add_loss(const Node& node) {
    const ValueId labels = operand_of(node, node.op->class_labels);
    if (is_float(graph_.type(labels).dtype)) return;
    const std::vector<bool> below = find_contributing(graph_, {labels}, Flow::Data);
    const ValueId input = only_input(graph_, below);
    if (input == ValueId::None) return;
    IndexInput& index = entry(input);
    const Shape& scores = graph_.type(node.operands.front()).shape;
    limit(index, node.attrs.get_int("classes", scores[1]));
    index.is_label = true;
    if (node.attrs.has("ignore_index")) index.ignored = node.attrs.get_int("ignore_index");
    const std::optional<int64_t> shift = shift_of(graph_, node, input, below);
    if (!shift) return;
    index.shift = index.shift ? std::min(*index.shift, *shift) : *shift;
  }

  const Graph& graph_;
  std::vector<IndexInput> found_;
};

}  // namespace

std::vector<IndexInput> find_index_inputs(const Graph& forward) { return IndexInputs(forward).find(); }

}  // namespace plimsoll
