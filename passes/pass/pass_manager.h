#pragma once

// Runs pipelines. Around every pass the manager verifies, counts, dumps, prints and, on a failure, leaves a file that
// reproduces it.

#include "passes/pass/pass.h"

#include "llvm/Support/raw_ostream.h"

#include <functional>

namespace plimsoll {

// A pipeline is text: "fold-constants, insert-casts{to=bf16}". Steps are separated by commas, options inside braces by
// blanks. A value that holds one of these stands in double quotes; a quote inside is doubled.
struct PipelineStep {
  const PassInfo* pass = nullptr;
  OptionValues options;
};

struct Pipeline {
  std::vector<PipelineStep> steps;
  std::string to_text() const;
};

// Unknown passes and options are usage errors with the nearest name; so are values of another type or out of range.
Result<Pipeline> parse_pipeline(llvm::StringRef text);

// A value as pipelines write it, in quotes where it needs them.
std::string option_text(llvm::StringRef value);

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

struct PassRun {
  std::string pass;
  bool changed = false;
  std::map<std::string, int64_t> counters;
  std::vector<std::string> lines;
};

// What the steps of a pipeline work on.
class PassSubject {
 public:
  virtual ~PassSubject() = default;
  virtual Result<bool> run(const PassInfo& pass, PassContext& context) = 0;
  virtual Status verify() const = 0;
  virtual std::string to_text() const = 0;               // reads back
  virtual void print(llvm::raw_ostream& out) const = 0;  // for people: large tensors are cut
};

// Runs pipelines one after another as if they were one: dumps are numbered on, decisions add up, and nothing runs after
// the pass or phase to stop at. A copy goes on from where the original stands.
class PassManager {
 public:
  PassManager() = default;
  explicit PassManager(CompileHooks hooks) : hooks_(std::move(hooks)) {}

  // A copy that goes on under other hooks; a quiet one keeps the passes to skip and nothing else of the hooks.
  PassManager under(CompileHooks hooks) const;
  PassManager quiet() const;
  // A quiet copy that verifies its subject before and behind each pipeline and not behind each pass, for programs that
  // are compared with others. The plan that is chosen is checked by itself.
  PassManager sparing() const;

  // Did anything change? Nothing does once stopped. On failure the subject is as the failing pass left it; the message
  // starts with the pass's name.
  Result<bool> run(PassSubject& subject, const Pipeline& pipeline);
  Result<bool> run(Graph& graph, const Pipeline& pipeline);
  Result<bool> run(Graph& graph, llvm::StringRef pipeline);

  // Around the phases of a compilation. Leaving says whether to stop, after a pass of the phase or after the phase.
  void enter(llvm::StringRef phase) const;
  bool leave(llvm::StringRef phase);
  bool stopped() const { return stopped_; }

  void decide(Decision decision) { decisions_.push_back(std::move(decision)); }
  const std::vector<Decision>& decisions() const { return decisions_; }
  const std::vector<PassRun>& runs() const { return runs_; }

 private:
  Result<bool> run_step(PassSubject& subject, const PipelineStep& step);
  Status run_checked(PassSubject& subject, const PipelineStep& step, PassContext& context, PassRun& run,
                     llvm::StringRef before) const;
  Status show(const PassSubject& subject, const PassRun& run) const;

  CompileHooks hooks_;
  std::vector<PassRun> runs_;
  std::vector<Decision> decisions_;
  bool stopped_ = false;
  bool verifies_passes_ = true;
};

}  // namespace plimsoll
