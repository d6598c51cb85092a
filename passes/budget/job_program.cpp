#include "passes/budget/job_program.h"

#include "passes/analysis/aliasing.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/program_size.h"
#include "passes/budget/split_search.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr double split_effort = 0.1;  // search work of a program in chunks, as a share of the whole batch's
constexpr llvm::StringLiteral joined_ops[] = {"linear_gelu", "layer_norm_grad_dropout", "rms_norm_grad_dropout"};

}  // namespace

BudgetFitter& JobProgram::plans() const {
  std::call_once(is_made_,
                 [&] { plans_ = std::make_unique<BudgetFitter>(*input, options, *laid_out, highest_budget); });
  return *plans_;
}

const Plan& JobProgram::first_plan() const { return is_within_budget(laid_out->first()) ? laid_out->first() : plain(); }

bool casts_parameters(const Program& program) {
  return llvm::any_of(program.functions, [](const Graph& graph) {
    return llvm::any_of(graph.order(), [&](NodeId id) {
      const Node& node = graph.node(id);
      if (node.op->name != "cast" || !is_16_bit_float(graph.type(node.results[0]).dtype)) return false;
      const State* state = graph.find_state(root_of(graph, node.operands[0]));
      return state && state->trained;
    });
  });
}

bool computes(const Program& program, llvm::StringRef op) {
  return llvm::any_of(program.functions, [&](const Graph& graph) {
    return llvm::any_of(graph.order(), [&](NodeId id) { return graph.node(id).op->name == op; });
  });
}

Result<std::unique_ptr<JobProgram>> JobPrograms::program(const SplitChoice& choice, PassManager passes, double effort,
                                                         CallKeys lean, int64_t stored_bytes) const {
  return make(choice, std::move(passes), effort, std::move(lean), stored_bytes, {});
}

Result<std::unique_ptr<JobProgram>> JobPrograms::program_in(PlainForm form) const {
  return make({}, forward_.passes.sparing(), 1, {}, 0, form);
}

Result<std::unique_ptr<JobProgram>> JobPrograms::make(const SplitChoice& choice, PassManager passes, double effort,
                                                      CallKeys lean, int64_t stored_bytes, PlainForm form) const {
  auto made = std::make_unique<JobProgram>();
  TrainingRequest request = request_;
  if (stored_bytes > 0) request.quantize.turned_bytes = stored_bytes;
  made->lean_calls = lean.size();
  if (!lean.empty()) made->catalog = std::make_unique<LeanCatalog>(catalog_, std::move(lean));
  const KernelCatalog& catalog = made->catalog ? static_cast<const KernelCatalog&>(*made->catalog) : catalog_;
  const bool is_known =
      request_.prepared && choice.chunks == 1 && !made->catalog && stored_bytes == 0 && form.is_usual();
  Result<Derived> derived = is_known
                                ? Result<Derived>(request_.prepared->whole)
                                : derive_program(forward_, choice, request, device_, catalog, std::move(passes), form);
  if (!derived) return derived.takeError();
  const auto is_computed = [&](llvm::StringRef op) { return computes(derived->draft.program, op); };
  if (form.joins_launches && llvm::none_of(joined_ops, is_computed)) return nullptr;
  derived->draft.catalog = &catalog;  // that of what is known may be gone
  if (choice.chunks > 1) made->from = forward_.graph.value(choice.from).name;
  made->chunks = choice.chunks;
  made->derived = std::make_shared<Derived>(std::move(*derived));
  PlanDraft& draft = made->derived->draft;
  draft.device = with_reserves(device_, draft.program, catalog, request_.mesh);
  made->options.recompute = request_.recompute;
  made->options.offload = request_.offload;
  made->options.search_seconds *= request_.effort * effort;
  made->options.is_one_of_many = request_.is_one_of_many;
  made->options.is_short = request_.is_short && tries_less_of(draft.program);
  made->options.explains = !request_.is_short;
  made->is_long = choice.chunks > 1 && nodes_of(draft.program) > max_nodes_searched_whole;
  if (made->is_long) {
    made->options.min_share = long_min_share;
    made->options.offload = false;
  }
  made->options.training = forward_.summary;
  made->input.emplace(LoweringInput{
      draft, request_.budget_bytes,
      budget_of_host_arena(request_, draft.program, draft.device, held_for_snapshot(request_, &draft.program))});
  made->input->placement_seconds *= request_.effort * effort;
  // Those that take the place of the whole batch with its usual kernels within less budget must not be faster than it.
  if (choice.chunks > 1 || made->catalog) made->input->parts = Parts::Copied;
  if (Status s = request_.frontier ? lay_out(*made) : lay_out_quickly(*made)) return s;
  return made;
}

Status JobPrograms::lay_out(JobProgram& program) const {
  Result<Plan> plain = plain_plan(*program.input, program.options);
  if (!plain) return plain.takeError();
  program.highest_budget = highest_budget(*plain);
  program.laid_out = std::make_shared<const PlainPlan>(std::move(*plain));
  return Status::success();
}

// Where even the quick layouts fit, one of the forms will do as it is, and the layouts of the others are not searched.
// Nor are those of programs in chunks that bounds show to be not worth it. What is lowered quickly is lowered without
// an error.
Status JobPrograms::lay_out_quickly(JobProgram& program) const {
  Result<QuickPlan> quick = quick_plain_plan(*program.input, program.options);
  if (!quick) return quick.takeError();
  program.highest_budget = highest_budget(quick->plan);
  if (quick->is_final)
    program.laid_out = std::make_shared<const PlainPlan>(std::move(quick->plan));
  else
    program.laid_out = std::make_shared<const PlainPlan>(
        std::move(quick->plan), [&program] { return llvm::cantFail(plain_plan(*program.input, program.options)); });
  return Status::success();
}

bool JobPrograms::tries_less_of(const Program& program) const {
  return tries_many() || nodes_of(program) > max_nodes_searched_whole;
}

Result<std::unique_ptr<JobProgram>> JobPrograms::split_program(const SplitChoice& choice) const {
  return program(choice, forward_.passes.sparing(), split_effort, {});
}

// Without a search nothing is different, so the plain plan is the same.
std::unique_ptr<JobProgram> JobPrograms::short_program(const JobProgram& usual, MayOffload offload) const {
  auto made = std::make_unique<JobProgram>();
  made->from = usual.from;
  made->chunks = usual.chunks;
  made->lean_calls = usual.lean_calls;
  made->derived = usual.derived;
  made->options = usual.options;
  made->options.search_seconds *= short_effort;
  made->options.offload &= offload == MayOffload::AsUsual;
  made->options.is_short = tries_less_of(usual.derived->draft.program);
  made->input.emplace(*usual.input);
  made->input->placement_seconds *= short_effort;
  made->highest_budget = usual.highest_budget;
  made->laid_out = usual.laid_out;
  return made;
}

int64_t JobPrograms::highest_budget(const Plan& plan) const {
  const int64_t budget = plan.arenas.front().budget_bytes;
  return request_.frontier ? std::max(budget, plan.promised_bytes()) : budget;
}

}  // namespace plimsoll
