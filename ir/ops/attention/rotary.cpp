#include "ir/ops/common/reference_math.h"

// Rotary position embedding (Su et al. 2021): each pair of a head's first R elements is
// turned by its position's angle. A rotation's gradient is the rotation back, so nothing is kept but the tables. Where
// values lie behind queries and keys as heads of one tensor, {turned} heads turn and the others stay as they are.

namespace plimsoll {
namespace {

int64_t turned_heads(const OpCall& call) {
  const int64_t turned = call.get_int("turned");
  return turned > 0 ? turned : call.get_int("heads");
}

Result<Types> infer_rotary(const OpCall& call) {
  for (size_t i = 0; i < 3; ++i) {
    if (Status s = need_float(call, i)) return s;
    if (Status s = need_rank(call, i, 3)) return s;
  }
  const Type &x = call["x"], &cos = call["cos"];
  int64_t heads = call.get_int("heads");
  if (heads < 1 || x.shape[2] % heads != 0)
    return model_error("the width " + llvm::Twine(x.shape[2]) + " does not divide into " + llvm::Twine(heads) +
                       " heads");
  if (const int64_t turned = call.get_int("turned"); turned < 0 || turned > heads)
    return model_error(llvm::Twine(turned) + " of " + llvm::Twine(heads) + " heads cannot turn");
  int64_t depth = x.shape[2] / heads, pairs = cos.shape[2];
  if (2 * pairs > depth)
    return model_error(llvm::Twine(pairs) + " angles turn " + llvm::Twine(2 * pairs) + " elements, a head has " +
                       llvm::Twine(depth));
  int64_t batch = cos.shape[0] == 1 ? 1 : x.shape[0];
  if (Status s = need_shape(call, "cos", {batch, x.shape[1], pairs})) return s;
  if (Status s = need_type(call, "sin", cos)) return s;
  return Types{x};
}

Status rotary_gradient(GradContext& g) {
  for (const PortKey table : {PortKey("cos"), PortKey("sin")})
    if (g.wants(table)) return g.cannot_train(table, "the tables of rotary");
  Attrs attrs = g.attrs();
  if (attrs.get_int("inverse"))
    attrs.erase("inverse");
  else
    attrs.set("inverse", 1);
  g.add("x", g.b.emit("rotary", {g.out_grad(), g["cos"], g["sin"]}, attrs));
  return Status::success();
}

double rotary_flops(const OpCall& call, llvm::ArrayRef<Type> results) {
  const auto heads = static_cast<double>(call.get_int("heads"));
  return 3.0 * static_cast<double>(results[0].elements()) * static_cast<double>(turned_heads(call)) / heads;
}

void rotary_reference(const ReferenceCall& call) {
  const Shape &shape = call["x"].shape, &table = call["cos"].shape;
  int64_t heads = call.get_int("heads"), turned = turned_heads(call), depth = shape[2] / heads, pairs = table[2];
  bool interleaved = call.get_int("interleaved");
  double direction = call.get_int("inverse") ? -1 : 1;
  std::vector<double> x = call.load("x"), cos = call.load("cos"), sin = call.load("sin"), y = x;
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t s = 0; s < shape[1]; ++s)
      for (int64_t h = 0; h < turned; ++h)
        for (int64_t i = 0; i < pairs; ++i) {
          int64_t angle = ((table[0] == 1 ? 0 : b) * shape[1] + s) * pairs + i;
          int64_t head = ((b * shape[1] + s) * heads + h) * depth;
          int64_t first = head + (interleaved ? 2 * i : i), second = interleaved ? first + 1 : first + pairs;
          double c = cos[angle], d = direction * sin[angle];
          y[first] = x[first] * c - x[second] * d;
          y[second] = x[second] * c + x[first] * d;
        }
  call.store(y, "y");
}

std::optional<ChunkCall> rotary_chunk(const OpCall& call, Chunk chunk) {
  return call["cos"].shape[0] == 1 ? chunk_of_first(call, chunk) : cut_operands(call, {"x", "cos", "sin"});
}

// By heads: of all, or of those that turn and those behind them, in blocks.
std::optional<DividedCall> rotary_divide(const OpCall& call, llvm::ArrayRef<Type>, const CutAt& known, int64_t ranks) {
  const int64_t depth = call["x"].shape[2] / call.get_int("heads"), turned = turned_heads(call);
  if (known.cut.dim != 2 || known.cut.blocks.empty() || (known.side == CutAt::Side::Operand && known.index > 0))
    return std::nullopt;
  Shape parts;
  int64_t begin = 0, own_heads = 0, own_turned = 0;
  for (size_t block = 0; block < known.cut.blocks.size(); ++block) {
    const int64_t end = begin + known.cut.blocks[block];
    if (end % depth != 0 || (begin < turned * depth && end > turned * depth)) return std::nullopt;
    const int64_t own = (part_of_block(known.cut, block, ranks) + depth - 1) / depth;
    own_heads += own;
    if (begin < turned * depth) own_turned += own;
    parts.push_back(own * depth);
    begin = end;
  }
  const Cut cut = cut_in_parts(2, known.cut.blocks, parts, ranks);
  DividedCall made{{cut, std::nullopt, std::nullopt}, {cut}, call.attrs};
  made.attrs.set("heads", own_heads);
  if (call.get_int("turned") > 0) made.attrs.set("turned", own_turned);
  made.may_be_uneven = true;
  return made;
}

std::vector<Sample> rotary_samples() {
  using namespace samples;
  auto table = [](Dims shape) { return fixed(unit(shape)); };
  return {
      {{normal({2, 3, 8}), table({1, 3, 2}), table({1, 3, 2})}, {{"heads", 2}}},
      {{normal({2, 2, 6}), table({2, 2, 2}), table({2, 2, 2})}, {{"heads", 1}, {"interleaved", 1}}},
      {{normal({1, 3, 12}), table({1, 3, 2}), table({1, 3, 2})}, {{"heads", 2}, {"inverse", 1}}},
      {{normal({2, 5, 96}), table({1, 5, 8}), table({1, 5, 8})}, {{"heads", 2}}},  // 16 of 48 elements turn
      {{normal({2, 5, 128}), table({1, 5, 8}), table({1, 5, 8})}, {{"heads", 8}, {"turned", 6}}},
      {{normal({2, 3, 18}), table({2, 3, 2}), table({2, 3, 2})}, {{"heads", 3}, {"turned", 1}, {"interleaved", 1}}},
  };
}

}  // namespace

constinit const OpDef op_rotary{
    .name = "rotary",
    .summary =
        "turns pairs of each head's first R elements in x[B, S, H*D] by the angles of cos, sin[1 or B, S, R/2]; "
        "{heads, interleaved: pairs (2i, 2i+1) instead of (i, i+R/2), inverse: turn back, "
        "turned: how many heads turn, the first ones; 0: all}",
    .operands = {"x", "cos", "sin"},
    .attrs = {{"heads", AttrKind::Int}, {"interleaved", 0}, {"inverse", 0}, {"turned", 0}},
    .infer = infer_rotary,
    .gradient = Gradient::rule(rotary_gradient),
    .in_place = {{"y", "x"}},
    .flops = rotary_flops,
    .chunk = rotary_chunk,
    .divide = rotary_divide,
    .linear = {"x"},
    .reference = rotary_reference,
    .samples = rotary_samples,
};

}  // namespace plimsoll
