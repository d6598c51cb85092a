#include "passes/analysis/plan_draft.h"
#include "passes/offload/copy_issue.h"
#include "passes/offload/overlap.h"
#include "passes/offload/state_offload.h"
#include "passes/remat/remat_problem.h"
#include "passes/remat/remat_rewrite.h"

// The planning step offload: states of some roles live on the host, and their copies run beside computing as far as a
// limit of live bytes allows.

namespace plimsoll {
namespace {

llvm::StringSet<> states_of(const Graph& graph, llvm::StringRef role) {
  llvm::StringSet<> states;
  for (const State& state : graph.states)
    if (role == "all" ? state.role != StateRole::Counter : role == role_name(state.role))
      states.insert(graph.value(state.value).name);
  return states;
}

Result<bool> run_offload(PlanDraft& draft, PassContext& context) {
  const int64_t limit = context.number("limit");
  bool changed = false;
  for (size_t f = 0; f < draft.functions.size(); ++f) {
    Graph& graph = draft.program.functions[f];
    std::vector<NodeId>& writers = draft.writers(f);
    const llvm::StringSet<> states = states_of(graph, context.text("states"));
    if (states.empty()) continue;
    move_states_to_host(graph, writers, states);
    const GraphRematProblem sequence = graph_remat_problem(graph, writers, draft.device, *draft.catalog);
    const std::vector<Overlap> levels =
        overlap_levels(sequence.problem, limit > 0 ? limit : std::numeric_limits<int64_t>::max());
    draft.functions[f].copies = issue_copies(graph, levels.back().intervals);
    draft.drop_layout(f);
    changed = true;
    context.report("copies: " + llvm::Twine(levels.back().intervals.size()) + ", peak " +
                   llvm::Twine(levels.back().peak_bytes) + " bytes");
    std::vector<int32_t> position(graph.node_slots(), 0);
    int32_t count = 0;
    for (NodeId id : graph.order())
      if (is_instruction(graph.node(id))) position[index_of(id)] = count++;
    for (const CopyInFlight& copy : draft.functions[f].copies)
      context.report("%" + graph.value(graph.node(copy.copy).results[0]).name + " is issued at " +
                     llvm::Twine(position[index_of(copy.copy)]) + " and waited for at " + llvm::Twine(copy.done));
  }
  return changed;
}

constexpr PassOption offload_options[] = {
    {"states", "all", "whose home is host memory: optimizer, gradient, parameter, buffer, or all of these"},
    {"limit", int64_t{0}, "most live bytes of a function, without states; 0: as many as copies gain from"}};

}  // namespace

extern const PassInfo pass_offload;
constinit const PassInfo pass_offload{
    .name = "offload",
    .summary = "lets states live in host memory, with copies beside computing",
    .stage = Stage::Any,
    .keeps_result = true,
    .options = offload_options,
    .plan = run_offload,
};

}  // namespace plimsoll
