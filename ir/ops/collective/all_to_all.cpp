#include "ir/division.h"
#include "ir/ops/collective/group.h"
#include "ir/ops/common/samples.h"

// What ranks have divided along one dimension is divided along another: each cuts its x into one part per rank, and
// lays what it gets side by side.

namespace plimsoll {
namespace {

Result<Types> infer_all_to_all(const OpCall& call) {
  if (Status s = check_group(call)) return s;
  const Type& x = call["x"];
  if (Status s = need_axis(call.attrs, "split", x.rank())) return s;
  if (Status s = need_axis(call.attrs, "join", x.rank())) return s;
  const int64_t ranks = call.get_int("ranks");
  const auto split = static_cast<size_t>(call.get_int("split")), join = static_cast<size_t>(call.get_int("join"));
  if (x.shape[split] % ranks != 0)
    return model_error("dimension " + llvm::Twine(split) + " of " + to_string(x) + " does not divide by " +
                       llvm::Twine(ranks) + " ranks");
  Shape shape = x.shape;
  shape[split] /= ranks;
  shape[join] *= ranks;
  return one_result(x.dtype, shape);
}

Cut cut_along(const Type& type, int64_t dim) { return {dim, {type.shape[static_cast<size_t>(dim)]}}; }

void all_to_all_members(llvm::ArrayRef<ReferenceCall> members) {
  const int64_t split = members[0].get_int("split"), join = members[0].get_int("join");
  const auto ranks = static_cast<int64_t>(members.size());
  Type type = members[0]["x"];
  type.shape[static_cast<size_t>(split)] /= ranks;
  Tensor part(type);
  for (int64_t to = 0; to < ranks; ++to)
    for (int64_t from = 0; from < ranks; ++from) {
      const TensorView x = members[static_cast<size_t>(from)].in("x"), y = members[static_cast<size_t>(to)].out("y");
      copy_to_piece(part.view(), x, cut_along(x.type, split), to);
      copy_from_piece(y, part.view(), cut_along(y.type, join), from);
    }
}

Status all_to_all_gradient(GradContext& g) {
  if (!g.wants("x")) return Status::success();
  Attrs back = g.attrs();
  back.set("split", g.attrs().get_int("join"));
  back.set("join", g.attrs().get_int("split"));
  g.add("x", g.b.emit("all_to_all", {g.out_grad()}, back));
  return Status::success();
}

std::vector<Sample> all_to_all_samples() {
  std::vector<Sample> samples;
  for (const auto& [split, join] : {std::pair{0, 1}, std::pair{2, 0}, std::pair{1, 1}}) {
    Attrs attrs = group_of_one();
    attrs.set("split", int64_t{split});
    attrs.set("join", int64_t{join});
    samples.push_back({{samples::normal({2, 3, 4}, split == 2 ? DType::BF16 : DType::F32)}, attrs});
  }
  return samples;
}

}  // namespace

constinit const OpDef op_all_to_all{
    .name = "all_to_all",
    .summary =
        "x cut into {ranks} equal parts along dimension {split}, one for each rank along {axis}; the parts that a rank "
        "gets stand in the order of the ranks along dimension {join}",
    .operands = {"x"},
    .results = {"y"},
    .attrs = group_attrs.with({{"split", AttrKind::Int}, {"join", AttrKind::Int}}),
    .infer = infer_all_to_all,
    .gradient = Gradient::rule(all_to_all_gradient),
    .precision = Precision::Follow,
    .moves_elements = true,
    .engine = Engine::Ranks,
    .flops = no_flops,
    .linear = {"x"},
    .collective = {all_to_all_members, MeshPlacement::Divided, MeshPlacement::Divided},
    .reference = alone<all_to_all_members>,
    .samples = all_to_all_samples,
};

}  // namespace plimsoll
