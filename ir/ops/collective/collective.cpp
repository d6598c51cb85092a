#include "ir/ops/collective/group.h"
#include "ir/ops/common/samples.h"

#include <algorithm>

// Ops of all ranks that differ along one axis of the mesh: sums over them, and flat pieces of a value, one per rank.
// What a rank holds beyond the end of the value is zero in its piece, so that pieces are equally long.
//
// Gradients are those of the sum of all ranks' objectives: each rank starts from its own summand. The gradient of a
// value that all ranks hold alike is therefore a sum of which each rank has its own summand too.

namespace plimsoll {

Status check_group(const OpCall& call) {
  if (!parse_axis(call.get_string("axis")))
    return model_error("axis is '" + call.get_string("axis") + "', a mesh has the axes data, tensor and stage");
  if (call.get_int("ranks") >= 1) return Status::success();
  return model_error("ranks is " + llvm::Twine(call.get_int("ranks")) + ", it must be at least 1");
}

Status check_member(const OpCall& call, llvm::StringRef name) {
  const int64_t member = call.get_int(name), ranks = call.get_int("ranks");
  if (member >= 0 && member < ranks) return Status::success();
  return model_error(name + " is " + llvm::Twine(member) + " of " + llvm::Twine(ranks) + " ranks");
}

namespace {

Result<Types> infer_reduce_all(const OpCall& call) {
  if (Status s = check_group(call)) return s;
  if (call["x"].dtype == DType::Bool) return model_error("bools have no sum");
  return infer_same(call);
}

// The result of {shape}; of it and operand x one is the whole and the other a piece.
Result<Types> infer_resized(const OpCall& call, bool gives_piece) {
  if (Status s = check_group(call)) return s;
  const Type& x = call["x"];
  const int64_t given = element_count(call.get_ints("shape"));
  const int64_t piece = gives_piece ? given : x.elements(), whole = gives_piece ? x.elements() : given;
  if (piece * call.get_int("ranks") < whole)
    return model_error(llvm::Twine(call.get_int("ranks")) + " pieces of " + llvm::Twine(piece) +
                       " elements do not make " + llvm::Twine(whole));
  return one_result(x.dtype, call.get_ints("shape"));
}
Result<Types> infer_piece(const OpCall& call) { return infer_resized(call, true); }
Result<Types> infer_whole(const OpCall& call) { return infer_resized(call, false); }

Result<Types> infer_gathered(const OpCall& call) {
  Result<Types> types = infer_whole(call);
  if (!types || !call.attrs.has("to")) return types;
  const DType to = call.attrs.get_dtype("to");
  if (!is_float(call["x"].dtype) || !is_float(to)) return model_error("a gather casts floats to floats");
  types->front().dtype = to;
  return types;
}

// ---- References ----

using Members = llvm::ArrayRef<ReferenceCall>;

// The elements of the whole that a rank's piece holds.
int64_t count_in_piece(int64_t whole, int64_t piece, size_t rank) {
  return std::clamp<int64_t>(whole - static_cast<int64_t>(rank) * piece, 0, piece);
}

// Sums in the order of the ranks, in double.
std::vector<double> sum_of(Members members) {
  std::vector<double> sum = members[0].load("x");
  for (const ReferenceCall& member : members.drop_front())
    for (auto [total, each] : llvm::zip(sum, member.load("x"))) total += each;
  return sum;
}

void copy_to_piece(const TensorView& piece, const TensorView& whole, size_t rank) {
  const int64_t length = piece.elements(), count = count_in_piece(whole.elements(), length, rank);
  fill_zero(piece);
  copy_elements(piece, 0, whole, static_cast<int64_t>(rank) * length, count);
}

void copy_from_piece(const TensorView& whole, const TensorView& piece, size_t rank) {
  const int64_t length = piece.elements(), count = count_in_piece(whole.elements(), length, rank);
  const int64_t first = static_cast<int64_t>(rank) * length;
  if (whole.type.dtype == piece.type.dtype) return copy_elements(whole, first, piece, 0, count);
  for (int64_t i = 0; i < count; ++i) whole.set(first + i, piece.get(i));
}

void reduce_all_members(Members members) {
  const std::vector<double> sum = sum_of(members);
  for (const ReferenceCall& member : members) member.store(sum, "y");
}

void reduce_pieces_members(Members members) {
  const std::vector<double> sum = sum_of(members);
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const TensorView& y = members[rank].out("y");
    const int64_t length = y.elements(), first = static_cast<int64_t>(rank) * length;
    fill_zero(y);
    for (int64_t i = 0; i < count_in_piece(static_cast<int64_t>(sum.size()), length, rank); ++i)
      y.set(i, sum[static_cast<size_t>(first + i)]);
  }
}

void gather_pieces_members(Members members) {
  for (const ReferenceCall& member : members)
    for (size_t rank = 0; rank < members.size(); ++rank) copy_from_piece(member.out("y"), members[rank].in("x"), rank);
}

void take_piece_members(Members members) {
  for (size_t rank = 0; rank < members.size(); ++rank)
    copy_to_piece(members[rank].out("y"), members[rank].in("x"), rank);
}

void place_piece_members(Members members) {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    fill_zero(members[rank].out("y"));
    copy_from_piece(members[rank].out("y"), members[rank].in("x"), rank);
  }
}

// ---- Gradients ----

Attrs with_shape(const GradContext& g) {
  Attrs attrs{{"axis", g.attrs().get_string("axis").str()}, {"ranks", g.attrs().get_int("ranks")}};
  const Shape& shape = g.type(g["x"]).shape;
  attrs.set("shape", Ints(shape.begin(), shape.end()));
  return attrs;
}

Status reduce_all_gradient(GradContext& g) {
  if (g.wants("x")) g.add("x", g.b.emit("reduce_all", {g.out_grad()}, g.attrs()));
  return Status::success();
}

Status resized_gradient(GradContext& g, llvm::StringRef op) {
  if (g.wants("x")) g.add("x", g.b.emit(op, {g.out_grad()}, with_shape(g)));
  return Status::success();
}
Status reduce_pieces_gradient(GradContext& g) { return resized_gradient(g, "gather_pieces"); }
// A sum of 16-bit floats is made in f32, unless {sum} says otherwise.
Status gather_pieces_gradient(GradContext& g) {
  if (!g.wants("x")) return Status::success();
  const DType dtype = g.type(g["x"]).dtype;
  const DType sent = g.attrs().has("sum") ? g.attrs().get_dtype("sum") : stat_dtype(dtype);
  const ValueId sum = g.b.emit("reduce_pieces", {g.b.cast(g.out_grad(), sent)}, with_shape(g));
  g.add("x", g.b.cast(sum, dtype));
  return Status::success();
}
Status take_piece_gradient(GradContext& g) { return resized_gradient(g, "place_piece"); }
Status place_piece_gradient(GradContext& g) { return resized_gradient(g, "take_piece"); }

// ---- Samples: one rank, which is its whole group ----

std::vector<Sample> reduce_all_samples() {
  using namespace samples;
  return {{{normal({3, 5})}, group_of_one()}, {{normal({7}, DType::BF16)}, group_of_one()}};
}

Sample resized_sample(Shape from, Ints to, DType dtype) {
  Attrs attrs = group_of_one();
  attrs.set("shape", std::move(to));
  return {{samples::normal(from, dtype)}, attrs};
}

std::vector<Sample> piece_samples() {
  return {resized_sample({3, 5}, {16}, DType::F32), resized_sample({4, 2}, {4, 2}, DType::BF16)};
}
std::vector<Sample> whole_samples() {
  return {resized_sample({16}, {3, 5}, DType::F32), resized_sample({4, 2}, {4, 2}, DType::BF16)};
}
std::vector<Sample> gather_samples() {
  std::vector<Sample> samples = whole_samples();
  for (const DType to : {DType::BF16, DType::F16}) {
    samples.push_back(resized_sample({1024}, {3, 341}, DType::F32));
    samples.back().attrs.set("to", to);
  }
  return samples;
}

constexpr AttrSpecs resized_attrs = group_attrs.with({{"shape", AttrKind::Ints}});

constexpr OpDef resized_op(llvm::StringLiteral name, llvm::StringLiteral summary, Engine engine, InferFn infer,
                           GradientFn gradient, Collective members, ReferenceFn reference, SamplesFn samples,
                           AttrSpecs attrs = resized_attrs) {
  const bool moves = members.from != MeshPlacement::Partial;
  return {.name = name,
          .summary = summary,
          .operands = {"x"},
          .results = {"y"},
          .attrs = attrs,
          .infer = infer,
          .gradient = Gradient::rule(gradient),
          .precision = Precision::Follow,
          .repeatable = moves,
          .moves_elements = moves,
          .engine = engine,
          .flops = no_flops,
          .linear = {"x"},
          .collective = members,
          .reference = reference,
          .samples = samples};
}

}  // namespace

constinit const OpDef op_reduce_all{
    .name = "reduce_all",
    .summary = "the sum of all ranks' x, on each of the {ranks} along {axis}",
    .operands = {"x"},
    .results = {"y"},
    .attrs = group_attrs,
    .infer = infer_reduce_all,
    .gradient = Gradient::rule(reduce_all_gradient),
    .precision = Precision::Follow,
    .repeatable = false,
    .engine = Engine::Ranks,
    .in_place = {{"y", "x"}},
    .flops = no_flops,
    .linear = {"x"},
    .collective = {reduce_all_members, MeshPlacement::Partial, MeshPlacement::Whole},
    .reference = alone<reduce_all_members>,
    .samples = reduce_all_samples,
};

constinit const OpDef op_reduce_pieces = resized_op(
    "reduce_pieces", "the rank's own piece, of {shape}, of the sum of x over the {ranks} along {axis}", Engine::Ranks,
    infer_piece, reduce_pieces_gradient, {reduce_pieces_members, MeshPlacement::Partial, MeshPlacement::Divided},
    alone<reduce_pieces_members>, piece_samples);

constinit const OpDef op_gather_pieces = resized_op(
    "gather_pieces",
    "all pieces x of the {ranks} along {axis}, cast {to} a type if one is given, one after the other, cut off at "
    "{shape}; its gradient is added up in {sum}, or else in f32",
    Engine::Ranks, infer_gathered, gather_pieces_gradient,
    {gather_pieces_members, MeshPlacement::Divided, MeshPlacement::Whole}, alone<gather_pieces_members>, gather_samples,
    resized_attrs.with({{"to", AttrKind::DType, AttrNeed::Optional}, {"sum", AttrKind::DType, AttrNeed::Optional}}));

constinit const OpDef op_take_piece = resized_op(
    "take_piece", "the rank's own piece, of {shape}, of x, which the {ranks} along {axis} hold alike", Engine::Compute,
    infer_piece, take_piece_gradient, {take_piece_members, MeshPlacement::Whole, MeshPlacement::Divided},
    alone<take_piece_members>, piece_samples);

constinit const OpDef op_place_piece = resized_op(
    "place_piece", "zeros of {shape} with x where the rank's own piece of the {ranks} along {axis} lies",
    Engine::Compute, infer_whole, place_piece_gradient,
    {place_piece_members, MeshPlacement::Divided, MeshPlacement::Partial}, alone<place_piece_members>, whole_samples);

}  // namespace plimsoll
