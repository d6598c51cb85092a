#pragma once

// What the caller of a compilation asks of its passes, and what it sees of their work.

#include "ir/plan/plan.h"

#include "llvm/Support/raw_ostream.h"

#include <functional>

namespace plimsoll {

struct PipelineOptions {
  // An existing folder for NN-pass.ir after each pass that changed the graph, and for repro.ir on failure.
  std::string dump_dir;
  std::vector<std::string> print_after;  // passes after which the graph goes to `log`; "all" for each
  std::string stop_after;                // the last pass or phase to run
  std::vector<std::string> skip;
  bool check_answers = false;        // hold "nothing changed" against the printed text; twice the time
  llvm::raw_ostream* log = nullptr;  // where printed graphs go
};

struct CompileHooks {
  PipelineOptions pipeline;
  std::function<void(llvm::StringRef phase)> on_phase;  // called as each phase starts: "clean", "train", ...
};

}  // namespace plimsoll
