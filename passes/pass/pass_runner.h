#pragma once

// Runs pipelines of passes one after another as if they were one: dumps count on, decisions add up.

#include "passes/compile.h"

namespace plimsoll {

inline void enter(const CompileHooks& hooks, llvm::StringRef phase) {
  if (hooks.on_phase) hooks.on_phase(phase);
}

class PassRunner {
 public:
  PassRunner(const CompileHooks& hooks, std::vector<Decision>& decisions, size_t runs_before = 0, bool stopped = false)
      : options_(hooks.pipeline), decisions_(decisions), stopped_(stopped) {
    options_.runs_before += runs_before;
  }

  // Did anything change? Nothing does once stopped.
  Result<bool> run(Graph& graph, llvm::StringRef text) {
    Result<Pipeline> pipeline = parse_pipeline(text);
    if (!pipeline) return pipeline.takeError();
    return run(graph, *pipeline);
  }

  Result<bool> run(Graph& graph, const Pipeline& pipeline) {
    if (stopped_) return false;
    Result<PipelineReport> report = run_pipeline(graph, pipeline, options_);
    if (!report) return report.takeError();
    options_.runs_before += report->runs.size();
    stopped_ = !report->runs.empty() && report->runs.back().pass == options_.stop_after;
    decisions_.insert(decisions_.end(), report->decisions.begin(), report->decisions.end());
    return llvm::any_of(report->runs, [](const PassRun& run) { return run.changed; });
  }

  bool stopped() const { return stopped_; }
  size_t runs() const { return options_.runs_before; }
  // Asked at the end of a phase: is there nothing more to do?
  bool stopped_after(llvm::StringRef phase) const { return stopped_ || options_.stop_after == phase; }

 private:
  PipelineOptions options_;
  std::vector<Decision>& decisions_;
  bool stopped_;
};

}  // namespace plimsoll
