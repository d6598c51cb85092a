#include "ir/ops/common/reference_math.h"

// Rotary position embedding (Su et al. 2021): each pair of a head's first R elements is
// turned by its position's angle. A rotation's gradient is the rotation back, so nothing is kept but the tables.

namespace plimsoll {
namespace {

constexpr AttrRule rotary_attrs[] = {{"heads", AttrKind::Int},
                                     {"interleaved", AttrKind::Int, AttrNeed::Optional},
                                     {"inverse", AttrKind::Int, AttrNeed::Optional}};

Result<Types> infer_rotary(const OpCall& call) {
  if (Status s = check_attrs(call.attrs, rotary_attrs)) return s;
  for (size_t i = 0; i < 3; ++i) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_rank(call, i, 3)) return s;
  }
  const Type &x = call.operand(0), &cos = call.operand(1);
  int64_t heads = call.attrs.get_int("heads");
  if (heads < 1 || x.shape[2] % heads != 0)
    return model_error("the width " + llvm::Twine(x.shape[2]) + " does not divide into " + llvm::Twine(heads) +
                       " heads");
  int64_t depth = x.shape[2] / heads, pairs = cos.shape[2];
  if (2 * pairs > depth)
    return model_error(llvm::Twine(pairs) + " angles turn " + llvm::Twine(2 * pairs) + " elements, a head has " +
                       llvm::Twine(depth));
  int64_t batch = cos.shape[0] == 1 ? 1 : x.shape[0];
  if (Status s = need_shape(call, 1, {batch, x.shape[1], pairs})) return s;
  if (Status s = need_type(call, 2, cos)) return s;
  return Types{x};
}

Status rotary_gradient(GradContext& g) {
  if (g.wants(1) || g.wants(2)) return model_error("the tables of rotary cannot be trained");
  Attrs attrs = g.attrs();
  if (attrs.get_int("inverse"))
    attrs.erase("inverse");
  else
    attrs.set("inverse", int64_t{1});
  g.add(0, g.b.emit("rotary", {g.out_grad(), g.operand(1), g.operand(2)}, attrs));
  return Status::success();
}

double rotary_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  return 3.0 * static_cast<double>(results[0].elements());
}

Status rotary_reference(const OpCall& call, llvm::ArrayRef<TensorView> operands, llvm::ArrayRef<TensorView> results) {
  const Shape &shape = call.operand(0).shape, &table = call.operand(1).shape;
  int64_t heads = call.attrs.get_int("heads"), depth = shape[2] / heads, pairs = table[2];
  bool interleaved = call.attrs.get_int("interleaved");
  double direction = call.attrs.get_int("inverse") ? -1 : 1;
  std::vector<double> x = load(operands, 0), cos = load(operands, 1), sin = load(operands, 2), y = x;
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t s = 0; s < shape[1]; ++s)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < pairs; ++i) {
          int64_t angle = ((table[0] == 1 ? 0 : b) * shape[1] + s) * pairs + i;
          int64_t head = ((b * shape[1] + s) * heads + h) * depth;
          int64_t first = head + (interleaved ? 2 * i : i), second = interleaved ? first + 1 : first + pairs;
          double c = cos[angle], d = direction * sin[angle];
          y[first] = x[first] * c - x[second] * d;
          y[second] = x[second] * c + x[first] * d;
        }
  store(y, results[0]);
  return Status::success();
}

std::optional<ChunkCall> rotary_part(const OpCall& call, Chunk part) {
  return call.operand(1).shape[0] == 1 ? part_of_first(call, part) : cut_operands(call, {0, 1, 2});
}

std::vector<Sample> rotary_samples() {
  using namespace samples;
  auto table = [](Dims shape) { return fixed(unit(shape)); };
  return {
      {{normal({2, 3, 8}), table({1, 3, 2}), table({1, 3, 2})}, {{"heads", int64_t{2}}}},
      {{normal({2, 2, 6}), table({2, 2, 2}), table({2, 2, 2})}, {{"heads", int64_t{1}}, {"interleaved", int64_t{1}}}},
      {{normal({1, 3, 12}), table({1, 3, 2}), table({1, 3, 2})}, {{"heads", int64_t{2}}, {"inverse", int64_t{1}}}},
  };
}

}  // namespace

constinit const OpDef op_rotary{
    .name = "rotary",
    .summary =
        "turns pairs of each head's first R elements in x[B, S, H*D] by the angles of cos, sin[1 or B, S, R/2]; "
        "{heads, interleaved: pairs (2i, 2i+1) instead of (i, i+R/2), inverse: turn back}",
    .min_operands = 3,
    .max_operands = 3,
    .infer = infer_rotary,
    .gradient = Gradient::rule(rotary_gradient),
    .precision = Precision::Follow,
    .recompute = Recompute::Cheap,
    .in_place = over_first,
    .flops = rotary_flops,
    .chunk = rotary_part,
    .reference = rotary_reference,
    .samples = rotary_samples,
};

}  // namespace plimsoll
