#include "tests/support/collective_calls.h"

#include <random>

namespace plimsoll::testing {
namespace {

Ints whole_of(int64_t piece, int64_t ranks) { return {piece * ranks - 1}; }

}  // namespace

// The last one takes several rounds of the staging memory on a host.
std::vector<CollectiveCall> collective_calls(int64_t ranks) {
  const Type x(DType::F32, {ranks * 2, 3, ranks * 4}), large(DType::F32, {ranks, 1 << 17, 3});
  std::vector<CollectiveCall> calls = {{"reduce_all", x, {}},
                                       {"reduce_pieces", Type(DType::F32, {ranks * 5 - 1}), {{"shape", Ints{5}}}},
                                       {"gather_pieces", Type(DType::F32, {5}), {{"shape", whole_of(5, ranks)}}},
                                       {"take_piece", Type(DType::F32, {ranks * 5 - 1}), {{"shape", Ints{5}}}},
                                       {"place_piece", Type(DType::F32, {5}), {{"shape", whole_of(5, ranks)}}}};
  for (int64_t root = 0; root < ranks; ++root)
    for (llvm::StringRef op : {"broadcast", "reduce_root"}) calls.push_back({op.str(), x, {{"root", root}}});
  for (const auto& [split, join] : {std::pair{0, 1}, {0, 2}, {2, 0}, {0, 0}, {2, 2}, {2, 1}})
    calls.push_back({"all_to_all", x, {{"split", int64_t{split}}, {"join", int64_t{join}}}});
  calls.push_back({"all_to_all", large, {{"split", int64_t{0}}, {"join", int64_t{1}}}});
  return calls;
}

Attrs in_group(const CollectiveCall& call, MeshAxis axis, int64_t ranks) {
  Attrs attrs = call.attrs;
  attrs.set("axis", axis_name(axis).str());
  attrs.set("ranks", ranks);
  return attrs;
}

std::vector<Tensor> whole_numbers(const Type& type, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> number(-8, 8);
  std::vector<Tensor> all;
  for (size_t i = 0; i < count; ++i) {
    Tensor& each = all.emplace_back(type);
    for (int64_t e = 0; e < type.elements(); ++e) each.view().set(e, number(random));
  }
  return all;
}

}  // namespace plimsoll::testing
