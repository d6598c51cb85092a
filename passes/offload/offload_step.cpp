#include "passes/analysis/plan_draft.h"
#include "passes/offload/offload_rewrite.h"
#include "passes/offload/overlap.h"
#include "passes/offload/update_pieces.h"
#include "passes/remat/remat_problem.h"

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

// One line per copy: where it is issued and where it is waited for.
void report_copies(const Graph& graph, llvm::ArrayRef<CopyInFlight> copies, PassContext& context) {
  const std::vector<NodeId> instructions = instructions_of(graph);
  for (const CopyInFlight& copy : copies)
    context.report("%" + graph.value(graph.node(copy.copy).results[0]).name + " is issued at " +
                   llvm::Twine(llvm::find(instructions, copy.copy) - instructions.begin()) + " and waited for at " +
                   llvm::Twine(copy.done));
}

Result<bool> run_offload(PlanDraft& draft, size_t f, PassContext& context) {
  const int64_t limit = context.number("limit") > 0 ? context.number("limit") : std::numeric_limits<int64_t>::max();
  Graph& graph = draft.program.functions[f];
  std::vector<NodeId>& writers = draft.writers(f);
  const llvm::StringSet<> states = states_of(graph, context.text("states"));
  if (states.empty()) return false;
  if (context.number("whole") > 0)
    update_in_pieces(graph, writers, states, *draft.catalog, fine_cut(context.number("whole")));
  move_states_to_host(graph, writers, states);
  const RematProblem problem = graph_remat_problem(graph, writers, draft.device, *draft.catalog).problem;
  const Overlap widest = overlap_levels(problem, limit).back();
  if (widest.peak_bytes > limit)
    return budget_error("with copies as short as can be " + graph.name + " needs " + llvm::Twine(widest.peak_bytes) +
                        " bytes, the limit is " + llvm::Twine(limit));
  draft.functions[f].copies = issue_copies(graph, widest.intervals);
  draft.drop_layout(f);
  context.report("copies: " + llvm::Twine(widest.intervals.size()) + ", peak " + llvm::Twine(widest.peak_bytes) +
                 " bytes");
  report_copies(graph, draft.functions[f].copies, context);
  return true;
}

constexpr PassOption offload_options[] = {
    {"states", "all", "whose home is host memory: optimizer, gradient, parameter, buffer, or all of these"},
    {"whole", int64_t{0}, "most bytes of an update that is not cut into pieces; 0: none is"},
    {"limit", int64_t{0}, "most live bytes of a function, without states; 0: as many as copies gain from"}};

}  // namespace

constinit const PassInfo pass_offload{
    .name = "offload",
    .summary = "lets states live in host memory, with copies beside computing",
    .options = offload_options,
    .plan = run_offload,
};

}  // namespace plimsoll
