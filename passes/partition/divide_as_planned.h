#pragma once

// A forward graph on the states of a plan that exists: evaluation reads weights as training keeps them, and so does a
// training step for another length.

#include "ir/graph.h"
#include "ir/mesh.h"
#include "ir/support/status.h"
#include "passes/partition/tensor_groups.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {

// What one rank has of a state.
struct OwnState {
  Shape shape;
  Divisions divisions;
};

enum class PlannedFor : uint8_t {
  Evaluation,  // of rows that other ranks along the axis data need not share
  Training,    // of the rows that divide_batch gave the rank; it keeps the outputs where gradients start
};

// `graph` is a forward graph on whole states. Turns it into that of one rank that has its states as `own` says, by
// name; states that are not in it stay whole. Parts along the axis tensor are worked on as divide_tensors does, where
// it would cut them so; other parts, and pieces along the axis data, are gathered ahead of their first reader. Outputs
// are alike along the axis tensor.
Status divide_as_planned(Graph& graph, const Mesh& mesh, const llvm::StringMap<OwnState>& own,
                         PlannedFor use = PlannedFor::Evaluation, DType sum_dtype = DType::F32);

// What divide_tensors may divide of a graph whose states are as `own` says; both outlive the function.
MayCutFn as_planned(const Graph& graph, const llvm::StringMap<OwnState>& own);

}  // namespace plimsoll
