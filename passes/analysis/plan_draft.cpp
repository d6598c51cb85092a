#include "passes/analysis/plan_draft.h"

#include "ir/text.h"
#include "ir/verify.h"

namespace plimsoll {
namespace {

// " @ 512", or " @ 0, 512" where several results of the node have an offset.
std::string offsets_of(const Node& node, const FunctionDraft& function) {
  std::string text;
  for (ValueId result : node.results) {
    const int32_t buffer = function.buffers->buffer_of[index_of(result)];
    const int64_t offset = buffer < 0 ? -1 : function.placement->offset[buffer];
    if (offset >= 0) text += (text.empty() ? " @ " : ", ") + std::to_string(offset);
  }
  return text;
}

// The text form has one line per node between the graph's first line and its return.
std::string placed_text(const Graph& graph, const FunctionDraft& function) {
  const std::string plain = to_text(graph);
  llvm::SmallVector<llvm::StringRef, 64> lines;
  llvm::StringRef(plain).split(lines, '\n');
  std::string text;
  NodeId id = graph.first_node();
  for (size_t i = 0; i < lines.size(); ++i) {
    text += lines[i].str();
    if (i > 0 && id != NodeId::None) {
      text += offsets_of(graph.node(id), function);
      id = graph.next_node(id);
    }
    if (i + 1 < lines.size()) text += "\n";
  }
  return text;
}

}  // namespace

std::vector<NodeId>& PlanDraft::writers(size_t function) {
  std::vector<NodeId>& writers = functions[function].writers;
  if (writers.size() != program.functions[function].updates.size())
    writers = make_updates_writable(program.functions[function]);
  return writers;
}

void PlanDraft::drop_layout(size_t function) {
  functions[function].buffers.reset();
  functions[function].placement.reset();
}

Result<bool> PlanDraftSubject::run(const PassInfo& pass, PassContext& context) {
  bool changed = false;
  for (size_t f = 0; f < draft_.program.functions.size(); ++f) {
    Result<bool> one = pass.plan ? pass.plan(draft_, f, context) : pass.run(draft_.program.functions[f], context);
    if (!one) return one;
    if (*one && !pass.plan) draft_.functions[f] = {};
    changed |= *one;
  }
  return changed;
}

Status PlanDraftSubject::verify() const {
  for (const Graph& function : draft_.program.functions)
    if (Status s = plimsoll::verify(function)) return s;
  return Status::success();
}

std::string PlanDraftSubject::to_text() const {
  std::string text;
  for (size_t f = 0; f < draft_.functions.size(); ++f) {
    const Graph& graph = draft_.program.functions[f];
    const bool placed = draft_.functions[f].placement.has_value();
    text += (f == 0 ? "" : "\n") +
            (placed ? placed_text(graph, draft_.functions[f]) : plimsoll::to_text(graph, {.origins = true}));
  }
  return text;
}

Result<bool> run_steps(PassManager& passes, PlanDraft& draft, llvm::StringRef pipeline) {
  Result<Pipeline> parsed = parse_pipeline(pipeline);
  if (!parsed) return parsed.takeError();
  PlanDraftSubject subject(draft);
  return passes.run(subject, *parsed);
}

}  // namespace plimsoll
