#include "tests/support/file_test.h"

// A file is cut into sections, one a graph: the graph and the comments above it. Each section is parsed,
// printed and parsed again, run through its pipeline one pass at a time, and held against its directives.

#include "ir/plan/check.h"
#include "ir/support/strings.h"
#include "ir/text.h"
#include "passes/lower_to_plan.h"
#include "passes/pass/pass_manager.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/random_values.h"

#include "llvm/ADT/StringExtras.h"

#include <map>
#include <optional>

namespace plimsoll {
namespace {

struct Directive {
  std::string text;
  size_t line = 0;       // in the file, from 1
  bool own_line = true;  // nothing but the comment
};

struct Section {
  size_t first_line = 1;
  std::vector<llvm::StringRef> lines;
  std::string run;
  std::vector<Directive> checks, check_nots;
  std::optional<Directive> error, same_as;
};

// "  %a = exp(%x)  // error: text" gives the directive `error` and its text.
std::optional<std::pair<llvm::StringRef, Directive>> find_directive(llvm::StringRef line, size_t number) {
  size_t comment = line.find("// ");
  if (comment == llvm::StringRef::npos) return std::nullopt;
  llvm::StringRef body = line.drop_front(comment + 3).trim();
  for (llvm::StringRef name : {"run", "check", "check-not", "error", "same-as"})
    if (starts_with(body, (name + ":").str()))
      return std::pair(name, Directive{body.drop_front(name.size() + 1).trim().str(), number,
                                       line.take_front(comment).trim().empty()});
  return std::nullopt;
}

std::vector<Section> split_sections(llvm::StringRef text) {
  llvm::SmallVector<llvm::StringRef, 64> lines;
  text.split(lines, '\n');
  std::vector<Section> sections(1);
  for (size_t i = 0; i < lines.size(); ++i) {
    Section& section = sections.back();
    section.lines.push_back(lines[i]);
    if (auto found = find_directive(lines[i], i + 1)) {
      auto& [name, directive] = *found;
      if (name == "run") section.run += (section.run.empty() ? "" : ", ") + directive.text;
      if (name == "check") section.checks.push_back(directive);
      if (name == "check-not") section.check_nots.push_back(directive);
      if (name == "error") section.error = directive;
      if (name == "same-as") section.same_as = directive;
    }
    bool more = llvm::any_of(llvm::ArrayRef<llvm::StringRef>(lines).drop_front(i + 1),
                             [](llvm::StringRef line) { return starts_with(line, "graph "); });
    if (starts_with(lines[i], "}") && more) {
      sections.emplace_back();
      sections.back().first_line = i + 2;
    }
  }
  // A section without a pipeline of its own has that of the one above.
  for (size_t i = 1; i < sections.size(); ++i)
    if (sections[i].run.empty()) sections[i].run = sections[i - 1].run;
  return sections;
}

// The same text whatever the graph, its nodes' results and its outputs are called.
std::string without_names(Graph graph) {
  graph.name = "graph";
  size_t count = 0;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id))
    for (ValueId result : graph.node(id).results) graph.rename(result, "value " + std::to_string(count++));
  for (auto it : llvm::enumerate(graph.outputs)) it.value().name = "output " + std::to_string(it.index());
  return to_text(graph);
}

// The CPU with bytes in multiples of 64, no reserves, and a host of its own behind 1 GB/s each way.
DeviceDescription planning_device() {
  DeviceDescription device = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("cpu"));
  device.reserves.clear();
  device.alignment_bytes = 64;
  device.to_host_gb_per_s = device.from_host_gb_per_s = 1;
  device.launch_us = device.kernel_us = 0;
  return device;
}

class SectionTest {
 public:
  explicit SectionTest(const Section& section) : section_(section) {}

  std::vector<std::string> failures;
  std::string output;  // report lines and the final graph
  std::optional<Graph> final_graph;

  void run() {
    if (Status s = run_graph()) return check_error(take_diag(std::move(s)).text());
    if (section_.error) return fail(section_.error->line, "no error: " + section_.error->text);
    check_output();
  }

 private:
  void fail(size_t line, const llvm::Twine& what) { failures.push_back(std::to_string(line) + ": " + what.str()); }

  Status run_graph() {
    // Lines above the section keep their numbers.
    std::string text(section_.first_line - 1, '\n');
    text += llvm::join(section_.lines, "\n");
    Result<Graph> graph = parse_graph(text);
    if (!graph) return graph.takeError();
    check_round_trip(*graph);
    Result<Pipeline> pipeline = parse_pipeline(section_.run);
    if (!pipeline) return pipeline.takeError();
    PlanDraft draft(Program{{std::move(*graph)}}, device_, catalog_);
    for (const PipelineStep& step : pipeline->steps)
      if (Status s = run_step(draft, step)) return s;
    Graph& result = draft.program.functions.front();
    if (!pipeline->steps.empty()) check_round_trip(result);
    output += PlanDraftSubject(draft).to_text();
    if (draft.functions.front().placement)
      if (Status s = check_lowered(draft)) return s;
    final_graph = std::move(result);
    return Status::success();
  }

  // What is placed also becomes a plan that the checker accepts. Inputs are all it may lack to be a whole step.
  Status check_lowered(PlanDraft& draft) {
    draft.writers(0);
    Result<Plan> plan = lower_to_plan({draft, 0});
    return plan ? check_plan(*plan) : plan.takeError();
  }

  Status run_step(PlanDraft& draft, const PipelineStep& step) {
    const Graph before = draft.program.functions.front();
    CompileHooks hooks;
    hooks.pipeline.check_answers = true;
    PassManager passes(hooks);
    PlanDraftSubject subject(draft);
    if (Result<bool> changed = step.pass->plan ? passes.run(subject, Pipeline{{step}})
                                               : passes.run(draft.program.functions.front(), Pipeline{{step}});
        !changed)
      return changed.takeError();
    const Graph& graph = draft.program.functions.front();
    for (const PassRun& run : passes.runs())
      for (const std::string& line : run.lines) output += line + "\n";
    if (!step.pass->keeps_result) return Status::success();
    if (std::string difference = compare_results(before, graph); !difference.empty())
      fail(section_.first_line, step.pass->name + " changed the result: " + difference);
    return Status::success();
  }

  void check_round_trip(const Graph& graph) {
    std::string text = to_text(graph, {.origins = true});
    Result<Graph> again = parse_graph(text);
    if (!again) return fail(section_.first_line, "printed text does not parse: " + take_diag(again.takeError()).text());
    if (to_text(*again, {.origins = true}) != text)
      fail(section_.first_line, "text changes when printed, parsed and printed:\n" + text);
  }

  void check_error(const std::string& message) {
    if (!section_.error) return fail(section_.first_line, "failed: " + message);
    const Directive& expected = *section_.error;
    if (!llvm::StringRef(message).contains(expected.text))
      return fail(expected.line, "expected the error '" + expected.text + "', got '" + message + "'");
    if (!expected.own_line && !blames(message, expected.line))
      fail(expected.line, "the error is not about this line: " + message);
  }

  // By number, or by naming a value that the line defines.
  bool blames(llvm::StringRef message, size_t line) const {
    if (starts_with(message, std::to_string(line) + ":")) return true;
    auto [results, rest] = section_.lines[line - section_.first_line].split(" = ");
    llvm::SmallVector<llvm::StringRef, 2> names;
    results.split(names, ',');
    return !rest.empty() &&
           llvm::any_of(names, [&](llvm::StringRef name) { return message.contains(name.trim(" %\"")); });
  }

  void check_output() {
    llvm::StringRef rest = output;
    for (const Directive& check : section_.checks) {
      size_t at = rest.find(check.text);
      if (at == llvm::StringRef::npos) {
        bool earlier = llvm::StringRef(output).contains(check.text);
        return fail(check.line, "not found" + llvm::Twine(earlier ? " in this order" : "") + ": " + check.text +
                                    "\nin the output\n" + output);
      }
      rest = rest.drop_front(rest.find('\n', at) + 1);
    }
    for (const Directive& check : section_.check_nots)
      if (llvm::StringRef(output).contains(check.text))
        fail(check.line, "found: " + check.text + "\nin the output\n" + output);
  }

  const Section& section_;
  const DeviceDescription device_ = planning_device();
  const CpuCatalog catalog_;
};

// The section's lines with its check: lines replaced by the lines of the output that stand in the graph's
// body.
std::string bless(const Section& section, llvm::StringRef output) {
  std::vector<std::string> lines;
  bool written = false;
  for (size_t i = 0; i < section.lines.size(); ++i) {
    size_t number = section.first_line + i;
    bool is_check = llvm::any_of(section.checks, [&](const Directive& check) { return check.line == number; });
    if (!is_check) {
      lines.push_back(section.lines[i].str());
      continue;
    }
    llvm::SmallVector<llvm::StringRef, 32> printed;
    output.split(printed, '\n', -1, false);
    for (llvm::StringRef line : printed)
      if (!written && line != "}" && !starts_with(line, "graph ")) lines.push_back(("// check: " + line.trim()).str());
    written = true;
  }
  return llvm::join(lines, "\n");
}

}  // namespace

FileTestReport run_file_test(llvm::StringRef text) {
  FileTestReport report;
  std::vector<Section> sections = split_sections(text);
  std::map<std::string, Graph> finals;
  std::vector<std::string> blessed;
  for (const Section& section : sections) {
    SectionTest test(section);
    test.run();
    bool rewrites = !test.failures.empty() && test.final_graph && !section.checks.empty();
    blessed.push_back(rewrites ? bless(section, test.output) : llvm::join(section.lines, "\n"));
    llvm::append_range(report.failures, test.failures);
    if (test.final_graph) finals[test.final_graph->name] = *test.final_graph;
    if (!section.same_as || !test.final_graph) continue;
    auto other = finals.find(llvm::StringRef(section.same_as->text).ltrim('@').str());
    if (other == finals.end())
      report.failures.push_back(std::to_string(section.same_as->line) + ": there is no " + section.same_as->text +
                                " above");
    else if (without_names(*test.final_graph) != without_names(other->second))
      report.failures.push_back(std::to_string(section.same_as->line) + ": not the same as " + section.same_as->text +
                                ":\n" + to_text(*test.final_graph) + "and\n" + to_text(other->second));
  }
  report.blessed = llvm::join(blessed, "\n");
  return report;
}

}  // namespace plimsoll
