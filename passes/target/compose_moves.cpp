#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include "llvm/ADT/STLExtras.h"

#include <map>
#include <numeric>

// Transposes, splits, slices and concatenations that follow each other move the rows of one value to other places, each
// by a copy of its own: images that are rolled along both axes and cut into windows take five. Where two copies and
// more go, one lookup by constant indices takes their place.
//
// It is right because what such ops do depends on places alone: they are followed with the numbers of rows in the place
// of the rows. A row is a run of elements that all of them keep together, whole vectors of a lookup. Images of a batch
// have the same indices where no row changes its image.

namespace plimsoll {
namespace {

constexpr int64_t vector_bytes = 16, least_row_bytes = 64;
constexpr size_t max_nodes = 32;
constexpr int64_t max_rows = int64_t{1} << 23;  // followed through each node: 32 MiB of numbers

// By place of the result, the number of the source's row.
using Rows = std::vector<int32_t>;

// The one axis along which a slice takes consecutive elements; none where it does anything else.
std::optional<int64_t> axis_of_slice(const Graph& graph, const Node& slice) {
  const Shape &whole = graph.type(slice.operands[0]).shape, &own = graph.type(slice.results[0]).shape;
  std::optional<int64_t> axis;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (slice.attrs.get_ints("steps")[d] != 1) return std::nullopt;
    if (own[d] == whole[d]) continue;
    if (axis) return std::nullopt;
    axis = static_cast<int64_t>(d);
  }
  return axis;
}

bool is_move(const Graph& graph, const Node& node) {
  const llvm::StringRef op = node.op->name;
  return op == "transpose" || op == "split" || op == "concat" || op == "reshape" ||
         (op == "slice" && axis_of_slice(graph, node));
}

// The nodes between one source and a value that they move the rows of.
class Chain {
 public:
  Chain(const Graph& graph, NodeId end) : graph_(graph), end_(end), phase_(graph.node(end).phase) {}

  // False where the value is not made of rows of one source, or of rows that are no whole vectors.
  bool follow() {
    const ValueId value = result();
    if (graph_.type(value).elements() == 0 || !collect(value) || nodes_.size() > max_nodes) return false;
    const Type& source = graph_.type(source_);
    if (source.shape.empty()) return false;
    row_ = source.elements();
    for (NodeId id : nodes_) shorten_row(graph_.node(id));
    const int64_t bytes = row_ * dtype_bytes(source.dtype);
    return bytes >= least_row_bytes && bytes % vector_bytes == 0 && source.elements() / row_ <= max_rows;
  }

  // Copies that are not made once the value is looked up.
  int64_t copies_saved() const {
    return llvm::count_if(nodes_, [&](NodeId id) { return copies(graph_.node(id)) && (id == end_ || vanishes(id)); });
  }

  ValueId source() const { return source_; }
  ValueId result() const { return graph_.node(end_).results[0]; }
  int64_t row() const { return row_; }  // elements

  Rows rows() {
    std::map<ValueId, Rows> known;
    Rows all(static_cast<size_t>(graph_.type(source_).elements() / row_));
    std::iota(all.begin(), all.end(), 0);
    known.emplace(source_, std::move(all));
    for (NodeId id : nodes_) move_rows(graph_.node(id), known);
    return std::move(known.at(result()));
  }

 private:
  // Puts the nodes behind the value in front of each other, the first at the front.
  bool collect(ValueId value) {
    const NodeId id = graph_.value(value).producer;
    const bool moves = id != NodeId::None && graph_.node(id).phase == phase_ && is_move(graph_, graph_.node(id));
    if (!moves) {
      if (source_ == ValueId::None) source_ = value;
      return source_ == value;
    }
    if (llvm::is_contained(nodes_, id)) return true;
    if (nodes_.size() > max_nodes) return false;
    for (ValueId operand : graph_.node(id).operands)
      if (!collect(operand)) return false;
    nodes_.push_back(id);
    return true;
  }

  void shorten_row(const Node& node) {
    const Shape& in = graph_.type(node.operands[0]).shape;
    const auto keep_together = [&](int64_t elements) { row_ = std::gcd(row_, elements); };
    const auto behind = [&](int64_t axis) { return element_count(llvm::ArrayRef<int64_t>(in).drop_front(axis + 1)); };
    if (node.op->name == "transpose") {
      const llvm::ArrayRef<int64_t> perm = node.attrs.get_ints("perm");
      size_t kept = perm.size();
      while (kept > 0 && perm[kept - 1] == static_cast<int64_t>(kept - 1)) --kept;
      keep_together(element_count(llvm::ArrayRef<int64_t>(in).drop_front(kept)));
    } else if (node.op->name == "slice") {
      const int64_t axis = axis_of_slice(graph_, node).value_or(0);
      keep_together(in[static_cast<size_t>(axis)] * behind(axis));
      keep_together(node.attrs.get_ints("starts")[static_cast<size_t>(axis)] * behind(axis));
      keep_together(node.attrs.get_ints("sizes")[static_cast<size_t>(axis)] * behind(axis));
    } else if (node.op->name != "reshape") {
      const int64_t axis = node.attrs.get_int("axis");
      for (ValueId part : node.op->name == "split" ? parts(node.results) : parts(node.operands))
        keep_together(graph_.type(part).shape[static_cast<size_t>(axis)] * behind(axis));
    }
  }

  static llvm::ArrayRef<ValueId> parts(const llvm::SmallVectorImpl<ValueId>& values) { return values; }

  // Does the node copy bytes? Parts that are runs of their whole lie in it (passes/place/place_parts.h).
  bool copies(const Node& node) const {
    if (node.op->name == "reshape") return false;
    if (node.op->name == "transpose") return true;
    const int64_t axis =
        node.op->name == "slice" ? axis_of_slice(graph_, node).value_or(0) : node.attrs.get_int("axis");
    return element_count(llvm::ArrayRef<int64_t>(graph_.type(node.operands[0]).shape).take_front(axis)) > 1;
  }

  bool vanishes(NodeId id) const {
    return llvm::all_of(graph_.node(id).results, [&](ValueId result) {
      return !leaves_graph(graph_, result) && llvm::all_of(graph_.value(result).users, [&](NodeId user) {
        return llvm::is_contained(nodes_, user) && (user == end_ || vanishes(user));
      });
    });
  }

  void move_rows(const Node& node, std::map<ValueId, Rows>& known) const {
    const llvm::StringRef op = node.op->name;
    if (op == "reshape") {
      known[node.results[0]] = known.at(node.operands[0]);
    } else if (op == "transpose") {
      known[node.results[0]] = transposed(node, known.at(node.operands[0]));
    } else if (op == "concat") {
      Rows& whole = known[node.results[0]];
      const int64_t axis = node.attrs.get_int("axis"), outer = outer_of(node.results[0], axis);
      for (int64_t o = 0; o < outer; ++o)
        for (ValueId part : node.operands) {
          const Rows& rows = known.at(part);
          const auto length = static_cast<ptrdiff_t>(rows.size()) / outer;
          whole.insert(whole.end(), rows.begin() + o * length, rows.begin() + (o + 1) * length);
        }
    } else {
      take_parts(node, known);
    }
  }

  void take_parts(const Node& node, std::map<ValueId, Rows>& known) const {
    const Shape& in = graph_.type(node.operands[0]).shape;
    const bool is_slice = node.op->name == "slice";
    const int64_t axis = is_slice ? axis_of_slice(graph_, node).value_or(0) : node.attrs.get_int("axis");
    const auto d = static_cast<size_t>(axis);
    const int64_t outer = outer_of(node.operands[0], axis);
    const Rows& whole = known.at(node.operands[0]);
    const auto length = static_cast<ptrdiff_t>(whole.size()) / outer;
    int64_t start = is_slice ? node.attrs.get_ints("starts")[d] : 0;
    for (ValueId result : node.results) {
      const int64_t size = graph_.type(result).shape[d];
      const ptrdiff_t first = length * start / in[d], last = length * (start + size) / in[d];
      Rows part;
      for (int64_t o = 0; o < outer; ++o)
        part.insert(part.end(), whole.begin() + o * length + first, whole.begin() + o * length + last);
      known[result] = std::move(part);
      start += size;
    }
  }

  int64_t outer_of(ValueId value, int64_t axis) const {
    return element_count(llvm::ArrayRef<int64_t>(graph_.type(value).shape).take_front(static_cast<size_t>(axis)));
  }

  // The dimensions that change places, and the rows of each place behind them as one more.
  Rows transposed(const Node& node, const Rows& rows) const {
    const llvm::ArrayRef<int64_t> perm = node.attrs.get_ints("perm");
    Shape in = graph_.type(node.operands[0]).shape;
    size_t moved = perm.size();
    while (moved > 0 && perm[moved - 1] == static_cast<int64_t>(moved - 1)) --moved;
    const int64_t behind = element_count(llvm::ArrayRef<int64_t>(in).drop_front(moved)) / row_;
    in.resize(moved);
    const Shape strides = row_major_strides(in);
    Rows result;
    result.reserve(rows.size());
    Shape at(moved, 0);
    for (size_t i = 0; i < rows.size() / static_cast<size_t>(behind); ++i) {
      int64_t from = 0;
      for (size_t d = 0; d < moved; ++d) from += at[d] * strides[static_cast<size_t>(perm[d])];
      result.insert(result.end(), rows.begin() + from * behind, rows.begin() + (from + 1) * behind);
      for (size_t d = moved; d-- > 0 && ++at[d] == in[static_cast<size_t>(perm[d])];) at[d] = 0;
    }
    return result;
  }

  const Graph& graph_;
  NodeId end_;
  Phase phase_;
  ValueId source_ = ValueId::None;
  std::vector<NodeId> nodes_;  // each behind those that it reads
  int64_t row_ = 0;
};

// Do all images have the rows of the first one, each its own?
bool repeats(const Rows& rows, int64_t images, int64_t source_rows) {
  const int64_t count = static_cast<int64_t>(rows.size()) / images, step = source_rows / images;
  for (int64_t i = count; i < count * images; ++i)
    if (rows[static_cast<size_t>(i)] != rows[static_cast<size_t>(i - count)] + step) return false;
  return llvm::all_of(llvm::ArrayRef<int32_t>(rows).take_front(static_cast<size_t>(count)),
                      [&](int32_t row) { return row < step; });
}

// Does an op that needs the value in one piece read it?
bool is_end(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const auto needs = [&](NodeId user) {
    return graph.node(user).phase != node.phase || !is_move(graph, graph.node(user));
  };
  const auto is_needed = [&](auto self, ValueId value) -> bool {
    return leaves_graph(graph, value) || llvm::any_of(graph.value(value).users, [&](NodeId user) {
             const Node& reader = graph.node(user);
             return needs(user) || (reader.op->name == "reshape" && self(self, reader.results[0]));
           });
  };
  return (node.op->name == "transpose" || node.op->name == "concat") && is_needed(is_needed, node.results[0]);
}

bool compose(Graph& graph, NodeId end, PassContext& context) {
  Chain chain(graph, end);
  if (!chain.follow()) return false;
  const Type source = graph.type(chain.source());
  const Type result = graph.type(chain.result());
  const int64_t source_rows = source.elements() / chain.row();
  const int64_t saved = chain.copies_saved();
  if (saved < 2) return false;
  Rows rows = chain.rows();
  const auto count = static_cast<int64_t>(rows.size());
  int64_t images = std::gcd(source.shape.front(), result.shape.front());
  if (source_rows % images != 0 || count % images != 0 || !repeats(rows, images, source_rows)) images = 1;
  rows.resize(static_cast<size_t>(count / images));
  // Indices of their own for each row would be read like the rows.
  if (static_cast<int64_t>(rows.size()) * dtype_bytes(DType::I32) * 16 > result.bytes()) return false;

  Builder b = builder_at(graph, end);
  const std::string name = graph.value(chain.result()).name;
  Tensor numbers(Type(DType::I32, {static_cast<int64_t>(rows.size())}));
  llvm::copy(rows, numbers.view().as<int32_t>());
  const ValueId of_images = b.reshape(chain.source(), {images, source_rows / images, chain.row()});
  const ValueId picked =
      b.emit("gather", {of_images, b.constant(std::move(numbers), name + ".rows")}, {{"axis", int64_t{1}}});
  replace_and_rename(graph, chain.result(), b.reshape(picked, result.shape));
  if (graph.value(picked).name != name) graph.rename(picked, name + ".moved");
  context.count("copies", saved - 1);
  return true;
}

Result<bool> run_compose_moves(Graph& graph, PassContext& context) {
  bool changed = false;
  // From the back, so that what a chain no longer reads is no end of another one.
  std::vector<NodeId> order = graph.order();
  for (NodeId id : llvm::reverse(order))
    if (is_end(graph, id)) changed |= compose(graph, id, context);
  return changed;
}

}  // namespace

constinit const PassInfo pass_compose_moves{
    .name = "compose-moves",
    .summary = "make one lookup of rows of transposes, splits, slices and concatenations that follow each other",
    .keeps_result = true,
    .run = run_compose_moves,
};

}  // namespace plimsoll
