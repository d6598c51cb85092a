#pragma once

// Calls of every collective on so many ranks, to be run by themselves.

#include "ir/op_def.h"

namespace plimsoll::testing {

struct CollectiveCall {
  std::string op;
  Type x;
  Attrs attrs;  // without the group
};
std::vector<CollectiveCall> collective_calls(int64_t ranks);
// The call's attributes in a group.
Attrs in_group(const CollectiveCall& call, MeshAxis axis, int64_t ranks);

// One tensor for each rank, of numbers from -8 to 8 that the seed decides: sums of them are exact.
std::vector<Tensor> whole_numbers(const Type& type, size_t count, uint64_t seed);

}  // namespace plimsoll::testing
