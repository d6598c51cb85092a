#pragma once

// How records say which dimensions of an op ranks may divide: by a letter for each dimension, as in an einsum.

#include "ir/op_def.h"

namespace plimsoll {

// A letter for each dimension. Dimensions with one letter are cut together, those marked '.' never. A letter that no
// result has is summed over.
struct DimLetters {
  llvm::SmallVector<std::string, 4> operands;  // by operand; empty where absent
  llvm::SmallVector<std::string, 4> results;
};
// The first `count` letters of those for dimensions that pass through: "abc".
std::string pass_through(int64_t count);
std::optional<DividedCall> divide_letters(const OpCall& call, const DimLetters& letters, const CutAt& known);

// Sets the entry of the list `name` that the cut is about to the rank's part of it.
void set_part(Attrs& attrs, llvm::StringRef name, const Cut& cut, int64_t ranks);

// The op draws `draws` numbers for a rank's part, and the ranks' parts are runs of them in the order of the ranks. None
// where these are no whole blocks.
std::optional<DividedCall> with_draws_of_part(DividedCall made, int64_t draws);

// Where the rank's part of a dimension begins if each has `part` of it: one number of that dtype, [1].
ValueId first_of_part(Builder& b, int64_t part, int64_t ranks, DType dtype);

}  // namespace plimsoll
