#include "ir/ops/common/divide.h"

#include "ir/builder.h"

namespace plimsoll {

std::string pass_through(int64_t count) {
  std::string letters;
  for (int64_t i = 0; i < count; ++i) letters += static_cast<char>('a' + i);
  return letters;
}

std::optional<DividedCall> divide_letters(const OpCall& call, const DimLetters& letters, const CutAt& known) {
  const auto& side = known.side == CutAt::Side::Operand ? letters.operands : letters.results;
  const char letter = side[known.index][static_cast<size_t>(known.cut.dim)];
  if (letter == '.') return std::nullopt;
  auto cut_of = [&](llvm::StringRef dims) -> std::optional<Cut> {
    const size_t at = dims.find(letter);
    return at == llvm::StringRef::npos
               ? std::nullopt
               : std::optional(Cut{static_cast<int64_t>(at), known.cut.blocks, known.cut.parts});
  };
  DividedCall made;
  for (const std::string& dims : letters.operands) made.operands.push_back(cut_of(dims));
  for (const std::string& dims : letters.results) made.results.push_back(cut_of(dims));
  made.sums = llvm::none_of(made.results, [](const std::optional<Cut>& cut) { return cut.has_value(); });
  // Of several results each has the dimension or none does.
  if (!made.sums && llvm::any_of(made.results, [](const std::optional<Cut>& cut) { return !cut; })) return std::nullopt;
  made.attrs = call.attrs;
  return made;
}

void set_part(Attrs& attrs, llvm::StringRef name, const Cut& cut, int64_t ranks) {
  llvm::ArrayRef<int64_t> whole = attrs.get_ints(name);
  Ints part(whole.begin(), whole.end());
  part[static_cast<size_t>(cut.dim)] = part_size(cut, ranks);
  attrs.set(name, part);
}

std::optional<DividedCall> with_draws_of_part(DividedCall made, int64_t draws) {
  if (draws % 4 != 0) return std::nullopt;
  made.attrs.set("draws_per_part", draws);
  return made;
}

// Ranks run one plan, so a number of the rank's own is its piece of a list.
ValueId first_of_part(Builder& b, int64_t part, int64_t ranks, DType dtype) {
  Tensor firsts(Type(dtype, {ranks}));
  for (int64_t rank = 0; rank < ranks; ++rank) firsts.view().set_int(rank, rank * part);
  return b.emit("take_piece", {b.constant(std::move(firsts))}, collective_attrs(MeshAxis::Tensor, ranks, {1}));
}

}  // namespace plimsoll
