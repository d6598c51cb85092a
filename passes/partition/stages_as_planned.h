#pragma once

// The stages of a finished plan for another graph of the same model, such as that of evaluation: training has decided
// which stage has which state, and everything is computed where its states are.

#include "ir/graph.h"
#include "passes/partition/pipeline_schedule.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {

// By name of a state: the stage that has it. States that several stages have are not named.
using StagesOfStates = llvm::StringMap<int32_t>;

// Puts a transfer wherever a stage reads what another computes. A node belongs to the stage that has the states it
// reads, else to the one that computes its latest operand; what is made of inputs alone belongs to none.
void place_on_stages(Graph& graph, const StagesOfStates& owners, int64_t stages);

// One graph for each stage of a graph with such transfers, which may have been divided along the axis tensor since. No
// stage waits for ever, since all send and receive in the order of the whole graph. All have the same outputs.
Result<std::vector<Graph>> graphs_of_stages(const Graph& graph, const StagesOfStates& owners, int64_t stages);

// Of these places in the order of a forward graph, those behind which its runs of layers end, so that each stage is the
// first to read the states that it has. The error says that there are no such places.
Result<std::vector<NodeId>> ends_as_planned(const Graph& graph, llvm::ArrayRef<NodeId> places,
                                            const StagesOfStates& owners, const StageRuns& runs);

}  // namespace plimsoll
