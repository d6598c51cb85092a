#include "ir/ops/collective/group.h"
#include "ir/ops/common/samples.h"

#include <algorithm>

// A value that one rank alone has goes to all ranks of its group. Each rank's objective reads its own copy, so the
// gradient is the sum of all ranks' gradients on that one rank, and zero on the others, whose x nobody reads.

namespace plimsoll {
namespace {

Status check_root(const OpCall& call) {
  if (Status s = check_group(call)) return s;
  return check_member(call, "root");
}

// Stages differ in what they compute, so only there a rank may have nothing to give.
Result<Types> infer_broadcast(const OpCall& call) {
  if (Status s = check_root(call)) return s;
  const bool has_type = call.attrs.has("dtype") && call.attrs.has("shape");
  if (!call.has("x")) {
    if (!has_type || call.get_string("axis") != axis_name(MeshAxis::Stage))
      return model_error("x is missing; a stage other than {root} may go without and gives {dtype} and {shape}");
    return one_result(call.attrs.get_dtype("dtype"), call.get_ints("shape"));
  }
  if (call.attrs.has("dtype") || call.attrs.has("shape"))
    return model_error("dtype and shape are those of x, where it is given");
  return infer_same(call);
}

Result<Types> infer_reduce_root(const OpCall& call) {
  if (Status s = check_root(call)) return s;
  if (call["x"].dtype == DType::Bool) return model_error("bools have no sum");
  return infer_same(call);
}

using Members = llvm::ArrayRef<ReferenceCall>;

size_t root_of(Members members) { return static_cast<size_t>(members[0].get_int("root")); }

void broadcast_members(Members members) {
  const TensorView& x = members[root_of(members)].operands[0];
  for (const ReferenceCall& member : members) copy_elements(member.out("y"), 0, x, 0, x.elements());
}

// Sums in the order of the ranks, in double.
void reduce_root_members(Members members) {
  std::vector<double> sum = members[0].load("x");
  for (const ReferenceCall& member : members.drop_front())
    for (auto [total, each] : llvm::zip(sum, member.load("x"))) total += each;
  for (const ReferenceCall& member : members) fill_zero(member.out("y"));
  members[root_of(members)].store(sum, "y");
}

Attrs rooted_attrs(const GradContext& g) {
  return {{"axis", g.attrs().get_string("axis").str()},
          {"ranks", g.attrs().get_int("ranks")},
          {"root", g.attrs().get_int("root")}};
}

Status broadcast_gradient(GradContext& g) {
  if (g.wants("x")) g.add("x", g.b.emit("reduce_root", {g.out_grad()}, rooted_attrs(g)));
  return Status::success();
}

Status reduce_root_gradient(GradContext& g) {
  if (g.wants("x")) g.add("x", g.b.emit("broadcast", {g.out_grad()}, rooted_attrs(g)));
  return Status::success();
}

std::vector<Sample> rooted_samples() {
  Attrs attrs = group_of_one();
  attrs.set("root", int64_t{0});
  return {{{samples::normal({3, 5})}, attrs}, {{samples::normal({7}, DType::BF16)}, attrs}};
}

}  // namespace

constinit const OpDef op_broadcast{
    .name = "broadcast",
    .summary =
        "the x of rank {root}, on each of the {ranks} along {axis}; other stages may go without x and give its {dtype} "
        "and {shape}",
    .operands = {"x?"},
    .results = {"y"},
    .attrs = group_attrs.with({{"root", AttrKind::Int},
                               {"dtype", AttrKind::DType, AttrNeed::Optional},
                               {"shape", AttrKind::Ints, AttrNeed::Optional}}),
    .infer = infer_broadcast,
    .gradient = Gradient::rule(broadcast_gradient),
    .precision = Precision::Follow,
    .repeatable = false,
    .engine = Engine::Ranks,
    .in_place = {{"y", "x"}},
    .flops = no_flops,
    .linear = {"x"},
    .collective = {broadcast_members, MeshPlacement::Divided, MeshPlacement::Whole},
    .reference = alone<broadcast_members>,
    .samples = rooted_samples,
};

constinit const OpDef op_reduce_root{
    .name = "reduce_root",
    .summary = "the sum of all ranks' x on rank {root} of the {ranks} along {axis}, zeros on the others",
    .operands = {"x"},
    .results = {"y"},
    .attrs = group_attrs.with({{"root", AttrKind::Int}}),
    .infer = infer_reduce_root,
    .gradient = Gradient::rule(reduce_root_gradient),
    .precision = Precision::Follow,
    .repeatable = false,
    .engine = Engine::Ranks,
    .flops = no_flops,
    .linear = {"x"},
    .collective = {reduce_root_members, MeshPlacement::Partial, MeshPlacement::Partial},
    .reference = alone<reduce_root_members>,
    .samples = rooted_samples,
};

}  // namespace plimsoll
