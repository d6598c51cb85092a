#pragma once

// What ranks along the tensor axis divide: parameters, each along one dimension, and the rows of values between their
// sums. Found from the graph, by what the ops' records say (OpDef::divide), and chosen by what it saves and sends.

#include "ir/op_def.h"

#include <functional>
#include <map>

namespace plimsoll {

// Values of which each rank has a part, because one dimension of one parameter is divided: the hidden features of a
// feed-forward layer, say, or the heads of an attention.
struct TensorGroup {
  ValueId seed = ValueId::None;         // the parameter, or the first of the sums
  std::map<ValueId, Cut> cuts;          // by value
  std::map<NodeId, DividedCall> calls;  // the nodes that work on parts
  // Of a rank and step, beside what it would be without the division.
  double saved_state_bytes = 0, saved_flops = 0, sent_bytes = 0;

  // In bytes on the link: how much more is saved than sent.
  double gain() const;
};

struct TensorGroups {
  std::vector<TensorGroup> taken;  // no node and no value is in two of them
  // Sequence parallelism (Korthikanti et al. 2022): what lies between sums and the next matmuls works on the rank's
  // rows. A sum then comes in pieces, and matmuls read gathered rows: as many bytes as the sum of wholes.
  std::vector<TensorGroup> rows;
  // Parameters of at least two dimensions that stay whole, and why.
  std::vector<std::pair<ValueId, std::string>> whole;
};

enum class Rows : uint8_t { Whole, Divided };
// Whether a group may divide a parameter so; null: all may.
using MayCutFn = std::function<bool(const State& parameter, const Cut& cut)>;
TensorGroups choose_tensor_groups(const Graph& graph, int64_t ranks, Rows rows, const MayCutFn& may_cut = nullptr);

}  // namespace plimsoll
