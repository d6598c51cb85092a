#include "ir/ops/common/support.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

Status wrong_operand(const OpCall& call, PortKey i, const llvm::Twine& needed) {
  return model_error("operand " + llvm::Twine(call.index(i)) + " is " + to_string(call[i]) + ", it must be " + needed);
}

}  // namespace

double no_flops(const OpCall&, llvm::ArrayRef<Type>) { return 0; }

Status need_float(const OpCall& call, PortKey i) {
  if (!call.has(i) || is_float(call[i].dtype)) return Status::success();
  return wrong_operand(call, i, "a float");
}

Status need_integer(const OpCall& call, PortKey i) {
  if (!call.has(i) || is_integer(call[i].dtype)) return Status::success();
  return wrong_operand(call, i, "an integer");
}

Status need_index(const OpCall& call, PortKey i) {
  if (!call.has(i)) return Status::success();
  DType dtype = call[i].dtype;
  if (dtype == DType::I64 || dtype == DType::I32) return Status::success();
  return wrong_operand(call, i, "i32 or i64");
}

Status need_bool(const OpCall& call, PortKey i) {
  if (!call.has(i) || call[i].dtype == DType::Bool) return Status::success();
  return wrong_operand(call, i, "bool");
}

Status need_number(const OpCall& call, PortKey i) {
  if (!call.has(i) || call[i].dtype != DType::Bool) return Status::success();
  return wrong_operand(call, i, "a number");
}

Status need_rank(const OpCall& call, PortKey i, int64_t rank) {
  if (!call.has(i) || call[i].rank() == rank) return Status::success();
  return wrong_operand(call, i, "of rank " + llvm::Twine(rank));
}

Status need_type(const OpCall& call, PortKey i, const Type& type) {
  if (!call.has(i) || call[i] == type) return Status::success();
  return wrong_operand(call, i, to_string(type));
}

Status need_elements(const OpCall& call, PortKey i, DType dtype, int64_t count) {
  if (!call.has(i) || (call[i].dtype == dtype && call[i].elements() == count)) return Status::success();
  return wrong_operand(call, i, llvm::Twine(count) + " elements of " + dtype_name(dtype));
}

Status need_same_dtype(const OpCall& call, PortKey i, PortKey j) {
  if (!call.has(i) || !call.has(j) || call[i].dtype == call[j].dtype) return Status::success();
  return model_error("operands " + llvm::Twine(call.index(i)) + " and " + llvm::Twine(call.index(j)) +
                     " differ in dtype: " + dtype_name(call[i].dtype) + " and " + dtype_name(call[j].dtype));
}

Status need_axis(const Attrs& attrs, llvm::StringRef name, int64_t rank) {
  int64_t axis = attrs.get_int(name);
  if (axis >= 0 && axis < rank) return Status::success();
  return model_error(name + " is " + llvm::Twine(axis) + ", the rank is " + llvm::Twine(rank));
}

Status need_length(const Attrs& attrs, llvm::StringRef name, int64_t rank) {
  auto length = static_cast<int64_t>(attrs.get_ints(name).size());
  if (length == rank) return Status::success();
  return model_error(name + " has " + llvm::Twine(length) + " entries, the rank is " + llvm::Twine(rank));
}

Status need_choice(const Attrs& attrs, llvm::StringRef name, llvm::ArrayRef<llvm::StringLiteral> choices) {
  if (!attrs.has(name)) return Status::success();
  llvm::StringRef given = attrs.get_string(name);
  std::string list;
  for (llvm::StringRef choice : choices) {
    if (choice == given) return Status::success();
    list += (list.empty() ? "" : ", ") + choice.str();
  }
  return model_error(name + " is '" + given + "', it must be one of " + list);
}

Result<DType> sum_dtype(const OpCall& call, size_t summed) {
  DType own = call.operand(summed).dtype, dtype = call.attrs.get_dtype("dtype", own);
  if (dtype == own || (is_float(own) && is_float(dtype))) return dtype;
  return model_error("dtype is " + dtype_name(dtype) + ", a sum of " + dtype_name(own) + " cannot become that");
}

Result<Types> one_result(DType dtype, llvm::ArrayRef<int64_t> shape) { return Types{Type(dtype, shape)}; }

Result<Types> infer_same(const OpCall& call) { return Types{call.operand(0)}; }

Result<Types> infer_same_float(const OpCall& call) {
  for (size_t i = 0; i < call.count(); ++i) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_type(call, i, call.operand(0))) return s;
  }
  return infer_same(call);
}

Result<Shape> broadcast_operands(const OpCall& call) {
  Shape shape;
  for (size_t i = 0; i < call.count(); ++i) {
    if (!call.has(i)) continue;
    std::optional<Shape> both = broadcast_shapes(shape, call[i].shape);
    if (!both) return model_error("shapes do not broadcast: " + to_string(shape) + " and " + to_string(call[i].shape));
    shape = *both;
  }
  return shape;
}

DType stat_dtype(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

Shape reduced_shape(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> axes, bool keep_dims) {
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d) {
    bool reduced = contains(axes, static_cast<int64_t>(d));
    if (!reduced) out.push_back(shape[d]);
    if (reduced && keep_dims) out.push_back(1);
  }
  return out;
}

bool contains(llvm::ArrayRef<int64_t> list, int64_t value) { return llvm::is_contained(list, value); }

Status need_first_draw(const Attrs& attrs) {
  const int64_t first = attrs.get_int("first_draw");
  if (first >= 0 && first % 4 == 0) return Status::success();
  return model_error("first_draw is " + llvm::Twine(first) + ", it must be a multiple of 4 from 0 on");
}

Status need_dropout(const OpCall& call) {
  if (Status s = need_first_draw(call.attrs)) return s;
  if (Status s = need_type(call, "rng", Type(DType::I64, {2}))) return s;
  const double ratio = call.get_float("ratio");
  if (ratio >= 0 && ratio <= 1) return Status::success();
  return model_error("ratio is " + std::to_string(ratio) + ", it must lie between 0 and 1");
}

ChunkCall cut_operands(const OpCall& call, std::initializer_list<PortKey> operands) {
  ChunkCall made{llvm::SmallVector<bool, 4>(call.count(), false), {}, call.attrs};
  for (PortKey i : operands)
    if (call.has(i)) made.cut[call.index(i)] = true;
  return made;
}

std::optional<ChunkCall> chunk_of_first(const OpCall& call, Chunk) { return cut_operands(call, {size_t{0}}); }

std::optional<ChunkCall> chunk_across_axis(const OpCall& call, Chunk chunk) {
  return call.get_int("axis") == 0 ? std::nullopt : chunk_of_first(call, chunk);
}

std::optional<ChunkCall> with_chunk_of_shape(ChunkCall made, llvm::StringRef name, Chunk chunk) {
  llvm::ArrayRef<int64_t> whole = made.attrs.get_ints(name);
  if (whole.empty() || whole[0] % chunk.count != 0) return std::nullopt;
  Ints shape(whole.begin(), whole.end());
  shape[0] /= chunk.count;
  made.attrs.set(name, shape);
  return made;
}

std::optional<ChunkCall> with_chunk_of_draws(ChunkCall made, int64_t draws, Chunk chunk) {
  if (draws % (4 * chunk.count) != 0) return std::nullopt;
  made.attrs.set("first_draw", made.attrs.get_int("first_draw") + draws / chunk.count * chunk.index);
  return made;
}

std::optional<double> scalar_constant(const Graph& graph, ValueId value) {
  NodeId producer = graph.value(value).producer;
  if (producer == NodeId::None) return std::nullopt;
  const Node& node = graph.node(producer);
  if (node.op->name != "constant" || graph.type(value).elements() != 1) return std::nullopt;
  return node.attrs.get_tensor("value")->get(0);
}

void add_broadcast(GradContext& g, PortKey i, ValueId grad) {
  const Shape shape = g.type(g[i]).shape;
  g.add(i, g.b.sum_to_shape(grad, shape));
}

ValueId zeros(Builder& b, const Type& type) { return b.expand(b.scalar(0, type.dtype), type.shape); }

Shape broadcast_strides(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to) {
  Shape own = row_major_strides(from);
  Shape strides(to.size(), 0);
  size_t shift = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d)
    if (from[d] != 1) strides[shift + d] = own[d];
  return strides;
}

Window dense(const TensorView& tensor) { return {tensor, row_major_strides(tensor.type.shape)}; }

void copy_window(llvm::ArrayRef<int64_t> shape, const Window& to, const Window& from) {
  walk<2>(shape, {to.strides, from.strides}, {to.base, from.base},
          [&](int64_t, const auto& at) { copy_elements(to.tensor, at[0], from.tensor, at[1]); });
}

void fill_zero(const TensorView& tensor) {
  if (tensor.data) std::memset(tensor.data, 0, static_cast<size_t>(tensor.type.bytes()));
}

AxisView along_axis(llvm::ArrayRef<int64_t> shape, int64_t axis) {
  auto at = static_cast<size_t>(axis);
  return {element_count(shape.take_front(at)), shape[at], element_count(shape.drop_front(at + 1))};
}

}  // namespace plimsoll
