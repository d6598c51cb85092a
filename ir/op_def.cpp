#include "ir/op_def.h"

#include "ir/evaluate.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

namespace plimsoll {

#define PLIMSOLL_OP(name) extern const OpDef op_##name;
#include "ir/ops/ops.def"
#undef PLIMSOLL_OP

namespace {

constexpr const OpDef* ops[] = {
#define PLIMSOLL_OP(name) &op_##name,
#include "ir/ops/ops.def"
#undef PLIMSOLL_OP
};

// What has the result's rank and rows is cut; what is broadcast along dimension 0 is not.
ChunkCall elementwise_chunk(const OpCall& call) {
  size_t rank = 0;
  int64_t rows = 0;
  for (size_t i = 0; i < call.count(); ++i) {
    if (!call.has(i)) continue;
    const Shape& shape = call.operand(i).shape;
    if (shape.size() > rank) rows = 0;
    rank = std::max(rank, shape.size());
    if (rank > 0 && shape.size() == rank) rows = std::max(rows, shape[0]);
  }
  ChunkCall made{{}, {}, call.attrs};
  for (size_t i = 0; i < call.count(); ++i)
    made.cut.push_back(call.has(i) && rank > 0 && call.operand(i).shape.size() == rank &&
                       call.operand(i).shape[0] == rows);
  return made;
}

// Dimensions are aligned from the right; those of size 1 are repeated and not cut.
std::optional<DividedCall> elementwise_division(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known) {
  if (results.size() != 1) return std::nullopt;
  const Shape& whole = results[0].shape;
  const int64_t own_rank = known.side == CutAt::Side::Result ? results[0].rank() : call.operand(known.index).rank();
  const int64_t from_right = own_rank - known.cut.dim;
  auto cut_of = [&](const Shape& shape) -> std::optional<Cut> {
    const int64_t dim = static_cast<int64_t>(shape.size()) - from_right;
    if (dim < 0 || shape[static_cast<size_t>(dim)] != whole[whole.size() - static_cast<size_t>(from_right)])
      return std::nullopt;
    return Cut{dim, known.cut.blocks, known.cut.parts};
  };
  DividedCall made;
  for (size_t i = 0; i < call.count(); ++i)
    made.operands.push_back(call.has(i) ? cut_of(call.operand(i).shape) : std::nullopt);
  made.results = {cut_of(whole)};
  made.attrs = call.attrs;
  return made;
}

// What the op gives if those of its operands that are cut are `cut`, and the others `whole`; NaN where it cannot be
// called so.
double elementwise_result(const OpCall& call, const DividedCall& made, double cut, double whole) {
  std::vector<Tensor> tensors(call.count());
  llvm::SmallVector<const Tensor*, 4> operands;
  for (size_t i = 0; i < call.count(); ++i) {
    if (call.has(i)) {
      const DType own = call.operand(i).dtype, dtype = is_float(own) ? DType::F64 : own;
      tensors[i] = Tensor(Type(dtype, {}));
      if (is_float(dtype))
        tensors[i].view().set(0, made.operands[i] ? cut : whole);
      else if (!made.operands[i])
        tensors[i].view().set_int(0, dtype == DType::Bool ? whole > 0 : whole > 0 ? 2 : whole < 0 ? -3 : 0);
    }
    operands.push_back(call.has(i) ? &tensors[i] : nullptr);
  }
  Result<std::vector<Tensor>> results = evaluate_node(call.op, call.attrs, operands);
  if (results) return results->front().get(0);
  llvm::consumeError(results.takeError());
  return std::numeric_limits<double>::quiet_NaN();
}

// Zeros in what is cut give zeros, whatever the others are, and no infinite slope there. Nothing divides by zeros.
bool keeps_zeros(const OpCall& call, const DividedCall& made) {
  constexpr double near_zero = 1e-9, max_slope = 1e3;
  if (const double of_zeros = elementwise_result(call, made, 0, 0); of_zeros != 0 && !std::isnan(of_zeros))
    return false;
  for (double whole : {1.5, -0.75}) {
    if (elementwise_result(call, made, 0, whole) != 0) return false;
    for (double cut : {near_zero, -near_zero})
      if (!(std::fabs(elementwise_result(call, made, cut, whole)) <= max_slope * near_zero)) return false;
  }
  return true;
}

}  // namespace

size_t OpCall::index(PortKey operand) const { return operand.in(op.operands); }

bool OpCall::has(PortKey operand) const {
  const size_t i = index(operand);
  return i < operands_.size() && operands_[i] != nullptr;
}

bool OpCall::gives(llvm::StringRef result) const {
  const Port& port = op.results[op.result(result)];
  if (port.condition.empty()) return true;
  const bool is_operand = llvm::any_of(op.operands, [&](const Port& each) { return each.name == port.condition; });
  if (is_operand) return has(port.condition);
  return op.attr(port.condition).kind == AttrKind::DType ? attrs.has(port.condition) : get_int(port.condition) != 0;
}

size_t OpCall::result_index(PortKey result) const {
  const size_t place = result.in(op.results);
  size_t index = place;
  for (size_t i = 0; i < std::min(place, op.results.size()); ++i) index -= !gives(op.results[i].name);
  return index;
}

int64_t OpCall::get_int(llvm::StringRef name) const { return attrs.get_int(name, op.attr(name).integer); }
double OpCall::get_float(llvm::StringRef name) const { return attrs.get_float(name, op.attr(name).number); }
llvm::StringRef OpCall::get_string(llvm::StringRef name) const { return attrs.get_string(name, op.attr(name).text); }

std::vector<double> all_elements(const TensorView& view) {
  std::vector<double> values(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = view.get(static_cast<int64_t>(i));
  return values;
}

std::vector<double> ReferenceCall::load(PortKey operand) const {
  return has(operand) ? all_elements(operands[index(operand)]) : std::vector<double>();
}

void ReferenceCall::store(llvm::ArrayRef<double> values, PortKey result) const {
  const TensorView& view = out(result);
  for (size_t i = 0; i < values.size(); ++i) view.set(static_cast<int64_t>(i), values[i]);
}

int OpDef::min_operands() const {
  int count = 0;
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].is_required()) count = static_cast<int>(i) + 1;
  return count;
}

int OpDef::max_operands() const {
  return !operands.empty() && operands.back().repeats() ? -1 : static_cast<int>(operands.size());
}

const AttrSpec& OpDef::attr(llvm::StringRef wanted) const {
  const AttrSpec* spec = llvm::find_if(attrs, [&](const AttrSpec& each) { return each.name == wanted; });
  assert(spec != attrs.end() && "the record has no attribute of this name");
  return *spec;
}

llvm::SmallVector<InPlace, 4> OpDef::in_place_pairs() const {
  llvm::SmallVector<InPlace, 4> pairs;
  for (const NamePair& pair : in_place)
    pairs.push_back({static_cast<int8_t>(result(pair.result)), static_cast<int8_t>(operand(pair.operand))});
  return pairs;
}

ValueId operand_of(const Node& node, llvm::StringRef name) {
  const size_t i = node.op->operand(name);
  return i < node.operands.size() ? node.operands[i] : ValueId::None;
}

Result<Types> infer(const OpCall& call) {
  const auto count = static_cast<int64_t>(call.count());
  const int min = call.op.min_operands(), max = call.op.max_operands();
  if (count < min || (max >= 0 && count > max))
    return model_error("takes " + llvm::Twine(min) +
                       (max < 0      ? " or more"
                        : max == min ? ""
                                     : " to " + std::to_string(max)) +
                       " operands, got " + llvm::Twine(count));
  for (int i = 0; i < min; ++i)
    if (!call.has(static_cast<size_t>(i))) return model_error("operand " + llvm::Twine(i) + " is missing");
  if (Status s = check_attrs(call.attrs, call.op.attrs)) return s;
  return call.op.infer(call);
}

llvm::ArrayRef<const OpDef*> all_ops() { return ops; }

const OpDef* find_op(llvm::StringRef name) {
  // Built once, on the first question; ops are few but importers ask for each node.
  static const llvm::StringMap<const OpDef*> by_name = [] {
    llvm::StringMap<const OpDef*> map;
    for (const OpDef* op : ops) map[op->name] = op;
    return map;
  }();
  auto at = by_name.find(name);
  return at == by_name.end() ? nullptr : at->second;
}

const OpDef& get_op(llvm::StringRef name) {
  const OpDef* op = find_op(name);
  assert(op && "no such op");
  return *op;
}

llvm::SmallVector<const Type*, 4> operand_types(const Graph& graph, const Node& node) {
  llvm::SmallVector<const Type*, 4> types;
  for (ValueId operand : node.operands) types.push_back(operand == ValueId::None ? nullptr : &graph.type(operand));
  return types;
}

Types result_types(const Graph& graph, const Node& node) {
  Types types;
  for (ValueId result : node.results) types.push_back(graph.type(result));
  return types;
}

double flops_of(const Graph& graph, const Node& node) {
  Types results = result_types(graph, node);
  if (!node.op->flops) return results.empty() ? 0 : static_cast<double>(results.front().elements());
  llvm::SmallVector<const Type*, 4> operands = operand_types(graph, node);
  return node.op->flops(OpCall(*node.op, node.attrs, operands), results);
}

std::optional<ChunkCall> chunk_of(const OpDef& op, const OpCall& call, Chunk chunk) {
  std::optional<ChunkCall> found;
  if (op.chunk)
    found = op.chunk(call, chunk);
  else if (op.elementwise)
    found = elementwise_chunk(call);
  if (!found) return std::nullopt;
  bool any = false;
  for (size_t i = 0; i < found->cut.size(); ++i) {
    if (!found->cut[i]) continue;
    const Shape& shape = call.operand(i).shape;
    if (shape.empty() || shape[0] % chunk.count != 0) return std::nullopt;
    any = true;
  }
  return any ? found : std::nullopt;
}

std::optional<DividedCall> divide_call(const OpDef& op, const OpCall& call, llvm::ArrayRef<Type> results,
                                       const CutAt& known, int64_t ranks) {
  std::optional<DividedCall> made;
  if (op.divide)
    made = op.divide(call, results, known, ranks);
  else if (op.elementwise)
    made = elementwise_division(call, results, known);
  if (!made) return std::nullopt;
  if (!op.divide) made->may_be_uneven = !divides_evenly(known.cut, ranks) && keeps_zeros(call, *made);
  const auto fits = [&](const std::optional<Cut>& cut) {
    return !cut || (can_divide(*cut, ranks) && (made->may_be_uneven || divides_evenly(*cut, ranks)));
  };
  const bool all_fit = llvm::all_of(made->operands, fits) && llvm::all_of(made->results, fits);
  return all_fit ? made : std::nullopt;
}

Combine combine_of(const ChunkCall& call, size_t result) {
  return result < call.combine.size() ? call.combine[result] : Combine::Rows;
}

bool is_weighted_mean(const Graph& graph, const Node& node) {
  if (!node.op->sample_weight) return false;
  const llvm::SmallVector<const Type*, 4> types = operand_types(graph, node);
  const std::optional<ChunkCall> call = node.op->chunk(OpCall(*node.op, node.attrs, types), {0, 1});
  return call && combine_of(*call, 0) == Combine::WeightedMean;
}

ValueId find_sample_weight(const Graph& graph, ValueId loss) {
  const Node* node = nullptr;
  for (NodeId id = graph.value(loss).producer; id != NodeId::None; id = graph.value(node->operands[0]).producer) {
    node = &graph.node(id);
    if (!node->op->is_view()) break;
  }
  return node && is_weighted_mean(graph, *node) ? node->results.back() : ValueId::None;
}

}  // namespace plimsoll
