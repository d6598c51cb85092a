#include "passes/pass/pass_manager.h"

#include "ir/support/output_file.h"
#include "ir/support/units.h"
#include "ir/text.h"
#include "ir/verify.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Path.h"

#include <chrono>

namespace plimsoll {

#define PLIMSOLL_PASS(name) extern const PassInfo pass_##name;
#include "passes/pass/passes.def"
#undef PLIMSOLL_PASS

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

Status check_stage(const PassInfo& pass, const Graph& graph) {
  if (pass.stage == Stage::Any) return Status::success();
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    if (graph.node(id).phase != Phase::Forward)
      return usage_error("works on forward graphs, and %" + graph.value(graph.node(id).results.front()).name + " is " +
                         phase_name(graph.node(id).phase));
  return Status::success();
}

// Runs the steps of one pipeline on one graph.
class Runner {
 public:
  Runner(Graph& graph, const PipelineOptions& options) : graph_(graph), options_(options) {}

  Result<PipelineReport> run(const Pipeline& pipeline) {
    if (Status s = verify(graph_)) return s;
    for (const PipelineStep& step : pipeline.steps) {
      llvm::StringRef name = step.pass->name;
      if (llvm::is_contained(options_.skip, name)) continue;
      if (Status s = run_step(step)) return in_context(name, std::move(s));
      if (options_.stop_after == name) break;
    }
    return std::move(report_);
  }

 private:
  Status run_step(const PipelineStep& step) {
    bool keeps_text = options_.check_answers || !options_.dump_dir.empty();
    std::string before = keeps_text ? to_text(graph_, {.origins = true}) : "";
    PassContext context(step.pass->name, step.options);
    PassRun run{step.pass->name.str()};
    if (Status s = run_checked(step, context, run, before)) {
      if (options_.dump_dir.empty()) return s;
      std::string repro = "// run: " + Pipeline{{step}}.to_text() + "\n" + before;
      if (Status w = write_text(options_.dump_dir, "repro.ir", repro))
        return llvm::joinErrors(std::move(s), std::move(w));
      return s;
    }
    run.counters = std::move(context.counters);
    run.lines = std::move(context.lines);
    llvm::append_range(report_.decisions, context.decisions);
    report_.runs.push_back(std::move(run));
    return show(report_.runs.back());
  }

  Status run_checked(const PipelineStep& step, PassContext& context, PassRun& run, llvm::StringRef before) {
    if (Status s = check_stage(*step.pass, graph_)) return s;
    auto start = std::chrono::steady_clock::now();
    Result<bool> changed = step.pass->run(graph_, context);
    run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!changed) return changed.takeError();
    run.changed = *changed;
    if (Status s = verify(graph_)) return s;
    if (options_.check_answers && (to_text(graph_, {.origins = true}) != before) != *changed)
      return model_error(*changed ? "says it changed the graph and did not" : "changed the graph and says it did not");
    return Status::success();
  }

  Status show(const PassRun& run) {
    bool wanted = llvm::is_contained(options_.print_after, run.pass) || llvm::is_contained(options_.print_after, "all");
    if (wanted && options_.log) {
      *options_.log << "// after " << run.pass << (run.changed ? "\n" : " (unchanged)\n");
      print_graph(*options_.log, graph_, {.largest_tensor = 64});
    }
    if (options_.dump_dir.empty() || !run.changed) return Status::success();
    size_t count = options_.runs_before + report_.runs.size();
    std::string number = (count < 10 ? "0" : "") + std::to_string(count) + "-";
    return write_text(options_.dump_dir, number + run.pass + ".ir", to_text(graph_, {.origins = true}));
  }

  Graph& graph_;
  const PipelineOptions& options_;
  PipelineReport report_;
};

}  // namespace

llvm::ArrayRef<const PassInfo*> all_passes() { return passes; }

const PassInfo* find_pass(llvm::StringRef name) {
  auto at = llvm::find_if(passes, [&](const PassInfo* pass) { return pass->name == name; });
  return at == std::end(passes) ? nullptr : *at;
}

llvm::StringRef PassContext::option(llvm::StringRef name, llvm::StringRef otherwise) const {
  auto at = options_.find(name.str());
  return at == options_.end() ? otherwise : llvm::StringRef(at->second);
}

Result<int64_t> PassContext::int_option(llvm::StringRef name, int64_t otherwise) const {
  if (!has_option(name)) return otherwise;
  int64_t value = 0;
  if (option(name).getAsInteger(10, value)) return usage_error(name + "=" + option(name) + " is not an integer");
  return value;
}

Result<int64_t> PassContext::bytes_option(llvm::StringRef name, int64_t otherwise) const {
  return has_option(name) ? parse_bytes(option(name)) : Result<int64_t>(otherwise);
}

Result<double> PassContext::float_option(llvm::StringRef name, double otherwise) const {
  if (!has_option(name)) return otherwise;
  double value = 0;
  if (option(name).getAsDouble(value)) return usage_error(name + "=" + option(name) + " is not a number");
  return value;
}

void PipelineReport::print(llvm::raw_ostream& out) const {
  for (const PassRun& run : runs) {
    out << llvm::format("%8.1f ms  ", run.seconds * 1e3) << run.pass;
    if (!run.changed) out << ": unchanged";
    bool first = run.changed;
    for (const auto& [what, n] : run.counters) {
      if (n == 0) continue;
      out << (first ? ": " : ", ") << what << ' ' << n;
      first = false;
    }
    out << '\n';
  }
}

Result<PipelineReport> run_pipeline(Graph& graph, const Pipeline& pipeline, const PipelineOptions& options) {
  return Runner(graph, options).run(pipeline);
}

}  // namespace plimsoll
