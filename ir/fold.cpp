#include "ir/fold.h"

// Three ways to a result, the cheapest first: data movement that only rearranges which dimensions repeat
// (fold_moves.cpp), elementwise ops on the un-expanded operands, and everything else on dense operands.

#include "ir/builder.h"
#include "ir/evaluate.h"
#include "ir/fold_moves.h"

#include <cstring>

namespace plimsoll {
namespace {

// Fills one block of a dense result; a repeated dimension is computed once and copied.
class BroadcastCopy {
 public:
  BroadcastCopy(const Tensor& base, llvm::ArrayRef<int64_t> shape) : shape_(shape) {
    Shape padded(shape.size() - base.type().shape.size(), 1);
    padded.append(base.type().shape.begin(), base.type().shape.end());
    Shape base_strides = row_major_strides(padded), strides = row_major_strides(shape);
    int64_t width = dtype_bytes(base.type().dtype);
    size_t dense = shape.size();
    while (dense > 0 && padded[dense - 1] == shape[dense - 1]) --dense;
    first_dense_ = dense;
    dense_bytes_ = width;
    for (size_t d = dense; d < shape.size(); ++d) dense_bytes_ *= shape[d];
    for (size_t d = 0; d < shape.size(); ++d) {
      from_strides_.push_back(padded[d] == shape[d] ? base_strides[d] * width : 0);
      to_strides_.push_back(strides[d] * width);
    }
  }

  void fill(std::byte* to, const std::byte* from, size_t dim = 0) const {
    if (dim == first_dense_) {
      std::memcpy(to, from, static_cast<size_t>(dense_bytes_));
      return;
    }
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      if (i > 0 && from_strides_[dim] == 0)
        std::memcpy(to + i * to_strides_[dim], to, static_cast<size_t>(to_strides_[dim]));
      else
        fill(to + i * to_strides_[dim], from + i * from_strides_[dim], dim + 1);
    }
  }

 private:
  llvm::ArrayRef<int64_t> shape_;
  Shape from_strides_, to_strides_;
  size_t first_dense_;
  int64_t dense_bytes_;
};

using Views = llvm::SmallVector<ConstantView, 4>;

// The operands of a node, when all present ones are constants. An absent operand has no base.
std::optional<Views> constant_operands(const Graph& graph, const Node& node) {
  Views views;
  for (ValueId operand : node.operands) {
    if (operand == ValueId::None) {
      views.emplace_back();
      continue;
    }
    std::optional<ConstantView> view = find_constant(graph, operand);
    if (!view) return std::nullopt;
    views.push_back(std::move(*view));
  }
  return views;
}

// Evaluates with every present operand broadcast to the shape `shape_of` gives.
template <typename ShapeOf>
Result<std::vector<Tensor>> evaluate_on(const Node& node, const Views& views, ShapeOf shape_of) {
  std::vector<Tensor> broadcast;
  broadcast.reserve(views.size());
  llvm::SmallVector<const Tensor*, 4> operands;
  for (const ConstantView& view : views) {
    if (!view.base) {
      operands.push_back(nullptr);
      continue;
    }
    llvm::ArrayRef<int64_t> shape = shape_of(view);
    bool as_is = llvm::ArrayRef<int64_t>(view.base->type().shape) == shape;
    if (!as_is) broadcast.push_back(broadcast_tensor(*view.base, shape));
    operands.push_back(as_is ? view.base.get() : &broadcast.back());
  }
  return evaluate_node(*node.op, node.attrs, operands);
}

// Whether the op has results of that shape for the bases as they are.
bool infers_shape(const Node& node, const Views& views, llvm::ArrayRef<int64_t> shape) {
  llvm::SmallVector<const Type*, 4> types;
  for (const ConstantView& view : views) types.push_back(view.base ? &view.base->type() : nullptr);
  Result<Types> results = infer(OpCall(*node.op, node.attrs, types));
  if (!results) return llvm::consumeError(results.takeError()), false;
  return llvm::all_of(*results, [&](const Type& type) { return llvm::ArrayRef<int64_t>(type.shape) == shape; });
}

using Results = std::vector<ConstantView>;

// An elementwise op commutes with expand: it is enough to compute on what the bases broadcast to.
Result<Results> fold_elementwise(const Graph& graph, const Node& node, const Views& views, const FoldLimits& limits) {
  Shape common;
  for (const ConstantView& view : views)
    if (view.base) common = *broadcast_shapes(common, view.base->type().shape);
  if (element_count(common) * static_cast<int64_t>(views.size() + 1) > limits.evaluated_elements) return Results();
  // Most ops take operands that broadcast as they are.
  const bool broadcasts = infers_shape(node, views, common);
  Result<std::vector<Tensor>> tensors =
      evaluate_on(node, views, [&](const ConstantView& view) -> llvm::ArrayRef<int64_t> {
        return broadcasts ? llvm::ArrayRef<int64_t>(view.base->type().shape) : llvm::ArrayRef<int64_t>(common);
      });
  if (!tensors) return tensors.takeError();
  Results results;
  for (auto [tensor, value] : llvm::zip(*tensors, node.results))
    results.push_back({std::make_shared<const Tensor>(std::move(tensor)), graph.type(value).shape});
  return results;
}

Result<Results> fold_dense(const Graph& graph, const Node& node, const Views& views, const FoldLimits& limits) {
  int64_t elements = 0;
  for (const ConstantView& view : views) elements += view.base ? element_count(view.shape) : 0;
  for (ValueId result : node.results) elements += graph.type(result).elements();
  if (elements > limits.evaluated_elements) return Results();
  if (flops_of(graph, node) > static_cast<double>(limits.evaluated_elements)) return Results();
  Result<std::vector<Tensor>> tensors =
      evaluate_on(node, views, [](const ConstantView& view) -> llvm::ArrayRef<int64_t> { return view.shape; });
  if (!tensors) return tensors.takeError();
  Results results;
  for (Tensor& tensor : *tensors) {
    Shape shape = tensor.type().shape;
    if (tensor.type().elements() > limits.dense_elements) tensor = collapse_repeats(std::move(tensor));
    results.push_back({std::make_shared<const Tensor>(std::move(tensor)), shape});
  }
  return results;
}

// No results: the node stays.
Result<Results> compute(const Graph& graph, const Node& node, const Views& views, const FoldLimits& limits) {
  if (views.size() == 1 && views.front().base)
    if (std::optional<ConstantView> moved = move_constant(node, views.front(), graph.type(node.results.front()).shape))
      return Results{std::move(*moved)};
  return node.op->elementwise ? fold_elementwise(graph, node, views, limits) : fold_dense(graph, node, views, limits);
}

ValueId emit_constant(Builder& builder, ConstantView view, const FoldLimits& limits, llvm::StringRef name) {
  if (element_count(view.shape) <= limits.dense_elements || !view.is_expanded()) {
    bool as_is = view.base->type().shape == view.shape;
    TensorRef dense = as_is ? view.base : std::make_shared<const Tensor>(broadcast_tensor(*view.base, view.shape));
    return builder.emit("constant", {}, {{"value", dense}}, name);
  }
  ValueId base = builder.emit("constant", {}, {{"value", view.base}}, (name + ".base").str());
  return builder.expand(base, view.shape);
}

// An expand whose operand is a constant already is the form a large repeated value is kept in.
bool is_kept_form(const Graph& graph, const Node& node, const FoldLimits& limits) {
  if (node.op->name == "constant") return true;
  if (node.op->name != "expand") return false;
  NodeId source = graph.value(node.operands.front()).producer;
  return graph.type(node.results.front()).elements() > limits.dense_elements && source != NodeId::None &&
         graph.node(source).op->name == "constant";
}

}  // namespace

std::optional<ConstantView> find_constant(const Graph& graph, ValueId value) {
  Shape shape = graph.type(value).shape;
  while (true) {
    NodeId producer = graph.value(value).producer;
    if (producer == NodeId::None) return std::nullopt;
    const Node& node = graph.node(producer);
    if (node.op->name == "constant") return ConstantView{node.attrs.get_tensor("value"), std::move(shape)};
    if (node.op->name != "expand") return std::nullopt;
    value = node.operands.front();
  }
}

TensorRef constant_value(const Graph& graph, ValueId value) {
  std::optional<ConstantView> view = find_constant(graph, value);
  if (!view) return nullptr;
  if (view->base->type().shape == view->shape) return view->base;
  return std::make_shared<const Tensor>(broadcast_tensor(*view->base, view->shape));
}

Tensor broadcast_tensor(const Tensor& base, llvm::ArrayRef<int64_t> shape) {
  Tensor dense(Type(base.type().dtype, shape));
  if (dense.type().elements() > 0)
    BroadcastCopy(base, shape).fill(static_cast<std::byte*>(dense.data()), static_cast<const std::byte*>(base.data()));
  return dense;
}

Tensor collapse_repeats(Tensor tensor) {
  for (size_t dim = 0; dim < tensor.type().shape.size(); ++dim) {
    Shape shape = tensor.type().shape;
    int64_t count = shape[dim];
    if (count < 2 || tensor.type().elements() == 0) continue;
    int64_t slice = dtype_bytes(tensor.type().dtype), outer = 1;
    for (size_t d = dim + 1; d < shape.size(); ++d) slice *= shape[d];
    for (size_t d = 0; d < dim; ++d) outer *= shape[d];
    auto* bytes = static_cast<std::byte*>(tensor.data());
    bool repeats = true;
    // Slice i equals slice i+1 for all i: one comparison of the run with itself, shifted.
    for (int64_t o = 0; repeats && o < outer; ++o)
      repeats = std::memcmp(bytes + o * count * slice, bytes + (o * count + 1) * slice,
                            static_cast<size_t>((count - 1) * slice)) == 0;
    if (!repeats) continue;
    shape[dim] = 1;
    Tensor smaller(Type(tensor.type().dtype, shape));
    for (int64_t o = 0; o < outer; ++o)
      std::memcpy(static_cast<std::byte*>(smaller.data()) + o * slice, bytes + o * count * slice,
                  static_cast<size_t>(slice));
    tensor = std::move(smaller);
  }
  return tensor;
}

Result<llvm::SmallVector<ValueId, 2>> fold_node(Graph& graph, NodeId id, const FoldLimits& limits) {
  llvm::SmallVector<ValueId, 2> replaced;
  if (is_kept_form(graph, graph.node(id), limits)) return replaced;
  std::optional<Views> views = constant_operands(graph, graph.node(id));
  if (!views) return replaced;
  Result<Results> results = compute(graph, graph.node(id), *views, limits);
  if (!results) return in_context(graph.value(graph.node(id).results.front()).name, results.takeError());
  if (results->empty()) return replaced;
  for (const ConstantView& result : *results)
    if (result.base->type().elements() > limits.kept_elements) return replaced;

  Builder builder(graph, id);
  builder.origin = graph.node(id).origin;
  builder.phase = graph.node(id).phase;
  llvm::SmallVector<ValueId, 2> old = graph.node(id).results;
  for (auto [value, result] : llvm::zip(old, *results)) {
    std::string name = graph.value(value).name;
    replaced.push_back(emit_constant(builder, std::move(result), limits, name));
    graph.replace_uses(value, replaced.back());
  }
  graph.erase_node(id);
  for (auto [value, now] : llvm::zip(old, replaced)) graph.rename(now, std::string(graph.value(value).name));
  return replaced;
}

}  // namespace plimsoll
