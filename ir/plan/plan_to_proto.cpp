#include "ir/plan/proto_convert.h"

#include "ir/plan/plan.pb.h"

namespace plimsoll {
namespace {

void set_tensor(const Tensor& tensor, proto::Tensor& to) {
  to.set_dtype(dtype_name(tensor.type().dtype).str());
  for (int64_t dim : tensor.type().shape) to.add_shape(dim);
  to.set_data(tensor.data(), static_cast<size_t>(tensor.type().bytes()));
}

void set_attr(const Attrs::Entry& entry, proto::Attr& to) {
  to.set_name(entry.first);
  struct Setter {
    proto::Attr& to;
    void operator()(int64_t value) { to.set_integer(value); }
    void operator()(double value) { to.set_real(value); }
    void operator()(const std::string& value) { to.set_text(value); }
    void operator()(const Ints& values) {
      to.mutable_integers();
      for (int64_t value : values) to.mutable_integers()->add_values(value);
    }
    void operator()(const Floats& values) {
      to.mutable_reals();
      for (double value : values) to.mutable_reals()->add_values(value);
    }
    void operator()(DType value) { to.set_dtype(dtype_name(value).str()); }
    void operator()(const TensorRef& value) { set_tensor(*value, *to.mutable_tensor()); }
  };
  std::visit(Setter{to}, entry.second);
}

void set_fit(const FitSummary& fit, proto::Fit& to) {
  to.set_chunks(fit.chunks);
  to.set_chunks_from(fit.chunks_from);
  to.set_rematerialised(fit.rematerialised);
}

void set_pipeline(const PipelineSummary& pipeline, proto::Pipeline& to) {
  to.set_micro_batches(pipeline.micro_batches);
  to.set_schedule(pipeline.schedule);
}

void set_mesh_search(const MeshSearchSummary& search, proto::MeshSearch& to) {
  to.set_cards(search.cards);
  to.set_considered(search.considered);
  to.set_over_memory(search.over_memory);
  to.set_over_time(search.over_time);
  to.set_bound_us(search.bound_us);
  for (const TriedMesh& tried : search.compiled) {
    proto::TriedMesh& entry = *to.add_compiled();
    if (tried.mesh.ranks() > 1) entry.set_mesh(to_string(tried.mesh));
    entry.set_zero(tried.zero);
    if (!tried.pipeline.schedule.empty()) set_pipeline(tried.pipeline, *entry.mutable_pipeline());
    entry.set_fits(tried.fits);
    entry.set_bytes(tried.bytes);
    entry.set_step_us(tried.step_us);
  }
}

void set_group(const ParameterGroup& group, proto::ParameterGroup& to) {
  to.set_pattern(group.pattern);
  if (group.rate) to.set_rate(*group.rate);
  if (group.weight_decay) to.set_weight_decay(*group.weight_decay);
  if (group.optimizer) to.set_optimizer(optimizer_name(*group.optimizer).str());
  to.set_rank_below(group.rank_below);
}

void set_index_input(const IndexInput& input, proto::IndexInput& to) {
  to.set_name(input.name);
  to.set_count(input.count);
  to.set_is_token(input.is_token);
  to.set_is_label(input.is_label);
  if (input.shift) to.set_shift(*input.shift);
  if (input.ignored) to.set_ignored(*input.ignored);
}

void set_training(const TrainingSummary& training, proto::Training& to) {
  to.set_loss(training.loss);
  to.set_optimizer(training.optimizer);
  for (const auto& [name, value] : training.hyperparameters) {
    proto::NamedReal& entry = *to.add_hyperparameters();
    entry.set_name(name);
    entry.set_value(value);
  }
  to.set_accumulate(training.accumulate);
  to.set_clip_grad_norm(training.clip_grad_norm);
  to.set_batch(training.batch);
  to.set_precision(training.precision);
  to.set_asked_loss(training.asked_loss);
  for (const ParameterGroup& group : training.groups) set_group(group, *to.add_groups());
  for (const IndexInput& input : training.index_inputs) set_index_input(input, *to.add_index_inputs());
}

void set_evaluation(const EvaluationSummary& evaluation, proto::Evaluation& to) {
  to.set_batch(evaluation.batch);
  for (const std::string& metric : evaluation.metrics) to.add_metrics(metric);
  to.set_of_mean(evaluation.of_mean);
}

void set_arena(const Arena& arena, proto::Arena& to) {
  to.set_space(space_name(arena.space).str());
  to.set_bytes(arena.bytes);
  to.set_persistent_bytes(arena.persistent_bytes);
  to.set_peak_live_bytes(arena.peak_live_bytes);
  to.set_budget_bytes(arena.budget_bytes);
  to.set_page_bytes(arena.page_bytes);
  for (const PageWindow& window : arena.windows) {
    proto::PageWindow& shown = *to.add_windows();
    shown.set_offset(window.offset);
    shown.mutable_pages()->Add(window.pages.begin(), window.pages.end());
  }
}

uint32_t stored_index(int32_t index) { return static_cast<uint32_t>(index + 1); }

void set_slot(const Slot& slot, proto::Slot& to) {
  to.set_name(slot.name);
  to.set_dtype(dtype_name(slot.type.dtype).str());
  for (int64_t dim : slot.type.shape) to.add_shape(dim);
  to.set_space(space_name(slot.space).str());
  to.set_offset(slot.offset);
  to.set_bytes(slot.bytes);
  to.set_function(stored_index(slot.function));
  to.set_first(slot.first);
  to.set_last(slot.last);
  to.set_category(category_name(slot.category).str());
  to.set_view_of(stored_index(slot.view_of));
  to.set_in_place_of(stored_index(slot.in_place_of));
  to.set_part_of(stored_index(slot.part_of));
  to.set_origin(stored_index(slot.origin));
  to.set_reason(slot.reason);
}

void set_instruction(const Instruction& instruction, proto::Instruction& to) {
  to.set_op(instruction.op);
  for (const Attrs::Entry& entry : instruction.attrs.entries()) set_attr(entry, *to.add_attrs());
  for (SlotId operand : instruction.operands) to.add_operands(stored_index(operand));
  for (SlotId result : instruction.results) to.add_results(stored_index(result));
  to.set_workspace(stored_index(instruction.workspace));
  to.set_kernel(instruction.kernel);
  to.set_phase(phase_name(instruction.phase).str());
  to.set_origin(stored_index(instruction.origin));
  to.set_flops(instruction.flops);
  to.set_bytes_moved(instruction.bytes_moved);
  to.set_predicted_us(instruction.predicted_us);
  to.set_done(stored_index(instruction.done));
  to.set_joined(instruction.joined);
  to.set_reason(instruction.reason);
}

template <typename Named>
void set_named_slot(const Named& named, proto::NamedSlot& to) {
  to.set_name(named.name);
  to.set_slot(stored_index(named.slot));
}

void set_function(const PlanFunction& function, proto::Function& to) {
  to.set_name(function.name);
  for (const Instruction& instruction : function.instructions) set_instruction(instruction, *to.add_instructions());
  for (const PlanInput& input : function.inputs) {
    proto::NamedSlot& entry = *to.add_inputs();
    set_named_slot(input, entry);
    entry.set_staging(stored_index(input.staging));
    entry.set_whole(input.whole);
  }
  for (const PlanOutput& output : function.outputs) {
    proto::NamedSlot& entry = *to.add_outputs();
    set_named_slot(output, entry);
    if (output.use != OutputUse::Whole) entry.set_use(use_name(output.use).str());
  }
  for (const PlanUpdate& update : function.updates) {
    proto::Update& entry = *to.add_updates();
    entry.set_state(stored_index(update.state));
    entry.set_value(stored_index(update.value));
  }
  to.set_transient_bytes(function.transient_bytes);
  to.set_peak_live_bytes(function.peak_live_bytes);
  to.set_peak_instruction(function.peak_instruction);
}

void set_state(const PlanState& state, proto::State& to) {
  constexpr llvm::StringLiteral kinds[] = {"weights", "fill", "copy", "transpose"};
  to.set_slot(stored_index(state.slot));
  to.set_role(role_name(state.role).str());
  to.set_trained(state.trained);
  to.set_init(kinds[static_cast<size_t>(state.init.kind)].str());
  to.set_fill(state.init.fill);
  to.set_source(state.init.source);
  to.set_channels_last(state.channels_last);
  for (const Division& each : state.divisions) {
    proto::Division& division = *to.add_divisions();
    division.set_axis(axis_name(each.axis).str());
    division.mutable_whole()->Add(each.whole.begin(), each.whole.end());
    division.set_dim(each.cut.dim);
    division.mutable_blocks()->Add(each.cut.blocks.begin(), each.cut.blocks.end());
    division.mutable_parts()->Add(each.cut.parts.begin(), each.cut.parts.end());
  }
}

void set_gradient(const PlanGradient& gradient, proto::Gradient& to) {
  to.set_parameter(gradient.parameter);
  to.set_function(gradient.function);
  to.set_instruction(gradient.instruction);
  to.set_slot(stored_index(gradient.slot));
}

void set_origin(const Origin& origin, proto::Origin& to) {
  to.set_node(origin.node);
  to.set_op(origin.op);
  to.set_module(origin.module);
  to.set_source(origin.source);
}

void set_decision(const Decision& decision, proto::Decision& to) {
  to.set_pass(decision.pass);
  to.set_subject(decision.subject);
  to.set_choice(decision.choice);
  to.set_reason(decision.reason);
}

}  // namespace

void plan_to_proto(const Plan& plan, proto::Plan& to) {
  to.set_model(plan.model);
  to.set_device(to_json(plan.device));
  set_training(plan.training, *to.mutable_training());
  if (plan.evaluation.batch > 0) set_evaluation(plan.evaluation, *to.mutable_evaluation());
  if (!(plan.host == HostSummary())) {
    to.mutable_host()->set_budget_bytes(plan.host.budget_bytes);
    to.mutable_host()->set_cache_bytes(plan.host.cache_bytes);
    to.mutable_host()->set_snapshot_bytes(plan.host.snapshot_bytes);
    to.mutable_host()->set_memory_bytes(plan.host.memory_bytes);
    to.mutable_host()->set_ranks_per_host(plan.host.ranks_per_host);
  }
  set_fit(plan.fit, *to.mutable_fit());
  if (plan.mesh.ranks() > 1) to.set_mesh(to_string(plan.mesh));
  for (const RankKind& kind : plan.kinds) {
    proto::RankKind& entry = *to.add_kinds();
    entry.set_device(to_json(kind.device));
    entry.set_budget_bytes(kind.budget_bytes);
    entry.mutable_ranks()->Add(kind.ranks.begin(), kind.ranks.end());
  }
  if (plan.mesh_search.cards > 0) set_mesh_search(plan.mesh_search, *to.mutable_mesh_search());
  if (!plan.pipeline.schedule.empty()) set_pipeline(plan.pipeline, *to.mutable_pipeline());
  to.set_stage(plan.stage);
  for (const Plan& stage : plan.later_stages) plan_to_proto(stage, *to.add_later_stages());
  for (const auto& [name, value] : plan.dims) {
    proto::NamedInteger& dim = *to.add_dims();
    dim.set_name(name);
    dim.set_value(value);
  }
  for (const Arena& arena : plan.arenas) set_arena(arena, *to.add_arenas());
  for (const Slot& slot : plan.slots) set_slot(slot, *to.add_slots());
  for (const PlanFunction& function : plan.functions) set_function(function, *to.add_functions());
  for (const PlanState& state : plan.states) set_state(state, *to.add_states());
  for (const PlanConstant& constant : plan.constants) {
    proto::Constant& entry = *to.add_constants();
    entry.set_slot(stored_index(constant.slot));
    set_tensor(*constant.value, *entry.mutable_value());
  }
  for (const PlanGradient& gradient : plan.gradients) set_gradient(gradient, *to.add_gradients());
  for (const Origin& origin : plan.origins) set_origin(origin, *to.add_origins());
  for (const Decision& decision : plan.decisions) set_decision(decision, *to.add_decisions());
  to.set_predicted_step_us(plan.predicted_step_us);
}

}  // namespace plimsoll
