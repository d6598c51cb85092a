#include "passes/partition/divide_as_planned.h"

#include "ir/builder.h"
#include "passes/partition/divide_batch.h"
#include "passes/partition/divide_parameters.h"
#include "passes/partition/divide_tensors.h"
#include "passes/rewrite/match.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

const Division* along(const OwnState* own, MeshAxis axis) {
  if (!own) return nullptr;
  const auto* found = llvm::find_if(own->divisions, [&](const Division& each) { return each.axis == axis; });
  return found == own->divisions.end() ? nullptr : &*found;
}

class PlannedDivider {
 public:
  PlannedDivider(Graph& graph, const Mesh& mesh, const llvm::StringMap<OwnState>& own, PlannedFor use, DType sum_dtype)
      : graph_(graph), mesh_(mesh), own_(own), use_(use), sum_dtype_(sum_dtype) {}

  Status run() {
    if (mesh_[MeshAxis::Tensor] > 1)
      if (Status s = divide_along_tensor()) return s;
    const bool has_pieces = llvm::any_of(graph_.states, [&](const State& state) {
      return state.role == StateRole::Parameter && along(own(state), MeshAxis::Data);
    });
    if (has_pieces) divide_parameters(graph_, mesh_[MeshAxis::Data], sum_dtype_);
    for (State& state : graph_.states)
      if (Status s = check(state)) return s;
    return Status::success();
  }

 private:
  const OwnState* own(const State& state) const {
    const auto found = own_.find(graph_.value(state.value).name);
    return found == own_.end() ? nullptr : &found->second;
  }

  Status divide_along_tensor() {
    const size_t outputs = graph_.outputs.size();
    const bool trains = use_ == PlannedFor::Training;
    Result<TensorGroups> groups = divide_tensors(graph_, mesh_[MeshAxis::Tensor], trains ? Rows::Divided : Rows::Whole,
                                                 /*made_for=*/nullptr, as_planned(graph_, own_));
    if (!groups) return groups.takeError();
    if (!trains) graph_.outputs.resize(outputs);  // where gradients would start
    for (State& state : graph_.states)
      if (const Division* planned = along(own(state), MeshAxis::Tensor);
          planned && !has_axis(state.divisions, MeshAxis::Tensor))
        gather_parts(state, *planned);
    return Status::success();
  }

  // Readers get the whole, made of all ranks' parts.
  void gather_parts(State& state, const Division& planned) {
    const Type whole = graph_.type(state.value);
    const std::vector<NodeId> users(graph_.value(state.value).users.begin(), graph_.value(state.value).users.end());
    const auto dim = static_cast<size_t>(planned.cut.dim);
    Shape part = whole.shape;
    part[dim] = part_size(planned.cut, mesh_[MeshAxis::Tensor]);
    graph_.set_type(state.value, Type(whole.dtype, part));
    state.divisions.push_back(planned);
    if (users.empty()) return;
    NodeId first = graph_.first_node();
    while (!llvm::is_contained(users, first)) first = graph_.next_node(first);
    Builder b = builder_at(graph_, first);
    b.origin = state.origin;
    const ValueId gathered = join_parts(b, state.value, whole.shape, planned.cut);
    for (NodeId user : users)
      for (size_t i = 0; i < graph_.node(user).operands.size(); ++i)
        if (graph_.node(user).operands[i] == state.value) graph_.set_operand(user, i, gathered);
  }

  // Gathering puts the ranks' parts one behind the other; of each block, they are brought together along the dimension.
  ValueId join_parts(Builder& b, ValueId part, const Shape& whole, const Cut& cut) const {
    const int64_t ranks = mesh_[MeshAxis::Tensor];
    const auto dim = static_cast<size_t>(cut.dim);
    const llvm::ArrayRef<int64_t> dims = whole;
    const int64_t before = element_count(dims.take_front(dim)), behind = element_count(dims.drop_front(dim + 1)),
                  own = b.type(part).shape[dim];
    Shape all = b.type(part).shape;
    all.insert(all.begin(), ranks);
    const ValueId parts = b.reshape(b.emit("gather_pieces", {part}, collective_attrs(MeshAxis::Tensor, ranks, all)),
                                    {ranks, before, own, behind});
    llvm::SmallVector<ValueId, 3> blocks;
    int64_t at = 0;
    for (size_t i = 0; i < cut.blocks.size(); ++i) {
      const int64_t block = cut.blocks[i], size = part_of_block(cut, i, ranks);
      ValueId joined = size == own ? parts : slice(b, parts, 2, at, size);
      joined = b.reshape(b.transpose(joined, {1, 0, 2, 3}), {before, ranks * size, behind});
      if (ranks * size > block) joined = slice(b, joined, 1, 0, block);  // parts may end behind the whole
      blocks.push_back(joined);
      at += size;
    }
    const ValueId joined = blocks.size() == 1 ? blocks.front() : b.emit("concat", blocks, {{"axis", int64_t{1}}});
    return b.reshape(joined, whole);
  }

  static ValueId slice(Builder& b, ValueId value, size_t axis, int64_t from, int64_t size) {
    Ints sizes(b.type(value).shape.begin(), b.type(value).shape.end());
    Ints starts(sizes.size(), 0), steps(sizes.size(), 1);
    starts[axis] = from, sizes[axis] = size;
    return b.emit("slice", {value}, {{"starts", starts}, {"steps", steps}, {"sizes", sizes}});
  }

  // A state that nobody reads takes whatever form the plan has.
  Status check(State& state) {
    const OwnState* planned = own(state);
    if (!planned) return Status::success();
    Type type = graph_.type(state.value);
    if (type.shape != planned->shape && graph_.value(state.value).users.empty()) {
      type.shape = planned->shape;
      graph_.set_type(state.value, type);
      state.divisions = planned->divisions;
    }
    if (type.shape == planned->shape && state.divisions == planned->divisions) return Status::success();
    return model_error((use_ == PlannedFor::Training ? "another length" : "evaluation") + llvm::Twine(" reads ") +
                       graph_.value(state.value).name + " as " + to_string(type) + ", and training keeps " +
                       to_string(planned->shape) + " of it");
  }

  Graph& graph_;
  const Mesh& mesh_;
  const llvm::StringMap<OwnState>& own_;
  PlannedFor use_;
  DType sum_dtype_;
};

}  // namespace

MayCutFn as_planned(const Graph& graph, const llvm::StringMap<OwnState>& own) {
  return [&graph, &own](const State& parameter, const Cut& cut) {
    const auto found = own.find(graph.value(parameter.value).name);
    const Division* planned = found == own.end() ? nullptr : along(&found->second, MeshAxis::Tensor);
    return planned && planned->cut == cut;
  };
}

Status divide_as_planned(Graph& graph, const Mesh& mesh, const llvm::StringMap<OwnState>& own, PlannedFor use,
                         DType sum_dtype) {
  return PlannedDivider(graph, mesh, own, use, sum_dtype).run();
}

}  // namespace plimsoll
