#include "passes/rewrite/patterns.h"

#include <set>

// Puts the channels of images last, where tensor cores want them. Types stay dense and row-major, so a layout is a
// permutation of dimensions that the graph shows as transposes: convolutions become their {channels_last} form between
// transposes, and one walk carries the transposes down past all ops that can follow. A value has its channels last if a
// transpose makes its channels-first form from it, ours or the exporter's. dce removes transposes that nobody reads in
// the end.
//
// Transposes of [N, C, L] are everywhere in transformers and mean something else there, so that lines are followed from
// convolutions alone. So are images in a graph whose convolutions have none.
//
// Each rewritten node is the same function of permuted tensors, with the dimensions in its attributes renumbered.
// Dropout draws by position, and the same numbers must fall on the same elements: its form draws in the order that the
// channels-first one has. Ops that give classes or indices in ONNX's order do not follow; a transpose stays around
// them.

namespace plimsoll {
namespace {

constexpr size_t line_rank = 3;  // [N, C, L]

Ints to_last(size_t rank) {
  Ints perm{0};
  for (size_t d = 2; d < rank; ++d) perm.push_back(static_cast<int64_t>(d));
  perm.push_back(1);
  return perm;
}

Ints to_first(size_t rank) {
  Ints perm{0, static_cast<int64_t>(rank) - 1};
  for (size_t d = 1; d + 1 < rank; ++d) perm.push_back(static_cast<int64_t>(d));
  return perm;
}

// The place of a dimension of [N, C, spatial...] in [N, spatial..., C].
int64_t renumbered(int64_t dim, size_t rank) {
  if (dim == 0) return 0;
  return dim == 1 ? static_cast<int64_t>(rank) - 1 : dim - 1;
}

// The value with its channels last; None where the graph does not have it.
ValueId channels_last_twin(const Graph& graph, ValueId value, size_t rank) {
  const Node* back = producer_of(graph, value, "transpose");
  bool is_twin = back && graph.type(value).shape.size() == rank &&
                 back->attrs.get_ints("perm") == llvm::ArrayRef<int64_t>(to_first(rank));
  return is_twin ? back->operands[0] : ValueId::None;
}

// Of an image that is cut from rows of channels, as tokens of a transformer are, these rows [N, positions, C]; None
// where it is not.
ValueId rows_of_image(const Graph& graph, ValueId value, size_t rank) {
  const Node* cut = producer_of(graph, value, "reshape");
  if (!cut || rank == line_rank || graph.type(value).shape.size() != rank) return ValueId::None;
  const Shape &image = graph.type(value).shape, &line = graph.type(cut->operands[0]).shape;
  const bool keeps_channels = line.size() == line_rank && line[0] == image[0] && line[1] == image[1];
  return keeps_channels ? channels_last_twin(graph, cut->operands[0], line_rank) : ValueId::None;
}

// Does the permutation move elements, or only dimensions of size 1?
bool moves_elements(const Type& type, size_t rank) {
  if (type.shape.size() + 1 < rank) return false;  // [W] and [H, W] of an image
  size_t missing = rank - type.shape.size();
  int64_t channels = type.shape[1 - missing], positions = element_count(type.shape) / std::max<int64_t>(channels, 1);
  if (missing == 0) positions /= std::max<int64_t>(type.shape[0], 1);
  return channels > 1 && positions > 1;
}

// ---- Forms of ops ----

// A node's form on tensors with channels last. `operands` and `results` count those that have channels, from the first.
struct Form {
  Attrs attrs;
  size_t operands, results;
};

// The permutation of patches [N, C, taps, out...] to [N, out..., taps, C].
Ints patches_to_last(size_t rank) {
  Ints perm{0};
  for (size_t d = 3; d < rank; ++d) perm.push_back(static_cast<int64_t>(d));
  perm.append({2, 1});
  return perm;
}
Ints patches_to_first(size_t rank) {
  const auto last = static_cast<int64_t>(rank) - 1;
  Ints perm{0, last, last - 1};
  for (int64_t d = 1; d + 1 < last; ++d) perm.push_back(d);
  return perm;
}

// Reduced dimensions are kept, so that the result still has a channel dimension.
Attrs renumbered_axes(const Attrs& attrs, size_t rank) {
  Ints axes;
  for (int64_t axis : attrs.get_ints("axes")) axes.push_back(renumbered(axis, rank));
  llvm::sort(axes);
  Attrs moved = attrs;
  moved.set("axes", axes);
  moved.set("keep_dims", int64_t{1});
  return moved;
}

// Counts from the first those values that have all dimensions of an image.
size_t count_images(const Graph& graph, llvm::ArrayRef<ValueId> values, size_t rank) {
  const auto* end = llvm::find_if(
      values, [&](ValueId value) { return value == ValueId::None || graph.type(value).shape.size() != rank; });
  return static_cast<size_t>(end - values.begin());
}

// Groups of few channels each, such as one, are read in long runs with the channels first alone. Images keep together
// all the same: transposes around each norm would cost more.
bool is_narrow_group_norm(const Graph& graph, const Node& node, size_t rank) {
  constexpr int64_t narrow = 8;
  return rank == 3 && node.op->name == "group_norm" &&
         graph.type(node.operands[0]).shape[1] < narrow * node.attrs.get_int("groups");
}

std::optional<Form> channels_last_form(const Graph& graph, const Node& node, size_t rank) {
  Form form{node.attrs, node.operands.size(), node.results.size()};
  if (node.op->elementwise) return form;
  switch (node.op->dim_order) {
    case DimOrder::ChannelsLast:
      if (node.attrs.get_int("channels_last") || is_narrow_group_norm(graph, node, rank)) return std::nullopt;
      form.attrs.set("channels_last", int64_t{1});
      return Form{form.attrs, count_images(graph, node.operands, rank), count_images(graph, node.results, rank)};
    case DimOrder::Axis: form.attrs.set("axis", renumbered(node.attrs.get_int("axis"), rank)); return form;
    case DimOrder::Axes: form.attrs = renumbered_axes(node.attrs, rank); return form;
    case DimOrder::Lists: form.attrs = with_dims_permuted(node.attrs, to_last(rank)); return form;
    case DimOrder::Fixed:
    case DimOrder::LastStays:
    case DimOrder::FromAxisStay: return std::nullopt;
  }
  return std::nullopt;
}

// Has a line's convolution one tap, and no groups?
bool is_product(const Graph& graph, const Node& node) {
  return graph.type(node.operands[1]).shape.back() == 1 && node.attrs.get_int("groups", 1) == 1;
}

bool is_convolution(const Node& node) { return node.op->name == "conv" || node.op->name == "conv_transpose"; }

// Pools of planes take 6 to 45 times as long as a copy of what they move, two transposes around pools of pixels twice.
bool is_pool(const Node& node) { return node.op->name == "max_pool" || node.op->name == "average_pool"; }

// ---- The walk ----

size_t rank_of(const Graph& graph, const Node& node) {
  size_t rank = graph.type(node.results[0]).shape.size();
  if (!node.operands.empty() && node.operands[0] != ValueId::None)
    rank = std::max(rank, graph.type(node.operands[0]).shape.size());
  return rank;
}

ValueId with_channels_last(Builder& b, ValueId value, size_t rank) {
  if (value == ValueId::None || b.type(value).elements() == 1) return value;
  if (ValueId twin = channels_last_twin(b.graph(), value, rank); twin != ValueId::None) return twin;
  if (ValueId rows = rows_of_image(b.graph(), value, rank); rows != ValueId::None) {
    const Shape& image = b.type(value).shape;
    Shape last;
    for (int64_t dim : to_last(rank)) last.push_back(image[dim]);
    return b.reshape(rows, last);
  }
  Shape shape(rank - b.type(value).shape.size(), 1);
  shape.append(b.type(value).shape.begin(), b.type(value).shape.end());
  const std::string name = b.graph().value(value).name + ".channels_last";
  return b.emit("transpose", {b.reshape(value, shape)}, {{"perm", to_last(rank)}}, name);
}

// The value with its channels last keeps the name. Returns the results, of which the first {results} are such values.
llvm::SmallVector<ValueId, 4> rewrite(Graph& graph, NodeId id, const Form& form, size_t rank) {
  const Node& node = graph.node(id);
  Builder b = builder_at(graph, id);
  llvm::SmallVector<ValueId, 4> operands(node.operands.begin(), node.operands.end());
  for (size_t i = 0; i < form.operands && i < operands.size(); ++i)
    operands[i] = with_channels_last(b, operands[i], rank);
  llvm::SmallVector<ValueId, 4> made = b.emit_all(node.op->name, operands, form.attrs);
  llvm::SmallVector<ValueId, 4> in_place = made;
  for (size_t r = 0; r < form.results; ++r)
    in_place[r] = b.reshape(b.transpose(made[r], to_first(rank)), Shape(graph.type(node.results[r]).shape));
  llvm::SmallVector<std::string, 4> names;
  for (size_t r = 0; r < made.size(); ++r) {
    names.push_back(graph.value(node.results[r]).name);
    graph.replace_uses(node.results[r], in_place[r]);
  }
  graph.erase_node(id);
  for (size_t r = 0; r < made.size(); ++r) {
    graph.rename(made[r], names[r]);
    if (in_place[r] != made[r]) graph.rename(in_place[r], names[r] + ".channels_first");
  }
  return made;
}

// Patches gain by themselves as convolutions do: their taps are runs of channels then.
bool rewrite_patches(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.attrs.get_int("channels_last")) return false;
  const bool is_fold = node.op->name == "fold";
  const ValueId x = node.operands[0], y = node.results[0];
  const size_t rank = graph.type(is_fold ? y : x).shape.size();
  Builder b = builder_at(graph, id);
  Attrs attrs = node.attrs;
  attrs.set("channels_last", int64_t{1});
  if (is_fold) {
    const llvm::ArrayRef<int64_t> first = node.attrs.get_ints("shape");
    Ints shape;
    for (int64_t d : to_last(rank)) shape.push_back(first[static_cast<size_t>(d)]);
    attrs.set("shape", shape);
  }
  const ValueId moved = is_fold ? b.transpose(x, patches_to_last(rank + 1)) : with_channels_last(b, x, rank);
  const std::string name = graph.value(y).name;
  const ValueId made = b.emit(node.op->name, {moved}, attrs);
  const ValueId in_place = b.transpose(made, is_fold ? to_first(rank) : patches_to_first(rank + 1));
  graph.replace_uses(y, in_place);
  graph.erase_node(id);
  graph.rename(made, name);
  graph.rename(in_place, name + ".channels_first");
  return true;
}

bool has_images(const Graph& graph) {
  return llvm::any_of(graph.order(), [&](NodeId id) {
    return is_convolution(graph.node(id)) && rank_of(graph, graph.node(id)) > line_rank;
  });
}

class Walk {
 public:
  explicit Walk(const Graph& graph) : has_images_(has_images(graph)) {}

  bool try_node(Graph& graph, NodeId id) {
    const Node& node = graph.node(id);
    const size_t rank = rank_of(graph, node);
    if (rank < line_rank || (rank > line_rank && !has_images_)) return false;
    std::optional<Form> form = channels_last_form(graph, node, rank);
    if (!form || !pays(graph, node, *form, rank)) return false;
    const llvm::SmallVector<ValueId, 4> made = rewrite(graph, id, *form, rank);
    if (rank == line_rank) lines_.insert(made.begin(), made.begin() + form->results);
    return true;
  }

 private:
  // Does the graph have the value with its channels last, so that a node gains?
  bool is_there(const Graph& graph, ValueId value, size_t rank) const {
    const ValueId twin = channels_last_twin(graph, value, rank);
    if (rank == line_rank) return lines_.count(twin) > 0;
    return twin != ValueId::None || rows_of_image(graph, value, rank) != ValueId::None;
  }

  // A convolution gains by itself, but for a line's that is a matmul in either layout, and so does an image's pool.
  // Another node gains when it needs no more elements transposed on the way in than would be transposed back for it.
  bool pays(const Graph& graph, const Node& node, const Form& form, size_t rank) const {
    if (is_convolution(node) && (rank > line_rank || !is_product(graph, node))) return true;
    if (is_pool(node) && rank > line_rank) return true;
    int64_t there = 0, to_move = 0;
    bool any = false;
    for (ValueId operand : llvm::ArrayRef<ValueId>(node.operands).take_front(form.operands)) {
      if (operand == ValueId::None) continue;
      const Type& type = graph.type(operand);
      if (is_there(graph, operand, rank)) {
        any = true;
        there += type.elements();
      } else if (moves_elements(type, rank)) {
        to_move += type.elements();
      }
    }
    return any && there >= to_move;
  }

  bool has_images_;
  std::set<ValueId> lines_;  // with their channels last
};

Result<bool> run_channels_last(Graph& graph, PassContext& context) {
  Walk walk(graph);
  auto try_node = [&](Graph& in, NodeId id) { return walk.try_node(in, id); };
  const bool changed = apply_patterns(graph, context,
                                      {{"conv", "convolutions", try_node},
                                       {"conv_transpose", "convolutions", try_node},
                                       {"unfold", "patches", rewrite_patches},
                                       {"fold", "patches", rewrite_patches},
                                       {"", "followed", try_node}});
  const int64_t convolutions = context.counters["convolutions"], followed = context.counters["followed"];
  if (convolutions > 0)
    context.decide("images", "channels last",
                   std::to_string(convolutions) + " convolutions read them so, " + std::to_string(followed) +
                       " other nodes follow");
  return changed;
}

}  // namespace

constinit const PassInfo pass_channels_last{
    .name = "channels-last",
    .summary = "put the channels of convolutions and pools, and of what lies between them, last",
    .stage = Stage::Forward,
    .run = run_channels_last,
};

}  // namespace plimsoll
