#pragma once

// A pipeline is text: "fold-constants, plan-memory{align=256 budget=2KiB}". Around every pass the runner
// verifies, times, counts, dumps and, on a failure, leaves a file that reproduces it.

#include "passes/pass/pass.h"

#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

struct PipelineStep {
  const PassInfo* pass = nullptr;
  std::map<std::string, std::string> options;
};

struct Pipeline {
  std::vector<PipelineStep> steps;
  std::string to_text() const;
};

// Unknown passes and options are usage errors with the nearest name; so is an order that a pass rules out.
Result<Pipeline> parse_pipeline(llvm::StringRef text);

struct PipelineOptions {
  // An existing folder for NN-pass.ir after each pass that changed the graph, and for repro.ir on failure.
  std::string dump_dir;
  size_t runs_before = 0;                // where NN goes on when several pipelines dump into one folder
  std::vector<std::string> print_after;  // passes after which the graph goes to `log`; "all" for each
  std::string stop_after;                // the last pass to run
  std::vector<std::string> skip;
  bool check_answers = false;        // hold "nothing changed" against the printed text; twice the time
  llvm::raw_ostream* log = nullptr;  // where printed graphs go
};

struct PassRun {
  std::string pass;
  bool changed = false;
  double seconds = 0;  // of the pass itself, without verifying
  std::map<std::string, int64_t> counters;
  std::vector<std::string> lines;
};

struct PipelineReport {
  std::vector<PassRun> runs;
  std::vector<Decision> decisions;
  void print(llvm::raw_ostream& out) const;  // a line a pass: time, "unchanged" or the counters
};

// On failure the graph is as the failing pass left it; the message starts with the pass's name.
Result<PipelineReport> run_pipeline(Graph& graph, const Pipeline& pipeline, const PipelineOptions& options = {});

}  // namespace plimsoll
