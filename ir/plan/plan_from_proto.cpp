#include "ir/plan/proto_convert.h"

#include "ir/plan/plan.pb.h"

namespace plimsoll {
namespace {

// Collects the first failure; every reader goes on with a harmless value after it.
class PlanReader {
 public:
  Result<Plan> read(const proto::Plan& from);

 private:
  void refuse(const llvm::Twine& what) {
    if (failure_.empty()) failure_ = what.str();
  }

  // The enumerator whose name is `name`.
  template <typename Enum>
  Enum read_enum(llvm::StringRef what, llvm::StringRef name, int count, llvm::StringRef (*name_of)(Enum)) {
    for (int i = 0; i < count; ++i)
      if (name_of(static_cast<Enum>(i)) == name) return static_cast<Enum>(i);
    refuse("no " + what + " is called \"" + name + "\"");
    return {};
  }

  DType read_dtype(llvm::StringRef name) { return read_enum("type", name, dtype_count, dtype_name); }
  MemorySpace read_space(llvm::StringRef name) { return read_enum("memory space", name, 2, space_name); }
  OutputUse read_use(llvm::StringRef name) {
    return name.empty() ? OutputUse::Whole : read_enum("use of an output", name, 4, use_name);
  }

  // Stored indices are one up; those beyond int32 become -2, which no check lets pass.
  static int32_t read_index(uint32_t stored) {
    return stored > uint32_t{INT32_MAX} ? -2 : static_cast<int32_t>(stored) - 1;
  }

  Tensor read_tensor(const proto::Tensor& from);
  Attr read_attr(const proto::Attr& from);
  DeviceDescription read_device(llvm::StringRef from);
  ParameterGroup read_group(const proto::ParameterGroup& from);
  static IndexInput read_index_input(const proto::IndexInput& from);
  TrainingSummary read_training(const proto::Training& from);
  Mesh read_mesh(llvm::StringRef from);
  static PipelineSummary read_pipeline(const proto::Pipeline& from) { return {from.micro_batches(), from.schedule()}; }
  MeshSearchSummary read_mesh_search(const proto::MeshSearch& from);
  Arena read_arena(const proto::Arena& from);
  Slot read_slot(const proto::Slot& from);
  Instruction read_instruction(const proto::Instruction& from);
  PlanFunction read_function(const proto::Function& from);
  PlanState read_state(const proto::State& from);

  std::string failure_;
};

Tensor PlanReader::read_tensor(const proto::Tensor& from) {
  Type type(read_dtype(from.dtype()), {});
  type.shape.assign(from.shape().begin(), from.shape().end());
  if (!is_countable(type.shape) || type.bytes() != static_cast<int64_t>(from.data().size())) {
    refuse("a constant has " + llvm::Twine(from.data().size()) + " bytes, its type another number");
    return {};
  }
  return Tensor(type, from.data().data());
}

Attr PlanReader::read_attr(const proto::Attr& from) {
  switch (from.value_case()) {
    case proto::Attr::kInteger: return from.integer();
    case proto::Attr::kReal: return from.real();
    case proto::Attr::kText: return from.text();
    case proto::Attr::kIntegers: return Ints(from.integers().values().begin(), from.integers().values().end());
    case proto::Attr::kReals: return Floats(from.reals().values().begin(), from.reals().values().end());
    case proto::Attr::kDtype: return read_dtype(from.dtype());
    case proto::Attr::kTensor: return std::make_shared<const Tensor>(read_tensor(from.tensor()));
    case proto::Attr::VALUE_NOT_SET: break;
  }
  refuse("attribute " + from.name() + " has no value this program knows");
  return int64_t{0};
}

DeviceDescription PlanReader::read_device(llvm::StringRef from) {
  Result<DeviceDescription> device = device_from_json(from);
  if (device) return *device;
  refuse(take_diag(device.takeError()).text());
  return {};
}

// One rank is the empty text.
Mesh PlanReader::read_mesh(llvm::StringRef from) {
  if (from.empty()) return {};
  Result<Mesh> mesh = parse_mesh(from);
  if (mesh) return *mesh;
  refuse(take_diag(mesh.takeError()).text());
  return {};
}

MeshSearchSummary PlanReader::read_mesh_search(const proto::MeshSearch& from) {
  MeshSearchSummary search{from.cards(), from.considered(), from.over_memory(), from.over_time(), from.bound_us(), {}};
  for (const proto::TriedMesh& entry : from.compiled()) {
    TriedMesh tried{read_mesh(entry.mesh()), entry.zero(), {}, entry.fits(), entry.bytes(), entry.step_us()};
    if (entry.has_pipeline()) tried.pipeline = read_pipeline(entry.pipeline());
    search.compiled.push_back(std::move(tried));
  }
  return search;
}

ParameterGroup PlanReader::read_group(const proto::ParameterGroup& from) {
  ParameterGroup group;
  group.pattern = from.pattern();
  if (from.has_rate()) group.rate = from.rate();
  if (from.has_weight_decay()) group.weight_decay = from.weight_decay();
  if (from.has_optimizer())
    group.optimizer = read_enum("optimizer", from.optimizer(), std::size(optimizer_names), optimizer_name);
  group.rank_below = from.rank_below();
  return group;
}

IndexInput PlanReader::read_index_input(const proto::IndexInput& from) {
  IndexInput input{from.name(), from.count(), from.is_token(), from.is_label(), std::nullopt};
  if (from.has_shift()) input.shift = from.shift();
  if (from.has_ignored()) input.ignored = from.ignored();
  return input;
}

TrainingSummary PlanReader::read_training(const proto::Training& from) {
  TrainingSummary training;
  training.loss = from.loss();
  training.optimizer = from.optimizer();
  for (const proto::NamedReal& entry : from.hyperparameters())
    training.hyperparameters.push_back({entry.name(), entry.value()});
  training.accumulate = from.accumulate();
  training.clip_grad_norm = from.clip_grad_norm();
  training.batch = from.batch();
  training.precision = from.precision();
  training.asked_loss = from.asked_loss();
  for (const proto::ParameterGroup& group : from.groups()) training.groups.push_back(read_group(group));
  for (const proto::IndexInput& input : from.index_inputs()) training.index_inputs.push_back(read_index_input(input));
  return training;
}

Arena PlanReader::read_arena(const proto::Arena& from) {
  Arena arena{read_space(from.space()), from.bytes(),        from.persistent_bytes(),
              from.peak_live_bytes(),   from.budget_bytes(), from.page_bytes()};
  for (const proto::PageWindow& window : from.windows())
    arena.windows.push_back({window.offset(), {window.pages().begin(), window.pages().end()}});
  return arena;
}

Slot PlanReader::read_slot(const proto::Slot& from) {
  Slot slot;
  slot.name = from.name();
  slot.type = Type(read_dtype(from.dtype()), llvm::ArrayRef<int64_t>(from.shape().data(), from.shape().size()));
  slot.space = read_space(from.space());
  slot.offset = from.offset();
  slot.bytes = from.bytes();
  slot.function = read_index(from.function());
  slot.first = from.first();
  slot.last = from.last();
  slot.category = read_enum("category", from.category(), category_count, category_name);
  slot.view_of = read_index(from.view_of());
  slot.in_place_of = read_index(from.in_place_of());
  slot.part_of = read_index(from.part_of());
  slot.origin = read_index(from.origin());
  slot.reason = from.reason();
  return slot;
}

Instruction PlanReader::read_instruction(const proto::Instruction& from) {
  Instruction instruction;
  instruction.op = from.op();
  for (const proto::Attr& attr : from.attrs()) instruction.attrs.set(attr.name(), read_attr(attr));
  for (uint32_t operand : from.operands()) instruction.operands.push_back(read_index(operand));
  for (uint32_t result : from.results()) instruction.results.push_back(read_index(result));
  instruction.workspace = read_index(from.workspace());
  instruction.kernel = from.kernel();
  instruction.phase = read_enum("phase", from.phase(), 3, phase_name);
  instruction.origin = read_index(from.origin());
  instruction.flops = from.flops();
  instruction.bytes_moved = from.bytes_moved();
  instruction.predicted_us = from.predicted_us();
  instruction.done = read_index(from.done());
  instruction.joined = from.joined();
  instruction.reason = from.reason();
  return instruction;
}

PlanFunction PlanReader::read_function(const proto::Function& from) {
  PlanFunction function;
  function.name = from.name();
  function.instructions.reserve(from.instructions().size());
  for (const proto::Instruction& entry : from.instructions()) function.instructions.push_back(read_instruction(entry));
  for (const proto::NamedSlot& entry : from.inputs())
    function.inputs.push_back({entry.name(), read_index(entry.slot()), read_index(entry.staging()), entry.whole()});
  for (const proto::NamedSlot& entry : from.outputs())
    function.outputs.push_back({entry.name(), read_index(entry.slot()), read_use(entry.use())});
  for (const proto::Update& entry : from.updates())
    function.updates.push_back({read_index(entry.state()), read_index(entry.value())});
  function.transient_bytes = from.transient_bytes();
  function.peak_live_bytes = from.peak_live_bytes();
  function.peak_instruction = from.peak_instruction();
  return function;
}

PlanState PlanReader::read_state(const proto::State& from) {
  PlanState state;
  state.slot = read_index(from.slot());
  if (auto role = parse_role(from.role()))
    state.role = *role;
  else
    refuse("no state role is called \"" + from.role() + "\"");
  state.trained = from.trained();
  if (from.init() == "weights")
    state.init.kind = StateInit::Kind::Weights;
  else if (from.init() == "fill")
    state.init.kind = StateInit::Kind::Fill;
  else if (from.init() == "copy")
    state.init.kind = StateInit::Kind::CopyOf;
  else if (from.init() == "transpose")
    state.init.kind = StateInit::Kind::TransposeOf;
  else
    refuse("no state starts from \"" + from.init() + "\"");
  state.init.fill = from.fill();
  state.init.source = from.source();
  state.channels_last = from.channels_last();
  for (const proto::Division& each : from.divisions()) {
    Division division;
    if (auto axis = parse_axis(each.axis()))
      division.axis = *axis;
    else
      refuse("no axis of a mesh is called \"" + each.axis() + "\"");
    division.whole.assign(each.whole().begin(), each.whole().end());
    division.cut.dim = each.dim();
    division.cut.blocks.assign(each.blocks().begin(), each.blocks().end());
    division.cut.parts.assign(each.parts().begin(), each.parts().end());
    state.divisions.push_back(std::move(division));
  }
  return state;
}

Result<Plan> PlanReader::read(const proto::Plan& from) {
  Plan plan;
  plan.model = from.model();
  plan.device = read_device(from.device());
  plan.training = read_training(from.training());
  plan.evaluation.batch = from.evaluation().batch();
  for (const std::string& metric : from.evaluation().metrics()) plan.evaluation.metrics.push_back(metric);
  plan.evaluation.of_mean = from.evaluation().of_mean();
  plan.host = {from.host().budget_bytes(), from.host().cache_bytes(), from.host().snapshot_bytes(),
               from.host().memory_bytes(), from.host().ranks_per_host()};
  plan.mesh = read_mesh(from.mesh());
  for (const proto::RankKind& kind : from.kinds())
    plan.kinds.push_back({read_device(kind.device()), kind.budget_bytes(), {kind.ranks().begin(), kind.ranks().end()}});
  if (from.has_mesh_search()) plan.mesh_search = read_mesh_search(from.mesh_search());
  if (from.has_pipeline()) plan.pipeline = read_pipeline(from.pipeline());
  plan.stage = from.stage();
  for (const proto::Plan& stage : from.later_stages()) {
    Result<Plan> read = plan_from_proto(stage);
    if (!read) return in_context("stage " + llvm::Twine(stage.stage()), read.takeError());
    plan.later_stages.push_back(std::move(*read));
  }
  plan.fit = {from.fit().chunks(), from.fit().chunks_from(), from.fit().rematerialised()};
  for (const proto::NamedInteger& dim : from.dims()) plan.dims.push_back({dim.name(), dim.value()});
  for (const proto::Arena& entry : from.arenas()) plan.arenas.push_back(read_arena(entry));
  plan.slots.reserve(from.slots().size());
  for (const proto::Slot& entry : from.slots()) plan.slots.push_back(read_slot(entry));
  for (const proto::Function& entry : from.functions()) plan.functions.push_back(read_function(entry));
  for (const proto::State& entry : from.states()) plan.states.push_back(read_state(entry));
  for (const proto::Constant& entry : from.constants())
    plan.constants.push_back({read_index(entry.slot()), std::make_shared<const Tensor>(read_tensor(entry.value()))});
  for (const proto::Gradient& entry : from.gradients())
    plan.gradients.push_back({entry.parameter(), entry.function(), entry.instruction(), read_index(entry.slot())});
  for (const proto::Origin& entry : from.origins())
    plan.origins.push_back({entry.node(), entry.op(), entry.module(), entry.source()});
  for (const proto::Decision& entry : from.decisions())
    plan.decisions.push_back({entry.pass(), entry.subject(), entry.choice(), entry.reason()});
  plan.predicted_step_us = from.predicted_step_us();
  if (!failure_.empty()) return model_error("plan: " + failure_);
  return plan;
}

}  // namespace

Result<Plan> plan_from_proto(const proto::Plan& from) { return PlanReader().read(from); }

}  // namespace plimsoll
