#include "frontend/inspect/print.h"
#include "ir/plan/summary.h"

#include "llvm/Support/JSON.h"

// Writes `inspect --json`. Scripts depend on its names and units, which docs/interfaces.md documents.

namespace plimsoll {
namespace {

namespace json = llvm::json;

constexpr size_t max_spans = 256;  // of memory over time, per function

void write_categories(json::OStream& to, const CategoryBytes& bytes) {
  for (int i = 0; i < category_count; ++i) to.attribute(category_name(static_cast<Category>(i)), bytes.bytes[i]);
}

// Writes spans of neighbouring instructions, each with the bytes of its fullest instruction.
void write_over_time(json::OStream& to, const Plan& plan, const SpaceSummary& summary) {
  for (size_t f = 0; f < summary.live.size(); ++f) {
    const auto& live = summary.live[f];
    size_t spans = std::min(live.size(), max_spans);
    for (size_t s = 0; s < spans; ++s) {
      size_t first = s * live.size() / spans, end = (s + 1) * live.size() / spans;
      const CategoryBytes* fullest = &live[first];
      for (size_t i = first; i < end; ++i)
        if (live[i].total() > fullest->total()) fullest = &live[i];
      to.object([&] {
        to.attribute("function", plan.functions[f].name);
        to.attribute("first", static_cast<int64_t>(first));
        to.attribute("last", static_cast<int64_t>(end) - 1);
        to.attribute("live_bytes", fullest->total());
        write_categories(to, *fullest);
      });
    }
  }
}

void write_peak(json::OStream& to, const Plan& plan, const SpaceSummary& summary) {
  if (plan.functions.empty()) return;
  to.attributeObject("peak", [&] {
    to.attribute("function", plan.functions[summary.peak_function].name);
    to.attribute("instruction", summary.peak_instruction);
  });
}

void write_largest_instruction(json::OStream& to, const Plan& plan) {
  if (plan.functions.empty()) return;
  const LargestInstruction largest = largest_instruction(plan);
  to.attributeObject("largest_instruction", [&] {
    to.attribute("function", plan.functions[largest.function].name);
    to.attribute("instruction", largest.instruction);
    to.attribute("bytes", largest.bytes);
    to.attribute("least_bytes", largest.least_bytes);
  });
}

void write_space(json::OStream& to, const Plan& plan, const Arena& arena) {
  SpaceSummary summary = summarize_space(plan, arena.space);
  bool on_device = arena.space == MemorySpace::Device;
  to.attribute("budget_bytes", arena.budget_bytes);
  to.attribute("promised_bytes", on_device ? plan.promised_bytes() : arena.bytes);
  to.attribute("arena_bytes", arena.bytes);
  to.attribute("persistent_bytes", arena.persistent_bytes);
  to.attribute("peak_live_bytes", arena.peak_live_bytes);
  to.attribute("packing_waste", summary.packing_waste);
  if (!arena.windows.empty()) {
    to.attribute("page_bytes", arena.page_bytes);
    to.attributeArray("windows", [&] {
      for (const PageWindow& window : arena.windows)
        to.object([&] {
          to.attribute("offset", window.offset);
          to.attributeArray("pages", [&] {
            for (int64_t page : window.pages) to.value(page);
          });
        });
    });
  }
  write_peak(to, plan, summary);
  if (on_device) write_largest_instruction(to, plan);
  to.attributeArray("reserves", [&] {
    if (!on_device) return;
    for (const Reserve& reserve : plan.device.reserves)
      to.object([&] {
        to.attribute("name", reserve.name);
        to.attribute("bytes", reserve.bytes);
      });
  });
  to.attributeObject("by_category", [&] {
    to.attributeObject("at_peak", [&] { write_categories(to, summary.at_peak); });
    to.attributeObject("largest", [&] { write_categories(to, summary.largest); });
    to.attributeArray("over_time", [&] { write_over_time(to, plan, summary); });
  });
}

void write_memory(json::OStream& to, const Plan& plan) {
  for (MemorySpace space : {MemorySpace::Device, MemorySpace::Host}) {
    Arena arena;
    arena.space = space;
    for (const Arena& each : plan.arenas)
      if (each.space == space) arena = each;
    to.attributeObject(space_name(space), [&] {
      write_space(to, plan, arena);
      if (space == MemorySpace::Device) return;
      to.attribute("loading_bytes", plan.loading_bytes());
      to.attribute("cache_bytes", plan.host.cache_bytes);
      to.attribute("snapshot_bytes", plan.host.snapshot_bytes);
      to.attribute("held_bytes", plan.host_bytes());
      to.attribute("host_memory_bytes", plan.host.memory_bytes);
      to.attributeArray("hosts", [&] {
        for (const HostNeed& host : needs_of_hosts(plan))
          to.value(json::Object{{"first_rank", host.first_rank}, {"ranks", host.ranks}, {"held_bytes", host.bytes}});
      });
      to.attribute("held_budget_bytes", plan.host.budget_bytes);
    });
  }
}

void write_time(json::OStream& to, const Plan& plan, const TimeSummary& time) {
  to.attribute("predicted_step_us", time.step_us);
  to.attribute("roofline_us", time.roofline_us);
  to.attribute("model_flops", time.model_flops);
  to.attribute("model_flops_utilisation", model_flops_utilisation(plan));
  to.attribute("recompute_us", time.recompute_us);
  to.attribute("to_host_us", time.to_host_us);
  to.attribute("to_device_us", time.to_device_us);
  to.attribute("ranks_us", time.ranks_us);
  to.attribute("exposed_us", time.exposed_us);
  to.attribute("stalled_us", time.stalled_us);
  to.attribute("awaited_us", time.awaited_us);
  for (Phase phase : {Phase::Forward, Phase::Backward, Phase::Update})
    to.attribute((phase_name(phase) + "_us").str(), time.by_phase_us[static_cast<size_t>(phase)]);
}

void write_origin(json::OStream& to, const Plan& plan, int32_t id) {
  if (id < 0) return;
  const Origin& origin = plan.origins[id];
  to.attributeObject("origin", [&] {
    to.attribute("node", origin.node);
    to.attribute("op", origin.op);
    if (!origin.module.empty()) to.attribute("module", origin.module);
    if (!origin.source.empty()) to.attribute("source", origin.source);
  });
}

void write_slot(json::OStream& to, const Plan& plan, const Slot& slot) {
  to.attribute("name", slot.name);
  to.attribute("type", to_string(slot.type));
  to.attribute("space", space_name(slot.space));
  to.attribute("offset", slot.offset);
  to.attribute("bytes", slot.bytes);
  to.attribute("category", category_name(slot.category));
  if (slot.function < 0) {
    to.attribute("persistent", true);
  } else {
    to.attribute("function", plan.functions[slot.function].name);
    to.attribute("first", slot.first);
    to.attribute("last", slot.last);
  }
  if (slot.view_of >= 0) to.attribute("view_of", slot.view_of);
  if (slot.in_place_of >= 0) to.attribute("in_place_of", slot.in_place_of);
  if (slot.part_of >= 0) to.attribute("part_of", slot.part_of);
  write_origin(to, plan, slot.origin);
  if (!slot.reason.empty()) to.attribute("reason", slot.reason);
}

void write_slot_list(json::OStream& to, llvm::StringRef name, llvm::ArrayRef<SlotId> slots) {
  to.attributeArray(name, [&] {
    for (SlotId slot : slots) slot < 0 ? to.value(nullptr) : to.value(slot);
  });
}

void write_instruction(json::OStream& to, const Plan& plan, const PlanFunction& function, size_t index) {
  const Instruction& instruction = function.instructions[index];
  to.attribute("function", function.name);
  to.attribute("index", static_cast<int64_t>(index));
  to.attribute("op", instruction.op);
  to.attribute("kernel", instruction.kernel);
  to.attribute("phase", phase_name(instruction.phase));
  write_slot_list(to, "operands", instruction.operands);
  write_slot_list(to, "results", instruction.results);
  if (instruction.workspace >= 0) to.attribute("workspace", instruction.workspace);
  to.attribute("flops", instruction.flops);
  to.attribute("bytes_moved", instruction.bytes_moved);
  to.attribute("predicted_us", instruction.predicted_us);
  to.attribute("roofline_us", roofline_us(plan, instruction));
  if (instruction.done >= 0) to.attribute("done", instruction.done);
  write_origin(to, plan, instruction.origin);
  if (!instruction.reason.empty()) to.attribute("reason", instruction.reason);
}

template <typename T>
void write_objects(json::OStream& to, llvm::StringRef name, llvm::ArrayRef<T> objects,
                   void (*write)(json::OStream& to, const T& object)) {
  to.attributeArray(name, [&] {
    for (const T& object : objects) to.object([&] { write(to, object); });
  });
}

void write_group(json::OStream& to, const ParameterGroup& group) {
  if (group.rank_below > 0)
    to.attribute("rank_below", group.rank_below);
  else
    to.attribute("pattern", group.pattern);
  if (group.rate) to.attribute("rate", *group.rate);
  if (group.weight_decay) to.attribute("weight_decay", *group.weight_decay);
  if (group.optimizer) to.attribute("optimizer", optimizer_name(*group.optimizer));
}

void write_index_input(json::OStream& to, const IndexInput& input) {
  to.attribute("name", input.name);
  to.attribute("count", input.count);
  to.attribute("is_token", input.is_token);
  to.attribute("is_label", input.is_label);
  if (input.shift) to.attribute("shift", *input.shift);
  if (input.ignored) to.attribute("ignored", *input.ignored);
}

void write_training(json::OStream& to, const Plan& plan) {
  const TrainingSummary& training = plan.training;
  to.attribute("loss", training.loss);
  to.attribute("optimizer", training.optimizer);
  to.attributeObject("hyperparameters", [&] {
    for (const auto& [name, value] : training.hyperparameters) to.attribute(name, value);
  });
  write_objects<ParameterGroup>(to, "groups", training.groups, write_group);
  write_objects<IndexInput>(to, "index_inputs", training.index_inputs, write_index_input);
  to.attribute("accumulate", training.accumulate);
  to.attribute("clip_grad_norm", training.clip_grad_norm);
  to.attribute("batch", training.batch);
  to.attribute("precision", training.precision);
  to.attributeObject("dims", [&] {
    for (const auto& [name, value] : plan.dims) to.attribute(name, value);
  });
}

void write_decision(json::OStream& to, const Decision& decision) {
  to.attribute("pass", decision.pass);
  to.attribute("subject", decision.subject);
  to.attribute("choice", decision.choice);
  to.attribute("reason", decision.reason);
}

void write_pipeline(json::OStream& to, const PipelineSummary& pipeline) {
  to.attribute("schedule", pipeline.schedule);
  to.attribute("micro_batches", pipeline.micro_batches);
}

void write_tried_mesh(json::OStream& to, const TriedMesh& tried) {
  to.attribute("mesh", to_string(tried.mesh));
  to.attribute("zero", tried.zero);
  if (!tried.pipeline.schedule.empty()) write_pipeline(to, tried.pipeline);
  to.attribute("fits", tried.fits);
  to.attribute("bytes", tried.bytes);
  to.attribute("step_us", tried.step_us);
}

void write_mesh_search(json::OStream& to, const MeshSearchSummary& search) {
  to.attribute("cards", search.cards);
  to.attribute("considered", search.considered);
  to.attribute("over_memory", search.over_memory);
  to.attribute("over_time", search.over_time);
  to.attribute("bound_us", search.bound_us);
  write_objects<TriedMesh>(to, "compiled", search.compiled, write_tried_mesh);
}

void write_plan(json::OStream& to, const Plan& plan, llvm::ArrayRef<TimeSummary> stages) {
  to.attribute("device", plan.device.name);
  if (plan.mesh.ranks() > 1) to.attribute("mesh", to_string(plan.mesh));
  if (!plan.kinds.empty())
    to.attributeArray("kinds", [&] {
      for (const RankKind& kind : plan.kinds)
        to.object([&] {
          to.attribute("device", kind.device.name);
          to.attribute("budget_bytes", kind.budget_bytes);
          to.attributeArray("ranks", [&] {
            for (int64_t rank : kind.ranks) to.value(rank);
          });
        });
    });
  if (!plan.pipeline.schedule.empty())
    to.attributeObject("pipeline", [&] {
      to.attribute("stage", plan.stage);
      write_pipeline(to, plan.pipeline);
    });
  if (plan.mesh_search.cards > 0) to.attributeObject("mesh_search", [&] { write_mesh_search(to, plan.mesh_search); });
  to.attributeObject("training", [&] { write_training(to, plan); });
  if (plan.evaluation.batch > 0)
    to.attributeObject("evaluation", [&] {
      to.attribute("batch", plan.evaluation.batch);
      to.attribute("of_mean", plan.evaluation.of_mean);
      to.attributeArray("metrics", [&] {
        for (const std::string& metric : plan.evaluation.metrics) to.value(metric);
      });
    });
  to.attributeObject("fit", [&] {
    to.attribute("chunks", plan.fit.chunks);
    to.attribute("chunks_from", plan.fit.chunks_from);
    to.attribute("rematerialised", plan.fit.rematerialised);
  });
  to.attributeObject("memory", [&] { write_memory(to, plan); });
  to.attributeObject("time", [&] { write_time(to, plan, stages.front()); });
  to.attributeArray("collectives", [&] {
    for (const CollectiveSummary& each : summarize_collectives(plan))
      to.object([&] {
        to.attribute("op", each.op);
        to.attribute("axis", each.axis);
        to.attribute("count", each.count);
        to.attribute("bytes", each.bytes);
        to.attribute("predicted_us", each.us);
      });
  });
  to.attributeArray("slots", [&] {
    for (const Slot& slot : plan.slots) to.object([&] { write_slot(to, plan, slot); });
  });
  to.attributeArray("instructions", [&] {
    for (const PlanFunction& function : plan.functions)
      for (size_t i = 0; i < function.instructions.size(); ++i)
        to.object([&] { write_instruction(to, plan, function, i); });
  });
  write_objects<Decision>(to, "decisions", plan.decisions, write_decision);
  if (plan.later_stages.empty()) return;
  to.attributeArray("later_stages", [&] {
    for (size_t i = 0; i < plan.later_stages.size(); ++i)
      to.object([&] { write_plan(to, plan.later_stages[i], stages.drop_front(i + 1)); });
  });
}

}  // namespace

void print_plan_json(llvm::raw_ostream& out, const Plan& plan) {
  json::OStream to(out, /*IndentSize=*/1);
  to.object([&] {
    to.attribute("format", plan_format_version);
    to.attribute("model", plan.model);
    write_plan(to, plan, summarize_stages(plan));
  });
  out << "\n";
}

}  // namespace plimsoll
