#include "ir/fused_body.h"

#include "ir/fused_form.h"
#include "ir/text.h"
#include "ir/verify.h"

#include "llvm/ADT/STLExtras.h"

#include <mutex>

namespace plimsoll {
namespace {

bool is_body_float(DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16; }
bool is_body_element(DType dtype) {
  return is_body_float(dtype) || dtype == DType::Bool || dtype == DType::I64 || dtype == DType::I32 ||
         dtype == DType::U8;
}

// Arithmetic is of floats, logic of bools; integers are converted and compared.
bool fits_types(const OpDef& op, llvm::ArrayRef<DType> operands, DType result) {
  const auto all = [&](llvm::ArrayRef<DType> dtypes, auto holds) { return llvm::all_of(dtypes, holds); };
  const auto is_bool = [](DType dtype) { return dtype == DType::Bool; };
  const bool is_logic = op.name == "and" || op.name == "or" || op.name == "xor" || op.name == "not";
  const auto is_index = [](DType dtype) { return dtype == DType::I64; };
  if (op.name == "cast") return is_body_element(operands[0]) && is_body_element(result);
  if (op.name == "where") return is_body_float(result);
  if (is_body_float(result)) return all(operands, is_body_float);
  return is_bool(result) && (all(operands, is_body_float) || (is_logic && all(operands, is_bool)) ||
                             (operands.size() == 2 && all(operands, is_index)));
}

Status check_inputs(const Graph& body, bool reduces) {
  if (!body.states.empty() || !body.updates.empty()) return model_error("a body has no states");
  if (body.inputs.size() > max_body_operands)
    return model_error("a body has at most " + llvm::Twine(max_body_operands) + " operands, this one " +
                       llvm::Twine(body.inputs.size()));
  for (ValueId input : body.inputs) {
    const Type& type = body.type(input);
    if (is_random_counter(type)) continue;
    if ((type.rank() != 0 && !reduces) || !is_body_element(type.dtype))
      return model_error("operand " + body.value(input).name + " of a body is " + to_string(type));
  }
  return Status::success();
}

Status check_node(const Graph& body, const Node& node) {
  if (node.op->name == "constant" && body.type(node.results[0]).rank() == 0) return Status::success();
  const auto operands = operand_types(body, node);
  if (is_body_reduction(*node.op) && node.attrs.get_int("keep_dims") != 0 &&
      fits_body_reduction(OpCall(*node.op, node.attrs, operands), body.type(node.results[0])))
    return Status::success();
  if (llvm::is_contained(node.operands, ValueId::None) ||
      !fits_fused_body(*node.op, operands, result_types(body, node)))
    return model_error(node.op->name + " of these types cannot be in a body");
  for (size_t i = 0; i < operands.size(); ++i)
    if (is_random_counter(*operands[i]) != (node.op->name == "dropout" && i == 1))
      return model_error("dropout alone reads the counter of random numbers in a body");
  if (llvm::any_of(draw_attrs, [&](llvm::StringRef name) { return node.attrs.has(name); }))
    return model_error("the fused op and not its body says where random numbers begin");
  return Status::success();
}

Status check_body(const Graph& body) {
  if (Status s = verify(body)) return s;
  const bool reduces = has_reductions(body);
  if (Status s = check_inputs(body, reduces)) return s;
  if (body.node_count() > max_body_nodes)
    return model_error("a body has at most " + llvm::Twine(max_body_nodes) + " nodes, this one " +
                       llvm::Twine(body.node_count()));
  for (NodeId id : body.order())
    if (Status s = check_node(body, body.node(id)))
      return in_context(body.value(body.node(id).results[0]).name, std::move(s));
  if (body.outputs.empty() || body.outputs.size() > max_body_results)
    return model_error("a body has 1 to " + llvm::Twine(max_body_results) + " results, this one " +
                       llvm::Twine(body.outputs.size()));
  for (const Output& output : body.outputs)
    if (body.value(output.value).producer == NodeId::None) return model_error("a result of a body is its operand");
  if (!reduces) return Status::success();
  return form_of(body).takeError();
}

// All bodies that were parsed. A job has tens of them.
struct ParsedBodies {
  std::mutex mutex;
  llvm::StringMap<FusedBody> by_text;
};

ParsedBodies& parsed_bodies() {
  static ParsedBodies bodies;
  return bodies;
}

}  // namespace

Result<FusedBody> fused_body(llvm::StringRef text) {
  ParsedBodies& bodies = parsed_bodies();
  {
    std::lock_guard<std::mutex> lock(bodies.mutex);
    if (const auto found = bodies.by_text.find(text); found != bodies.by_text.end()) return found->second;
  }
  Result<Graph> graph = parse_graph(text, "body");
  if (!graph) return graph.takeError();
  if (Status s = check_body(*graph)) return in_context("body", std::move(s));
  auto body = std::make_shared<const Graph>(std::move(*graph));
  std::lock_guard<std::mutex> lock(bodies.mutex);
  return bodies.by_text.try_emplace(text, std::move(body)).first->second;
}

llvm::SmallVector<OperandPart, 4> operand_parts(const Attrs& attrs) {
  llvm::SmallVector<OperandPart, 4> parts;
  if (!attrs.has("parts")) return parts;
  const llvm::ArrayRef<int64_t> numbers = attrs.get_ints("parts");
  for (size_t i = 0; i + 4 <= numbers.size(); i += 4)
    parts.push_back({static_cast<size_t>(numbers[i]), numbers[i + 1], numbers[i + 2], numbers[i + 3]});
  return parts;
}

void add_operand_part(Attrs& attrs, const OperandPart& part) {
  Ints numbers;
  if (attrs.has("parts")) numbers.assign(attrs.get_ints("parts").begin(), attrs.get_ints("parts").end());
  numbers.insert(numbers.end(), {static_cast<int64_t>(part.operand), part.axis, part.start, part.size});
  attrs.set("parts", std::move(numbers));
}

Type read_type(const OpCall& call, size_t operand) {
  Type type = call.operand(operand);
  for (const OperandPart& part : operand_parts(call.attrs))
    if (part.operand == operand) type.shape[static_cast<size_t>(part.axis)] = part.size;
  return type;
}

int64_t read_start(const OpCall& call, size_t operand) {
  for (const OperandPart& part : operand_parts(call.attrs))
    if (part.operand == operand)
      return part.start * row_major_strides(call.operand(operand).shape)[static_cast<size_t>(part.axis)];
  return 0;
}

Shape read_steps(const OpCall& call, size_t operand, llvm::ArrayRef<int64_t> shape) {
  const Shape read = read_type(call, operand).shape, strides = row_major_strides(call.operand(operand).shape);
  Shape steps(shape.size(), 0);
  for (size_t d = 0; d < read.size(); ++d)
    if (read[d] != 1) steps[shape.size() - read.size() + d] = strides[d];
  return steps;
}

int64_t unread_bytes(const OpCall& call) {
  int64_t bytes = 0;
  if (call.op.name == "slice")
    return call.operand(0).bytes() -
           Type(call.operand(0).dtype, Shape(call.get_ints("sizes").begin(), call.get_ints("sizes").end())).bytes();
  if (call.op.name == "fused")
    for (const OperandPart& part : operand_parts(call.attrs))
      bytes += call.operand(part.operand).bytes() - read_type(call, part.operand).bytes();
  return bytes;
}

std::string fused_body_text(const Graph& body) {
  const std::string lines = to_text(body);
  std::string line;
  for (llvm::StringRef part : llvm::split(lines, '\n')) {
    if (part.trim().empty()) continue;
    if (!line.empty()) line += ' ';
    line += part.trim();
  }
  return line;
}

llvm::SmallVector<bool, 8> inputs_behind(const Graph& body, size_t result) {
  std::vector<bool> needed(body.value_count());
  needed[index_of(body.outputs[result].value)] = true;
  for (NodeId id = body.last_node(); id != NodeId::None; id = body.node(id).previous) {
    const Node& node = body.node(id);
    if (!needed[index_of(node.results[0])]) continue;
    for (ValueId operand : node.operands) needed[index_of(operand)] = true;
  }
  llvm::SmallVector<bool, 8> inputs;
  for (ValueId input : body.inputs) inputs.push_back(needed[index_of(input)]);
  return inputs;
}

bool is_random_counter(const Type& type) { return type == Type(DType::I64, {2}); }

bool fits_fused_body(const OpDef& op, llvm::ArrayRef<const Type*> operands, llvm::ArrayRef<Type> results) {
  if (results.size() != 1 || operands.empty() || op.is_view()) return false;
  llvm::SmallVector<DType, 4> dtypes;
  for (const Type* operand : operands) {
    if (!operand) return false;
    dtypes.push_back(operand->dtype);
  }
  if (op.name == "dropout") return is_body_float(dtypes[0]);
  return op.elementwise && fits_types(op, dtypes, results[0].dtype);
}

}  // namespace plimsoll
