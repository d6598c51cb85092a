// The gradient of a layer or RMS norm with the dropout of dx, which join-dropouts makes of the two
// (passes/target/join_dropouts.cpp). All but the dropout is the plain gradient's record.

#include "ir/ops/common/samples.h"
#include "ir/ops/norm/norm.h"
#include "ir/support/philox.h"

namespace plimsoll {
namespace {

constexpr size_t dropped_place = 1;  // among the results

template <typename T>
llvm::SmallVector<T, 8> without(llvm::ArrayRef<T> list, size_t place) {
  llvm::SmallVector<T, 8> left(list.begin(), list.end());
  left.erase(left.begin() + static_cast<ptrdiff_t>(place));
  return left;
}

// The call of the plain gradient: all operands but rng.
class PlainCall {
 public:
  PlainCall(const OpDef& plain, const OpCall& call)
      : operands_(operands_of(call)), call_(plain, call.attrs, operands_) {}
  const OpCall& operator*() const { return call_; }

 private:
  static llvm::SmallVector<const Type*, 8> operands_of(const OpCall& call) {
    llvm::SmallVector<const Type*, 8> all;
    for (size_t i = 0; i < call.count(); ++i) all.push_back(call.has(i) ? &call.operand(i) : nullptr);
    return without<const Type*>(all, call.index("rng"));
  }

  llvm::SmallVector<const Type*, 8> operands_;
  OpCall call_;
};

template <const OpDef& plain>
Result<Types> infer_with_dropout(const OpCall& call) {
  if (Status s = need_dropout(call)) return s;
  Result<Types> types = plain.infer(*PlainCall(plain, call));
  if (types) types->insert(types->begin() + dropped_place, call["x"]);
  return types;
}

template <const OpDef& plain>
Status reference_with_dropout(const ReferenceCall& call) {
  const auto operands = without(call.operands, call.index("rng"));
  const auto results = without(call.results, dropped_place);
  if (Status s = plain.reference(ReferenceCall(*PlainCall(plain, call), operands, results))) return s;
  const TensorView &rng = call.in("rng"), &dx = call.out("dx"), &dropped = call.out("dropped");
  const RandomStream stream{rng.get_int(0), rng.get_int(1), call.get_int("id"), call.attrs.get_int("first_draw")};
  const DropoutRule rule = DropoutRule::of_elements(call.get_float("ratio"));
  for (int64_t i = 0; i < dx.elements(); ++i) dropped.set(i, stream.keeps(rule, i) ? dx.get(i) * rule.factor() : 0);
  return Status::success();
}

template <const OpDef& plain>
std::optional<ChunkCall> chunk_with_dropout(const OpCall& call, Chunk chunk) {
  std::optional<ChunkCall> made = plain.chunk(*PlainCall(plain, call), chunk);
  if (!made) return std::nullopt;
  made->cut.insert(made->cut.begin() + static_cast<ptrdiff_t>(call.index("rng")), false);
  made->combine.insert(made->combine.begin() + dropped_place, Combine::Rows);
  return with_chunk_of_draws(std::move(*made), call["x"].elements(), chunk);
}

// As the norm and dropout count them.
double flops_with_dropout(const OpCall& call, llvm::ArrayRef<Type>) {
  return static_cast<double>((1 + DropoutRule::rounds) * call["x"].elements());
}

template <const OpDef& plain, size_t rng_place>
std::vector<Sample> samples_with_dropout() {
  std::vector<Sample> made = plain.samples();
  int64_t first_draw = 0;
  for (Sample& sample : made) {
    sample.operands.insert(sample.operands.begin() + rng_place, samples::values({2}, {1234567, 3}, DType::I64));
    sample.attrs.set("ratio", 0.3);
    sample.attrs.set("id", int64_t{5});
    if (first_draw > 0) sample.attrs.set("first_draw", first_draw);
    first_draw += 12;
  }
  return made;
}

constexpr AttrSpecs dropout_attrs{
    {"ratio", AttrKind::Float}, {"id", AttrKind::Int}, first_draw_attr, draws_per_rank_attr, draws_per_part_attr};

}  // namespace

constinit const OpDef op_layer_norm_grad_dropout{
    .name = "layer_norm_grad_dropout",
    .summary =
        "what layer_norm_grad gives of the other operands and, behind dx, its dropout with {ratio} and the random "
        "numbers of {id} from {first_draw} on; rng = (seed, step)",
    .operands = {"x", "dy", "mean", "rstd", "rng", "scale?", "addend?"},
    .results = {"dx", "dropped", "dscale?has_scale", "dbias?has_bias"},
    .attrs = dropout_attrs.with({{"axis", AttrKind::Int}, has_scale_attr, has_bias_attr}),
    .infer = infer_with_dropout<op_layer_norm_grad>,
    .gradient = no_second_derivative,
    .in_place = {{"dx", "addend"}},
    .flops = flops_with_dropout,
    .chunk = chunk_with_dropout<op_layer_norm_grad>,
    .linear = {"sum(dy * scale) + addend", "sum(dy) + addend"},
    .reference = reference_with_dropout<op_layer_norm_grad>,
    .samples = samples_with_dropout<op_layer_norm_grad, 4>,
};

constinit const OpDef op_rms_norm_grad_dropout{
    .name = "rms_norm_grad_dropout",
    .summary =
        "what rms_norm_grad gives of the other operands and, behind dx, its dropout with {ratio} and the random "
        "numbers of {id} from {first_draw} on; rng = (seed, step)",
    .operands = {"x", "dy", "rstd", "rng", "scale?", "addend?"},
    .results = {"dx", "dropped", "dscale?has_scale"},
    .attrs = dropout_attrs.with({{"axis", AttrKind::Int}, has_scale_attr}),
    .infer = infer_with_dropout<op_rms_norm_grad>,
    .gradient = no_second_derivative,
    .in_place = {{"dx", "addend"}},
    .flops = flops_with_dropout,
    .chunk = chunk_with_dropout<op_rms_norm_grad>,
    .linear = {"sum(dy * scale) + addend", "sum(dy) + addend"},
    .reference = reference_with_dropout<op_rms_norm_grad>,
    .samples = samples_with_dropout<op_rms_norm_grad, 3>,
};

}  // namespace plimsoll
