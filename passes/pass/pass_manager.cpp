#include "passes/pass/pass_manager.h"

#include "ir/support/output_file.h"
#include "ir/text.h"
#include "ir/verify.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"

namespace plimsoll {
namespace {

constexpr const PassInfo* passes[] = {
#define PLIMSOLL_PASS(name) &pass_##name,
#include "passes/pass/passes.def"
#undef PLIMSOLL_PASS
};

Status write_text(llvm::StringRef folder, const llvm::Twine& file, llvm::StringRef text) {
  llvm::SmallString<128> path(folder);
  llvm::sys::path::append(path, file);
  return write_output_file(path, [&](llvm::raw_ostream& out) {
    out << text;
    return Status::success();
  });
}

class GraphSubject : public PassSubject {
 public:
  explicit GraphSubject(Graph& graph) : graph_(graph) {}

  Result<bool> run(const PassInfo& pass, PassContext& context) override {
    if (Status s = check_stage(pass.stage)) return s;
    if (!pass.run) return usage_error("works on a program, and this pipeline has a graph alone");
    return pass.run(graph_, context);
  }
  Status verify() const override { return plimsoll::verify(graph_); }
  std::string to_text() const override { return plimsoll::to_text(graph_, {.origins = true}); }
  void print(llvm::raw_ostream& out) const override { print_graph(out, graph_, {.largest_tensor = 64}); }

 private:
  Status check_stage(Stage stage) const {
    if (stage == Stage::Any) return Status::success();
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id))
      if (graph_.node(id).phase != Phase::Forward)
        return usage_error("works on forward graphs, and %" + graph_.value(graph_.node(id).results.front()).name +
                           " is " + phase_name(graph_.node(id).phase));
    return Status::success();
  }

  Graph& graph_;
};

std::string headline(const PassRun& run) {
  std::string text = "// after " + run.pass + (run.changed ? "" : " (unchanged)");
  llvm::StringRef separator = ": ";
  for (const auto& [what, n] : run.counters) {
    if (n == 0) continue;
    text += separator.str() + what + " " + std::to_string(n);
    separator = ", ";
  }
  return text + "\n";
}

}  // namespace

llvm::ArrayRef<const PassInfo*> all_passes() { return passes; }

const PassInfo* find_pass(llvm::StringRef name) {
  auto at = llvm::find_if(passes, [&](const PassInfo* pass) { return pass->name == name; });
  return at == std::end(passes) ? nullptr : *at;
}

static const PassOption& option_of(const PassInfo& pass, llvm::StringRef name) {
  auto* option = llvm::find_if(pass.options, [&](const PassOption& option) { return option.name == name; });
  assert(option != pass.options.end() && "the record lists every option that its pass reads");
  return *option;
}

int64_t PassContext::number(llvm::StringRef option) const {
  auto given = options_.find(option.str());
  if (given != options_.end()) return std::get<int64_t>(given->second);
  return std::get<int64_t>(option_of(pass_, option).otherwise);
}

std::string PassContext::text(llvm::StringRef option) const {
  auto given = options_.find(option.str());
  if (given != options_.end()) return std::get<std::string>(given->second);
  return std::get<llvm::StringLiteral>(option_of(pass_, option).otherwise).str();
}

PassManager PassManager::under(CompileHooks hooks) const {
  PassManager passes = *this;
  passes.hooks_ = std::move(hooks);
  passes.stopped_ = false;
  return passes;
}

PassManager PassManager::quiet() const {
  CompileHooks hooks;
  hooks.pipeline.skip = hooks_.pipeline.skip;
  return under(std::move(hooks));
}

PassManager PassManager::sparing() const {
  PassManager passes = quiet();
  passes.verifies_passes_ = false;
  return passes;
}

void PassManager::enter(llvm::StringRef phase) const {
  if (hooks_.on_phase) hooks_.on_phase(phase);
}

bool PassManager::leave(llvm::StringRef phase) { return stopped_ |= hooks_.pipeline.stop_after == phase; }

Result<bool> PassManager::run(Graph& graph, llvm::StringRef pipeline) {
  Result<Pipeline> parsed = parse_pipeline(pipeline);
  return parsed ? run(graph, *parsed) : parsed.takeError();
}

Result<bool> PassManager::run(Graph& graph, const Pipeline& pipeline) {
  GraphSubject subject(graph);
  return run(subject, pipeline);
}

Result<bool> PassManager::run(PassSubject& subject, const Pipeline& pipeline) {
  if (stopped_) return false;
  if (Status s = subject.verify()) return s;
  bool changed = false;
  for (const PipelineStep& step : pipeline.steps) {
    llvm::StringRef name = step.pass->name;
    if (llvm::is_contained(hooks_.pipeline.skip, name)) continue;
    Result<bool> result = run_step(subject, step);
    if (!result) return in_context(name, result.takeError());
    changed |= *result;
    if ((stopped_ = hooks_.pipeline.stop_after == name)) break;
  }
  if (changed && !verifies_passes_)
    if (Status s = subject.verify()) return s;
  return changed;
}

Result<bool> PassManager::run_step(PassSubject& subject, const PipelineStep& step) {
  const std::string& dump_dir = hooks_.pipeline.dump_dir;
  const std::string before = hooks_.pipeline.check_answers || !dump_dir.empty() ? subject.to_text() : "";
  PassContext context(*step.pass, step.options);
  PassRun run{step.pass->name.str()};
  if (Status s = run_checked(subject, step, context, run, before)) {
    if (dump_dir.empty()) return s;
    Status written = write_text(dump_dir, "repro.ir", "// run: " + Pipeline{{step}}.to_text() + "\n" + before);
    return written ? llvm::joinErrors(std::move(s), std::move(written)) : std::move(s);
  }
  run.counters = std::move(context.counters);
  run.lines = std::move(context.lines);
  llvm::append_range(decisions_, context.decisions);
  runs_.push_back(std::move(run));
  if (Status s = show(subject, runs_.back())) return s;
  return runs_.back().changed;
}

Status PassManager::run_checked(PassSubject& subject, const PipelineStep& step, PassContext& context, PassRun& run,
                                llvm::StringRef before) const {
  Result<bool> changed = subject.run(*step.pass, context);
  if (!changed) return changed.takeError();
  run.changed = *changed;
  // What did not change was verified before; whether a pass tells the truth is what check_answers is for.
  if ((*changed && verifies_passes_) || hooks_.pipeline.check_answers)
    if (Status s = subject.verify()) return s;
  if (hooks_.pipeline.check_answers && (subject.to_text() != before) != *changed)
    return model_error(*changed ? "says it changed the graph and did not" : "changed the graph and says it did not");
  return Status::success();
}

Status PassManager::show(const PassSubject& subject, const PassRun& run) const {
  const PipelineOptions& options = hooks_.pipeline;
  bool wanted = llvm::is_contained(options.print_after, run.pass) || llvm::is_contained(options.print_after, "all");
  if (wanted && options.log) {
    *options.log << headline(run);
    subject.print(*options.log);
  }
  if (options.dump_dir.empty() || !run.changed) return Status::success();
  std::string number = (runs_.size() < 10 ? "0" : "") + std::to_string(runs_.size()) + "-";
  return write_text(options.dump_dir, number + run.pass + ".ir", subject.to_text());
}

}  // namespace plimsoll
