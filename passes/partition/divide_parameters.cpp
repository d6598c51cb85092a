#include "passes/partition/divide_parameters.h"

#include "ir/builder.h"
#include "passes/partition/pieces.h"
#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

#include <map>

// ZeRO-3: each rank keeps its piece of every parameter. The whole is gathered where it is read; its gradient comes back
// as the rank's piece of the sum, since that is the gradient of gathering.

namespace plimsoll {
namespace {

class ParameterDivider {
 public:
  ParameterDivider(Graph& graph, int64_t ranks, DType sum_dtype, llvm::ArrayRef<int32_t> chunk)
      : graph_(graph), ranks_(ranks), sum_dtype_(sum_dtype), chunk_(chunk) {}

  int64_t run() {
    int64_t divided = 0;
    for (State& state : graph_.states) {
      const Type whole = graph_.type(state.value);
      const Shape piece = state.role == StateRole::Parameter ? piece_shape(whole.shape, ranks_) : Shape();
      if (piece.empty() || graph_.value(state.value).users.empty()) continue;
      divide(state, whole, piece);
      ++divided;
    }
    return divided;
  }

 private:
  void divide(State& state, const Type& whole, const Shape& piece) {
    std::map<int32_t, llvm::SmallVector<NodeId, 4>> users_by_chunk;
    for (NodeId user : graph_.value(state.value).users) users_by_chunk[chunk_of(user)].push_back(user);
    graph_.set_type(state.value, Type(whole.dtype, piece));
    state.divisions.push_back({MeshAxis::Data, whole.shape, {}});
    for (const auto& each : users_by_chunk) gather_for(each.second, state, whole);
  }

  int32_t chunk_of(NodeId id) const { return index_of(id) < chunk_.size() ? chunk_[index_of(id)] : -1; }

  void gather_for(llvm::ArrayRef<NodeId> users, const State& state, const Type& whole) {
    const ValueId value = state.value;
    Builder b = builder_at(graph_, first_of(users));
    b.origin = state.origin;
    // A copy in another type is made of the piece: fewer bits are fewer bytes to gather.
    if (const std::optional<DType> dtype = cast_by_all(users)) {
      const ValueId gathered = gather(b, value, whole.shape, *dtype);
      for (NodeId user : users) {
        graph_.replace_uses(graph_.node(user).results[0], gathered);
        graph_.erase_node(user);
      }
      return;
    }
    const ValueId gathered = gather(b, value, whole.shape, whole.dtype);
    for (NodeId user : users)
      for (size_t i = 0; i < graph_.node(user).operands.size(); ++i)
        if (graph_.node(user).operands[i] == value) graph_.set_operand(user, i, gathered);
  }

  ValueId gather(Builder& b, ValueId piece, llvm::ArrayRef<int64_t> shape, DType dtype) {
    Attrs attrs = data_group(ranks_, shape);
    if (dtype != b.type(piece).dtype) attrs.set("to", dtype);
    if (sum_dtype_ != DType::F32) attrs.set("sum", sum_dtype_);
    return b.emit("gather_pieces", {piece}, std::move(attrs));
  }

  NodeId first_of(llvm::ArrayRef<NodeId> nodes) const {
    for (NodeId id = graph_.first_node();; id = graph_.next_node(id))
      if (llvm::is_contained(nodes, id)) return id;
  }

  std::optional<DType> cast_by_all(llvm::ArrayRef<NodeId> users) const {
    std::optional<DType> dtype;
    for (NodeId user : users) {
      const Node& node = graph_.node(user);
      if (node.op->name != "cast" || (dtype && *dtype != node.attrs.get_dtype("to"))) return std::nullopt;
      dtype = node.attrs.get_dtype("to");
    }
    return dtype;
  }

  Graph& graph_;
  int64_t ranks_;
  DType sum_dtype_;
  llvm::ArrayRef<int32_t> chunk_;  // by node
};

Result<bool> run_divide_parameters(Graph& graph, PassContext& context) {
  const int64_t divided =
      divide_parameters(graph, context.number("ranks"), context.text("sums") == "bf16" ? DType::BF16 : DType::F32);
  context.count("divided", divided);
  return divided > 0;
}

constexpr PassOption pass_options[] = {{"ranks", 2, "how many ranks keep a piece each", 2},
                                       {"sums", "fp32", "in what gradients are added up: fp32 or bf16"}};

}  // namespace

int64_t divide_parameters(Graph& graph, int64_t ranks, DType sum_dtype, llvm::ArrayRef<int32_t> chunk) {
  return ParameterDivider(graph, ranks, sum_dtype, chunk).run();
}

constinit const PassInfo pass_divide_parameters{
    .name = "divide-parameters",
    .summary = "each rank keeps its piece of the parameters and gathers the whole where it is read",
    .stage = Stage::Forward,
    .keeps_result = false,
    .options = pass_options,
    .run = run_divide_parameters,
};

}  // namespace plimsoll
