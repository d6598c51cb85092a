// Several elementwise ops as one, so that what is between them is never in memory, and reductions of what they make or
// read. A pass makes them of a training step
// (passes/target/fuse_elementwise.cpp); what they compute is a graph over scalars, their {body} (ir/fused_body.h).

#include "ir/fused_form.h"
#include "ir/ops/common/samples.h"
#include "ir/ops/common/support.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// What the operands that are elements broadcast to.
Result<Shape> iteration_shape(const OpCall& call, const Graph& body) {
  Shape shape;
  for (size_t i = 0; i < call.count(); ++i) {
    if (is_random_counter(body.type(body.inputs[i]))) continue;
    const std::optional<Shape> both = broadcast_shapes(shape, read_type(call, i).shape);
    if (!both)
      return model_error("operand " + llvm::Twine(i) + " is " + to_string(call.operand(i)) +
                         ", which does not broadcast with " + to_string(shape));
    shape = *both;
  }
  return shape;
}

Status check_parts(const OpCall& call, const Graph& body) {
  if (call.attrs.has("parts") && call.get_ints("parts").size() % 4 != 0)
    return model_error("parts has " + llvm::Twine(call.get_ints("parts").size()) + " numbers, not four for each");
  llvm::SmallVector<size_t, 4> seen;
  for (const OperandPart& part : operand_parts(call.attrs)) {
    if (part.operand >= call.count() || is_random_counter(body.type(body.inputs[part.operand])) ||
        llvm::is_contained(seen, part.operand))
      return model_error("parts names operand " + llvm::Twine(part.operand) + ", which has no part or another one");
    seen.push_back(part.operand);
    const Type& whole = call.operand(part.operand);
    const bool has_axis = part.axis >= 0 && part.axis < whole.rank();
    if (!has_axis || part.start < 0 || part.size < 2 ||
        part.start + part.size > whole.shape[static_cast<size_t>(part.axis)])
      return model_error(llvm::Twine(part.size) + " elements from " + llvm::Twine(part.start) + " on along axis " +
                         llvm::Twine(part.axis) + " are no part of operand " + llvm::Twine(part.operand) + ", " +
                         to_string(whole));
  }
  return Status::success();
}

Status check_operands(const OpCall& call, const Graph& body) {
  if (call.count() != body.inputs.size())
    return model_error("has " + llvm::Twine(call.count()) + " operands, its body " + llvm::Twine(body.inputs.size()));
  for (size_t i = 0; i < call.count(); ++i) {
    if (!call.has(i)) return model_error("operand " + llvm::Twine(i) + " is missing");
    const Type& wanted = body.type(body.inputs[i]);
    if (call.operand(i).dtype != wanted.dtype || (is_random_counter(wanted) && call.operand(i) != wanted))
      return model_error("operand " + llvm::Twine(i) + " is " + to_string(call.operand(i)) + ", its body reads " +
                         to_string(wanted));
  }
  return check_parts(call, body);
}

// The first result may take the bytes of one of the first operands, where these are as many. That is right where the
// operand is read at the place of each element alone, which is never so for totals.
Status need_places(const OpCall& call, const Type& first, bool is_total) {
  for (size_t i = 0; i < std::min<size_t>(call.count(), op_fused.in_place.size()); ++i)
    if (call.operand(i).bytes() == first.bytes() &&
        (is_total || call.operand(i).elements() != first.elements() || read_type(call, i) != call.operand(i)))
      return model_error("operand " + llvm::Twine(i) + " " + (is_total ? "is read for totals" : "repeats") +
                         " and has as many bytes as the first result");
  return Status::success();
}

// A body with reductions is over these very operands.
Result<Types> infer_reducing(const OpCall& call, const Graph& body) {
  for (size_t i = 0; i < call.count(); ++i)
    if (read_type(call, i) != body.type(body.inputs[i]))
      return model_error("operand " + llvm::Twine(i) + " is " + to_string(read_type(call, i)) + ", its body reads " +
                         to_string(body.type(body.inputs[i])));
  Types results;
  for (const Output& output : body.outputs) results.push_back(body.type(output.value));
  const BodyForm form = llvm::cantFail(form_of(body));
  if (Status s = need_places(call, results[0], form.is_total[index_of(body.outputs[0].value)])) return s;
  return results;
}

Result<Types> infer_fused(const OpCall& call) {
  Result<FusedBody> body = fused_body(call.get_string("body"));
  if (!body) return body.takeError();
  if (Status s = need_first_draw(call.attrs)) return s;
  if (Status s = check_operands(call, **body)) return s;
  if (has_reductions(**body)) return infer_reducing(call, **body);
  Result<Shape> shape = iteration_shape(call, **body);
  if (!shape) return shape.takeError();
  Types results;
  for (const Output& output : (*body)->outputs) results.emplace_back((*body)->type(output.value).dtype, *shape);
  if (Status s = need_places(call, results[0], /*is_total=*/false)) return s;
  return results;
}

// By elements, where operands are scalars or have the shape of the results.
std::optional<ChunkCall> fused_chunk(const OpCall& call, Chunk) {
  Result<FusedBody> body = fused_body(call.get_string("body"));
  if (!body) return llvm::consumeError(body.takeError()), std::nullopt;
  if (has_reductions(**body) || call.attrs.has("parts")) return std::nullopt;
  ChunkCall made = cut_operands(call, {});
  const Shape* shape = nullptr;
  for (size_t i = 0; i < call.count(); ++i) {
    const Type& operand = call.operand(i);
    if (is_random_counter((*body)->type((*body)->inputs[i]))) return std::nullopt;
    if (operand.rank() == 0) continue;
    if (shape && *shape != operand.shape) return std::nullopt;
    shape = &operand.shape;
    made.cut[i] = true;
  }
  return made;
}

double fused_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  const FusedBody body = llvm::cantFail(fused_body(call.get_string("body")));
  double of_element = 0;
  for (NodeId id : body->order()) of_element += flops_of(*body, body->node(id));
  return has_reductions(*body) ? of_element : of_element * static_cast<double>(results[0].elements());
}

// The values of a body on whole tensors: each op runs by its own reference. Operands of a body over scalars are
// expanded to the iteration shape.
class BodyValues {
 public:
  BodyValues(const ReferenceCall& call, const Graph& body)
      : call_(call), body_(body), reduces_(has_reductions(body)), values_(body.value_count()) {}

  Status run() {
    for (size_t i = 0; i < body_.inputs.size(); ++i) add_operand(i);
    for (NodeId id : body_.order())
      if (Status s = run_node(body_.node(id))) return s;
    return Status::success();
  }

  TensorView operator[](ValueId value) const { return values_[index_of(value)].view(); }

 private:
  void add_operand(size_t i) {
    const ValueId value = body_.inputs[i];
    const TensorView& operand = call_.operands[i];
    if (is_random_counter(body_.type(value))) {
      values_[index_of(value)] = Tensor(operand.type, operand.data);
      return;
    }
    const Shape shape = reduces_ ? read_type(call_, i).shape : call_.results[0].type.shape;
    add_value(value, shape, {operand, read_steps(call_, i, shape), read_start(call_, i)});
  }

  void add_value(ValueId value, const Shape& shape, const Window& from) {
    Tensor whole(Type(from.tensor.type.dtype, shape));
    copy_window(shape, dense(whole.view()), from);
    values_[index_of(value)] = std::move(whole);
  }

  Status run_node(const Node& node) {
    const ValueId result = node.results[0];
    if (node.op->name == "constant") {
      const TensorView number = node.attrs.get_tensor("value")->view();
      const Shape shape = reduces_ ? Shape() : call_.results[0].type.shape;
      add_value(result, shape, {number, broadcast_strides(number.type.shape, shape)});
      return Status::success();
    }
    Attrs attrs = node.attrs;
    if (node.op->name == "dropout") attrs.set("first_draw", call_.get_int("first_draw"));
    llvm::SmallVector<const Type*, 4> types;
    llvm::SmallVector<TensorView, 4> reads;
    for (ValueId operand : node.operands) {
      types.push_back(&values_[index_of(operand)].type());
      reads.push_back((*this)[operand]);
    }
    const Type& type = body_.type(result);
    values_[index_of(result)] = Tensor(reduces_ ? type : Type(type.dtype, call_.results[0].type.shape));
    const TensorView written = (*this)[result];
    return node.op->reference(ReferenceCall(OpCall(*node.op, attrs, types), reads, written));
  }

  const ReferenceCall& call_;
  const Graph& body_;
  bool reduces_;
  std::vector<Tensor> values_;
};

Status fused_reference(const ReferenceCall& call) {
  const FusedBody body = llvm::cantFail(fused_body(call.get_string("body")));
  BodyValues values(call, *body);
  if (Status s = values.run()) return s;
  for (size_t i = 0; i < call.results.size(); ++i)
    copy_elements(call.results[i], 0, values[body->outputs[i].value], 0, call.results[i].elements());
  return Status::success();
}

// ---- Samples ----

Sample sample_of(const char* body, llvm::ArrayRef<SampleOperand> operands) {
  Sample sample{{operands.begin(), operands.end()}, {}};
  sample.attrs.set("body", std::string(body));
  return sample;
}

std::vector<Sample> fused_samples() {
  using namespace samples;
  const char* gated =
      "graph @body(%x0: bf16[], %x1: bf16[]) { %v0 = silu(%x0) : bf16[] %v1 = mul(%v0, %x1) : bf16[] return %v1 }";
  const char* two_results =
      "graph @body(%x0: f32[], %x1: f32[], %x2: f32[]) { %v0 = add(%x0, %x1) : f32[] %v1 = gelu(%v0) : f32[] "
      "%v2 = mul(%v1, %x2) : f32[] %v3 = cast(%v2) {to=bf16} : bf16[] return %v0, %v3 }";
  const char* chosen =
      "graph @body(%x0: f32[], %x1: i64[]) { %c0 = constant() {value=i64[]<1>} : i64[] %c1 = constant() "
      "{value=f32[]<0.5>} : f32[] %v0 = greater(%x1, %c0) : bool[] %v1 = where(%v0, %x0, %c1) : f32[] "
      "%v2 = clip(%v1) {max=1.0} : f32[] return %v2 }";
  const char* dropped =
      "graph @body(%x0: f32[], %x1: i64[2], %x2: f32[]) { %v0 = dropout(%x0, %x1) {id=3, ratio=0.5} : f32[] "
      "%v1 = add(%v0, %x2) : f32[] return %v1 }";
  const SampleOperand rng = values({2}, {1234567, 5}, DType::I64);
  Sample later = sample_of(dropped, {normal({3, 8}), rng, normal({8})});
  later.attrs.set("first_draw", int64_t{20});
  // A scale's gradient beside the gradient that it passes on; the mean of an image's pixels; rows as a norm has them.
  const char* scaled =
      "graph @body(%x0: bf16[6,5,8], %x1: bf16[6,5,8], %x2: f32[8]) { %v0 = mul(%x0, %x1) : bf16[6,5,8] "
      "%v1 = reduce_sum(%v0) {axes=[0, 1], dtype=f32, keep_dims=1} : f32[1,1,8] %v2 = cast(%x2) {to=bf16} : bf16[8] "
      "%v3 = mul(%x0, %v2) : bf16[6,5,8] return %v3, %v1 }";
  const char* pooled =
      "graph @body(%x0: f32[3,2,5,4]) { %v0 = silu(%x0) : f32[3,2,5,4] %v1 = reduce_mean(%v0) {axes=[1, 2], "
      "keep_dims=1} : f32[3,1,1,4] %v2 = cast(%v1) {to=bf16} : bf16[3,1,1,4] return %v0, %v2 }";
  const char* normed =
      "graph @body(%x0: f32[5,12], %x1: f32[12]) { %v0 = mul(%x0, %x0) : f32[5,12] %v1 = reduce_mean(%v0) {axes=[1], "
      "keep_dims=1} : f32[5,1] %v2 = rsqrt(%v1) : f32[5,1] %v3 = mul(%x0, %v2) : f32[5,12] %v4 = mul(%v3, %x1) : "
      "f32[5,12] return %v4, %v2 }";
  const char* summed =
      "graph @body(%x0: f32[4,33], %x1: f32[4,33]) { %v0 = sub(%x0, %x1) : f32[4,33] %v1 = mul(%v0, %v0) : f32[4,33] "
      "%v2 = reduce_sum(%v1) {axes=[0, 1], keep_dims=1} : f32[1,1] return %v2 }";
  // Parts of wider rows, in bodies of both forms, and of rows in front.
  Sample part = sample_of(gated, {normal({4, 5, 72}, DType::BF16), normal({4, 5, 24}, DType::BF16)});
  part.attrs.set("parts", Ints{0, 2, 24, 24});
  Sample odd_parts = sample_of(two_results, {normal({2, 9}), normal({7}), normal({6, 1})});
  odd_parts.attrs.set("parts", Ints{0, 1, 1, 7, 2, 0, 3, 2});
  Sample summed_part =
      sample_of(scaled, {normal({6, 5, 8}, DType::BF16), normal({6, 5, 40}, DType::BF16), normal({8})});
  summed_part.attrs.set("parts", Ints{1, 2, 16, 8});
  Sample pooled_part = sample_of(pooled, {normal({3, 2, 9, 4})});
  pooled_part.attrs.set("parts", Ints{0, 2, 3, 5});
  return {part,
          odd_parts,
          summed_part,
          pooled_part,
          sample_of(scaled, {normal({6, 5, 8}, DType::BF16), normal({6, 5, 8}, DType::BF16), normal({8})}),
          sample_of(pooled, {normal({3, 2, 5, 4})}),
          sample_of(normed, {normal({5, 12}), normal({12})}),
          sample_of(summed, {normal({4, 33}), normal({4, 33})}),
          sample_of(gated, {normal({4, 24}, DType::BF16), normal({4, 24}, DType::BF16)}),
          sample_of(gated, {normal({3, 1, 5}, DType::BF16), normal({2, 5}, DType::BF16)}),
          sample_of(two_results, {normal({2, 40}), normal({40}), normal({2, 1})}),
          sample_of(two_results, {normal({}), normal({7}), normal({7})}),
          sample_of(chosen, {distinct({5, 3}), integers({5, 1}, 0, 3)}),
          sample_of(dropped, {normal({5, 7}), rng, normal({5, 7})}),
          later};
}

}  // namespace

constinit const OpDef op_fused{
    .name = "fused",
    .summary =
        "what {body}, a graph over scalars, gives for each element of the operands, broadcasting, or, where it "
        "reduces, "
        "over the operands themselves; random numbers from {first_draw} on; {parts: of operands that are read in part "
        "their number, the axis, the first element and how many, four numbers each}",
    .operands = {"x0?", "x1?", "x2?", "x3?", "others*"},
    .results = {"ys+"},
    .attrs = {{"body", AttrKind::String},
              {"parts", AttrKind::Ints, AttrNeed::Optional},
              first_draw_attr,
              draws_per_rank_attr,
              draws_per_part_attr},
    .infer = infer_fused,
    .gradient = Gradient::missing("ops are fused after gradients are made"),
    .in_place = {{"ys", "x0"}, {"ys", "x1"}, {"ys", "x2"}, {"ys", "x3"}},
    .flops = fused_flops,
    .chunk = fused_chunk,
    .reference = fused_reference,
    .samples = fused_samples,
};

}  // namespace plimsoll
