#pragma once

// Adapters that the model itself has, as the importer recognised them.

#include "ir/adapter_names.h"
#include "passes/job.h"

namespace plimsoll {

// What an adapter's matrices and the ops around them say.
struct ExportedAdapter {
  std::string module;
  int64_t rank = 0;
  double scale = 1;             // what B's result is multiplied by
  double dropout = 0;           // of A's operand
  bool has_magnitudes = false;  // DoRA
};

// By module; empty where the graph has none, or where they were inserted here. The graph may be as imported or clean.
// Errors: an adapter of which half is missing, or that no layer reads.
Result<std::vector<ExportedAdapter>> exported_adapters_of(const Graph& graph);

// Is the state of an adapter, or of a module saved with it, that the model's file has? Its name ends in PEFT's key,
// while names of those inserted here have the path in the user's model.
bool is_from_export(const Graph& graph, const State& state);

// "14 modules of rank 8 and scale 2 with magnitudes, such as layers.0.q_proj; 1 parameter is trained whole"
std::string describe(const Graph& graph, llvm::ArrayRef<ExportedAdapter> adapters);

// Notes among the numbers of the plan what files of the adapters say besides their matrices.
void describe_exported_adapters(TrainingSummary& summary, llvm::ArrayRef<ExportedAdapter> adapters);

}  // namespace plimsoll
