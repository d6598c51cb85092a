#include "passes/derive_stages.h"

// The model is cut and its batch split in the forward graph, which is differentiated as one; then each stage gets its
// own graph. Micro-batches are chunks of the batch, unrolled in one function, so memory is planned across all of them.

#include "ir/awaited.h"
#include "ir/builder.h"
#include "ir/support/parallel.h"
#include "ir/support/units.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/dependence.h"
#include "passes/analysis/single_value_cuts.h"
#include "passes/partition/block_memory.h"
#include "passes/partition/divide_batch.h"
#include "passes/partition/divide_parameters.h"
#include "passes/partition/divide_stages.h"
#include "passes/partition/divide_tensors.h"
#include "passes/partition/project_stages.h"
#include "passes/pipelines.h"
#include "passes/train/split_batch.h"
#include "passes/train/training_step.h"

#include <limits>

namespace plimsoll {
namespace {

constexpr int64_t usual_micro_batches_per_stage = 4;

// What `make` gives for each index, made beside each other; the first error where there are some.
template <typename T>
Result<std::vector<T>> results_of(size_t count, llvm::function_ref<Result<T>(size_t)> make) {
  std::vector<std::optional<Result<T>>> made(count);
  parallel_for(count, [&](size_t i) { made[i].emplace(make(i)); });
  std::vector<T> results;
  Status failed = Status::success();
  for (std::optional<Result<T>>& each : made) {
    if (*each)
      results.push_back(std::move(**each));
    else if (failed)
      llvm::consumeError(each->takeError());
    else
      failed = each->takeError();
  }
  if (failed) return failed;
  return results;
}

class StageDeriver {
 public:
  StageDeriver(const ForwardModel& forward, const TrainingRequest& request, const StageRuns& runs,
               const StageDevices& devices, llvm::ArrayRef<StageFindings> findings,
               const PlannedStages* planned = nullptr)
      : forward_(forward),
        request_(request),
        devices_(devices),
        findings_(findings),
        planned_(planned),
        stages_(static_cast<size_t>(request.mesh[MeshAxis::Stage])),
        graph_(forward.graph) {
    split_.runs = runs;
  }

  Result<DerivedStages> run(PassManager passes) {
    if (Status s = choose_micro_batches()) return s;
    DerivedStages result;
    Result<std::vector<NodeId>> ends =
        planned_ ? ends_as_planned(graph_, places(), planned_->owners, split_.runs) : choose_ends(result, passes);
    if (!ends) return ends.takeError();
    divide_stages(graph_, *ends, split_.runs);
    Result<Program> program = train_in_micro_batches(passes);
    if (!program) return program.takeError();
    note_untrained(forward_.graph, *program, passes);
    Result<std::vector<Program>> projected =
        project_stages(*program, split_, [&](const Graph& graph, const Node& node, size_t stage) {
          return is_instruction(node) ? node_us(graph, node, stage) : 0;
        });
    if (!projected) return projected.takeError();

    result.pipeline = {split_.micro_batches, name_of(split_.runs)};
    const auto schedule = [&](size_t stage) {
      return schedule_program(std::move((*projected)[stage]), request_, devices_.device(stage), devices_.catalog(stage),
                              passes);
    };
    // Hooks see one stage after the other, but those of meshes that are compared see nothing.
    if (request_.is_one_of_many) {
      Result<std::vector<Derived>> scheduled = results_of<Derived>(stages_, schedule);
      if (!scheduled) return scheduled.takeError();
      result.stages = std::move(*scheduled);
      return result;
    }
    for (size_t stage = 0; stage < stages_; ++stage) {
      Result<Derived> derived = schedule(stage);
      if (!derived) return derived.takeError();
      result.stages.push_back(std::move(*derived));
    }
    return result;
  }

 private:
  // By tables of what stands between the places.
  Result<std::vector<NodeId>> choose_ends(DerivedStages& result, PassManager& passes) {
    if (Status s = measure_blocks()) return s;
    const std::vector<StageLimit> limits = limits_of_runs();
    result.cuts = cut_stages(blocks_by_run(), limits);
    result.blocks = cuts_.size() + 1;
    std::vector<NodeId> ends;
    for (const StageCut& cut : llvm::drop_begin(result.cuts)) ends.push_back(cuts_[cut.first - 1].after);
    decide(result.cuts, limits, passes);
    return ends;
  }

  std::vector<NodeId> places() const {
    std::vector<NodeId> places;
    for (const SingleValueCut& cut : cuts_) places.push_back(cut.after);
    return places;
  }

  double node_us(const Graph& graph, const Node& node, size_t stage) const {
    return predicted_us(graph, node, chosen_kernel(graph, node, devices_.catalog(stage)), devices_.device(stage));
  }

  // As many as asked for, or the most that leave enough places to cut the model.
  Status choose_micro_batches() {
    cuts_ = find_single_value_cuts(graph_);
    const int64_t rows = rows_of_batch(), asked = request_.micro_batches;
    if (asked > 0 && rows % asked != 0)
      return usage_error("--micro-batches " + llvm::Twine(asked) + ": a rank's batch of " + llvm::Twine(rows) +
                         " does not divide");
    // Interleaved stages take micro-batches in groups of as many as there are stages.
    const int64_t stages = split_.runs.stages,
                  group = split_.runs.schedule == PipelineSchedule::Interleaved ? stages : 1;
    if (asked > 0 ? asked % group != 0 : rows < group)
      return usage_error("the schedule interleaved takes a multiple of " + llvm::Twine(stages) +
                         " micro-batches, as many as there are stages, and not " +
                         llvm::Twine(asked > 0 ? asked : rows));
    const int64_t most = asked > 0 ? asked : std::min(rows, usual_micro_batches_per_stage * stages);
    if (asked == 0 && rows % group != 0)
      return usage_error("the schedule interleaved takes a multiple of " + llvm::Twine(stages) +
                         " micro-batches, and a rank's batch of " + llvm::Twine(rows) +
                         " does not divide into that many");
    for (int64_t count = most; count >= (asked > 0 ? asked : group); --count)
      if (rows % count == 0 && count % group == 0 && can_split(count)) return Status::success();
    return usage_error("the model cannot be cut into " + runs_in_words() + ": of " + llvm::Twine(cuts_.size()) +
                       " places where one value alone goes on, too few have the batch in micro-batches");
  }

  // "2 stages", "4 runs of layers for 2 stages"
  std::string runs_in_words() const {
    const std::string stages = std::to_string(split_.runs.stages) + " stages";
    return split_.runs.per_stage == 1 ? stages : std::to_string(split_.runs.count()) + " runs of layers for " + stages;
  }

  int64_t rows_of_batch() const {
    const std::vector<ValueId> inputs = first_inputs();
    return inputs.empty() ? 1 : graph_.type(inputs.front()).shape[0];
  }

  // Inputs with rows on which the first cut depends.
  std::vector<ValueId> first_inputs() const {
    std::vector<ValueId> inputs;
    if (cuts_.empty()) return inputs;
    const std::vector<bool> contributes = find_contributing(graph_, cuts_.front().value, Flow::Data);
    for (ValueId input : graph_.inputs)
      if (contributes[index_of(input)] && graph_.type(input).rank() > 0 &&
          !llvm::is_contained(graph_.whole_inputs, input))
        inputs.push_back(input);
    return inputs;
  }

  // Keeps the cuts at which the batch is in as many chunks. False, and nothing changed, where they are too few.
  bool can_split(int64_t count) {
    std::vector<SingleValueCut> cuts = cuts_;
    std::vector<ValueId> from = first_inputs();
    if (count > 1) {
      llvm::erase_if(from, [&](ValueId input) { return !is_read_in_chunks(input, count); });
      if (from.empty()) return false;
      from = behind_lookups(from);
      const std::vector<bool> in_chunks = values_in_chunks(graph_, from, count);
      llvm::erase_if(cuts, [&](const SingleValueCut& cut) { return !in_chunks[index_of(cut.value)]; });
    }
    if (static_cast<int64_t>(cuts.size()) + 1 < split_.runs.count()) return false;
    cuts_ = std::move(cuts);
    from_ = std::move(from);
    split_.micro_batches = count;
    return true;
  }

  // Rows of a parameter are looked up for the whole batch: for each micro-batch a gradient as large as the parameter
  // would be added up.
  std::vector<ValueId> behind_lookups(llvm::ArrayRef<ValueId> inputs) const {
    std::vector<ValueId> from;
    for (ValueId input : inputs) {
      const Value& value = graph_.value(input);
      const bool looks_up = llvm::all_of(value.users, [&](NodeId user) {
        const Node& node = graph_.node(user);
        return node.op->name == "gather" && node.operands[0] != input && graph_.find_state(node.operands[0]) &&
               node.attrs.get_int("axis") == 0;
      });
      if (!looks_up) from.push_back(input);
      for (NodeId user : value.users)
        if (looks_up) from.push_back(graph_.node(user).results[0]);
    }
    return from;
  }

  bool is_read_in_chunks(ValueId input, int64_t count) const {
    return llvm::all_of(graph_.value(input).users, [&](NodeId user) {
      const Node& node = graph_.node(user);
      const llvm::SmallVector<const Type*, 4> types = operand_types(graph_, node);
      const std::optional<ChunkCall> call = chunk_of(*node.op, OpCall(*node.op, node.attrs, types), {0, count});
      for (size_t i = 0; call && i < node.operands.size(); ++i)
        if (node.operands[i] == input && !call->cut[i]) return false;
      return call.has_value();
    });
  }

  // What stands between cuts, for each kind of device. Each micro-batch adds what a second one does: sums of gradients,
  // smaller kernels.
  Status measure_blocks() {
    int64_t few = std::min<int64_t>(2, split_.micro_batches);
    while (split_.micro_batches % few != 0) ++few;
    Result<std::vector<std::vector<Program>>> programs = results_of<std::vector<Program>>(
        few == 1 ? 1 : 2, [&](size_t i) { return programs_of_blocks(i == 0 ? 1 : few); });
    if (!programs) return programs.takeError();
    const std::vector<Program>& whole = programs->front();
    const double more = few == 1 ? 0 : static_cast<double>(split_.micro_batches - 1) / static_cast<double>(few - 1);
    const std::vector<Type> parameters = types_of_parameters(whole);
    blocks_.resize(stages_);
    for (size_t stage = 0; stage < stages_; ++stage) {
      if (first_alike(stage) < stage) continue;
      Result<std::vector<StageBlock>> blocks =
          results_of<StageBlock>(whole.size(), [&](size_t i) -> Result<StageBlock> {
            Result<StageBlock> block = measure_block(whole[i], parameters, stage);
            if (!block) return block;
            if (few > 1) {
              Result<double> in_few_us = work_us(programs->back()[i], stage);
              if (!in_few_us) return in_few_us.takeError();
              block->us += more * std::max(0.0, *in_few_us - block->us);
            }
            if (i < cuts_.size()) block->border_us = transfers_us(graph_.type(cuts_[i].value), stage);
            return block;
          });
      if (!blocks) return blocks.takeError();
      blocks_[stage] = std::move(*blocks);
    }
    return Status::success();
  }

  size_t first_alike(size_t stage) const {
    size_t first = 0;
    while (!devices_.are_alike(first, stage)) ++first;
    return first;
  }

  size_t stage_of(size_t run) const { return static_cast<size_t>(split_.runs.stage_of(static_cast<int64_t>(run))); }

  llvm::SmallVector<llvm::ArrayRef<StageBlock>> blocks_by_run() const {
    llvm::SmallVector<llvm::ArrayRef<StageBlock>> all;
    for (int64_t run = 0; run < split_.runs.count(); ++run)
      all.push_back(blocks_[first_alike(stage_of(static_cast<size_t>(run)))]);
    return all;
  }

  // A whole step of each block as a stage of its own that takes so many micro-batches.
  Result<std::vector<Program>> programs_of_blocks(int64_t micro_batches) const {
    Graph trial = graph_;
    std::vector<NodeId> ends;
    for (const SingleValueCut& cut : cuts_) ends.push_back(cut.after);
    divide_stages(trial, ends);
    Result<BatchSplit> batch = split_micro_batches(trial, micro_batches);
    if (!batch) return batch.takeError();
    PassManager passes = forward_.passes.quiet();
    if (Status s = divide_parts(trial, *batch, passes)) return s;
    Result<Program> program = make_training_program(std::move(trial), request_, batch->sample_weight);
    if (!program) return program.takeError();
    forget_origins(*program);
    PipelineSplit split;
    split.runs.stages = static_cast<int64_t>(cuts_.size() + 1);
    split.micro_batches = micro_batches;
    split.micro_batch_of = chunks_of_nodes(program->functions.front(), *batch);
    return project_stages(*program, split, [](const Graph&, const Node&, size_t) { return 1.0; });
  }

  // Each of many stages would have a copy of all that nobody reads.
  static void forget_origins(Program& program) {
    for (Graph& function : program.functions) {
      for (NodeId id : function.order()) function.node(id).origin = OriginId::None;
      for (State& state : function.states) state.origin = OriginId::None;
      function.origins.clear();
    }
  }

  // As the passes leave it for the device of `stage`.
  Result<Program> prepared(Program block, size_t stage) const {
    PassManager passes = forward_.passes.quiet();
    for (Graph& function : block.functions) {
      const std::string pipeline =
          step_pipeline(request_, devices_.catalog(stage).preferences(), preferred_moments(devices_.catalog(stage)));
      for (llvm::StringRef passes_in_turn : {llvm::StringRef(pipeline), llvm::StringRef(fuse_pipeline)})
        if (Result<bool> changed = passes.run(function, passes_in_turn); !changed) return changed.takeError();
    }
    return block;
  }

  double us_of(const Program& block, size_t stage) const {
    double us = 0;
    for (size_t f = 0; f < block.functions.size(); ++f) {
      const Graph& function = block.functions[f];
      for (NodeId id : instructions_of(function))
        if (!is_awaited(function.node(id))) us += calls(f) * node_us(function, function.node(id), stage);
    }
    return us;
  }

  double calls(size_t function) const { return static_cast<double>(function == 0 ? request_.accumulate : 1); }

  Result<double> work_us(const Program& block, size_t stage) const {
    Result<Program> program = prepared(block, stage);
    if (!program) return program.takeError();
    return us_of(*program, stage);
  }

  static std::vector<Type> types_of_parameters(llvm::ArrayRef<Program> blocks) {
    std::vector<Type> types;
    for (const Program& block : blocks)
      for (const State& state : block.functions.front().states)
        if (state.trained) types.push_back(block.functions.front().type(state.value));
    return types;
  }

  Result<StageBlock> measure_block(const Program& block, llvm::ArrayRef<Type> parameters, size_t stage) const {
    Result<Program> program = prepared(block, stage);
    if (!program) return program.takeError();
    StageBlock measured;
    measured.us = us_of(*program, stage);
    PlanDraft draft(std::move(*program), devices_.device(stage), devices_.catalog(stage));
    PassManager passes = forward_.passes.quiet();
    if (Result<bool> ordered = run_steps(passes, draft, "schedule"); !ordered) return ordered.takeError();
    const bool keeps_gradients = split_.micro_batches > 1 || request_.clip_grad_norm > 0;
    measure_memory(measured, draft, {split_.micro_batches, keeps_gradients, parameters},
                   [&](const Graph& graph, const Node& node) { return calls(0) * node_us(graph, node, stage); });
    return measured;
  }

  // The runs of a stage share its bytes equally.
  std::vector<StageLimit> limits_of_runs() const {
    std::vector<StageLimit> limits(static_cast<size_t>(split_.runs.count()));
    // Before they are cut, stages count as equal, and weights, backward and forward as equally long.
    const std::vector<StageTimes> times(stages_, {1, 1, 1});
    const auto actions = actions_of_stages(split_.runs, times, split_.micro_batches);
    const int64_t sharing = split_.runs.per_stage, host_budget = request_.host_budget_of_rank();
    for (size_t run = 0; run < limits.size(); ++run) {
      const size_t stage = stage_of(run);
      const DeviceDescription& device = devices_.device(stage);
      StageLimit& limit = limits[run];
      // Interleaved runs go from the last stage to the first one too.
      const bool is_ring = split_.runs.schedule == PipelineSchedule::Interleaved && stages_ > 2;
      const int64_t neighbours = is_ring ? 2 : (stage > 0) + (stage + 1 < stages_);
      limit.bytes = request_.budget_of_stage(stage, device) -
                    device.with_ranks(request_.mesh, {.stages_met = neighbours}).reserve_bytes();
      limit.bytes /= sharing;
      if (!findings_.empty()) {
        limit.bytes -= findings_[run].unforeseen_bytes;
        limit.too_large = findings_[run].too_large;
      }
      limit.micro_batches = most_kept(actions[stage], split_.runs.place_of(static_cast<int64_t>(run)));
      limit.recompute = request_.recompute;
      if (!request_.offload || device.to_host_gb_per_s <= 0 || device.from_host_gb_per_s <= 0) continue;
      limit.host_bytes = host_budget > 0 ? host_budget / sharing : std::numeric_limits<int64_t>::max();
      limit.host_us_per_byte = 1e-3 / std::min(device.to_host_gb_per_s, device.from_host_gb_per_s);
      limit.held_up_us_per_byte = 2 * device.copy_interference * limit.host_us_per_byte;
    }
    return limits;
  }

  // What goes over a border forward, and as much backward.
  double transfers_us(const Type& batch, size_t stage) const {
    const DeviceDescription& device = devices_.device(stage);
    const auto calls = static_cast<double>(request_.accumulate);
    return 2 * calls *
           (static_cast<double>(split_.micro_batches) *
            device.ranks_us(MeshAxis::Stage,
                            static_cast<double>(batch.bytes()) / static_cast<double>(split_.micro_batches)));
  }

  void decide(llvm::ArrayRef<StageCut> cuts, llvm::ArrayRef<StageLimit> limits, PassManager& passes) const {
    std::string times, choice, room;
    std::vector<double> us(stages_, 0);
    std::vector<int64_t> state_bytes(stages_, 0);
    for (size_t run = 0; run < cuts.size(); ++run) {
      const size_t stage = stage_of(run);
      const StageCut& cut = cuts[run];
      const llvm::ArrayRef<StageBlock> all = blocks_[first_alike(stage)];
      for (size_t i = cut.first; i < (run + 1 < cuts.size() ? cuts[run + 1].first : all.size()); ++i)
        us[stage] += all[i].us;
      state_bytes[stage] += cut.state_bytes;
      if (run > 0) choice += (run == 1 ? "behind " : ", ") + graph_.value(cuts_[cut.first - 1].value).name;
      if (cut.needs_bytes <= limits[run].bytes) continue;
      room += "; " + (cuts.size() > stages_ ? "run " + std::to_string(run) + " on " : std::string()) + "stage " +
              std::to_string(stage) + " has room for " + format_bytes(std::max<int64_t>(limits[run].bytes, 0)) +
              " of " + format_bytes(cut.needs_bytes);
      room += cut.least_bytes > limits[run].bytes ? ", and remats and copies leave " + format_bytes(cut.least_bytes)
                                                  : ", remats and copies for the rest take " + format_us(cut.added_us);
    }
    for (size_t stage = 0; stage < stages_; ++stage)
      times += (stage == 0 ? "" : ", ") + format_us(us[stage]) + " and " + format_bytes(state_bytes[stage]);
    passes.decide({"divide-stages", "plan", choice,
                   std::string("the slowest ") + (cuts.size() > stages_ ? "run" : "stage") + " takes least of " +
                       std::to_string(cuts_.size()) + " places; computing and states of the stages: " + times + room});
  }

  Result<Program> train_in_micro_batches(PassManager& passes) {
    Result<BatchSplit> done = split_micro_batches(graph_, split_.micro_batches);
    if (!done) return done.takeError();
    if (Status s = check_transfers(*done)) return s;
    if (Status s = divide_parts(graph_, *done, passes)) return s;
    Result<Program> program = make_training_program(std::move(graph_), request_, done->sample_weight);
    if (!program) return program;
    size_t nodes = 0;
    for (const Graph& function : program->functions) nodes += function.node_count();
    if (nodes > max_pipeline_nodes)
      return usage_error(llvm::Twine(split_.micro_batches) + " micro-batches make a step of " + llvm::Twine(nodes) +
                         " instructions, the limit is " + llvm::Twine(max_pipeline_nodes) +
                         "; plan fewer, and accumulate over several steps (--accumulate)");
    split_.micro_batch_of = chunks_of_nodes(program->functions.front(), *done);
    return program;
  }

  Result<BatchSplit> split_micro_batches(Graph& graph, int64_t count) const {
    BatchSplit done;
    if (count > 1) {
      Result<BatchSplit> split = split_batch(graph, from_, count);
      if (!split) return in_context("micro-batches", split.takeError());
      done = std::move(*split);
    }
    if (done.sample_weight == ValueId::None) done.sample_weight = weight_of_labels(graph);
    done.chunks = count;
    done.chunk.resize(graph.node_slots(), count == 1 ? 0 : -1);
    return done;
  }

  // Ranks along the tensor axis take their parts of each micro-batch, and send on what they have of it.
  Status divide_parts(Graph& graph, BatchSplit& batch, PassManager& passes) const {
    if (!has_stages_with_parts(request_)) return Status::success();
    const bool has_weight =
        llvm::any_of(graph.outputs, [](const Output& output) { return output.name == sample_weight_output; });
    if (!has_weight && batch.sample_weight != ValueId::None)
      graph.outputs.push_back({sample_weight_output.str(), batch.sample_weight});
    std::map<NodeId, NodeId> made_for;
    Result<TensorGroups> groups = divide_tensors(graph, request_.mesh[MeshAxis::Tensor], Rows::Divided, &made_for,
                                                 planned_ ? as_planned(graph, planned_->states) : nullptr);
    if (!groups) return groups.takeError();
    for (Decision& each : decisions_on(graph, *groups)) passes.decide(std::move(each));
    batch.chunk.resize(graph.node_slots(), -1);
    for (const auto& [made, old] : made_for) batch.chunk[index_of(made)] = batch.chunk[index_of(old)];
    Result<bool> changed = passes.run(graph, parts_of_stages_pipeline);
    if (!changed) return changed.takeError();
    if (request_.zero >= 3 && request_.mesh[MeshAxis::Data] > 1)
      divide_parameters(graph, request_.mesh[MeshAxis::Data], request_.sum_dtype, chunks_with_casts(graph, batch));
    return Status::success();
  }

  // By node of a forward graph; what is made of parameters alone is of the chunk that alone reads it.
  static std::vector<int32_t> chunks_with_casts(const Graph& graph, const BatchSplit& batch) {
    std::vector<int32_t> chunk = chunks_of_nodes(graph, batch);
    for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous) {
      const llvm::ArrayRef<NodeId> users = graph.value(graph.node(id).results.front()).users;
      if (chunk[index_of(id)] >= 0 || users.empty()) continue;
      const int32_t first = chunk[index_of(users.front())];
      if (llvm::all_of(users, [&](NodeId user) { return chunk[index_of(user)] == first; })) chunk[index_of(id)] = first;
    }
    return chunk;
  }

  // What a mean loss divides by, computed from the labels alone, so that each stage can.
  static ValueId weight_of_labels(Graph& graph) {
    const ValueId weight = find_sample_weight(graph, graph.outputs.front().value);
    if (weight == ValueId::None || !graph.node(graph.value(weight).producer).op->sample_weight) return weight;
    const NodeId mean = graph.value(weight).producer;
    Builder b(graph, mean);
    return graph.node(mean).op->sample_weight(b, mean);
  }

  // A transfer of the whole batch would have every stage wait for all micro-batches.
  Status check_transfers(const BatchSplit& done) const {
    const ParameterValues parameters(graph_);
    for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
      const Node& node = graph_.node(id);
      if (node.op->name != "transfer" || done.chunk[index_of(id)] >= 0) continue;
      if (!parameters.alone[index_of(node.operands.front())])
        return usage_error("the model cannot be a pipeline of " + llvm::Twine(stages_) +
                           " stages: " + graph_.value(node.operands.front()).name +
                           " goes from one to another and is not made for one micro-batch at a time");
    }
    return Status::success();
  }

  const ForwardModel& forward_;
  const TrainingRequest& request_;
  const StageDevices& devices_;
  llvm::ArrayRef<StageFindings> findings_;  // by run, or empty
  const PlannedStages* planned_;            // null: stages are cut by their times and bytes
  size_t stages_;
  Graph graph_;
  std::vector<SingleValueCut> cuts_;
  std::vector<ValueId> from_;                    // inputs that are split
  std::vector<std::vector<StageBlock>> blocks_;  // by the first stage of each kind of device
  PipelineSplit split_;
};

}  // namespace

Result<DerivedStages> derive_stages(const ForwardModel& forward, const TrainingRequest& request, const StageRuns& runs,
                                    const StageDevices& devices, PassManager passes,
                                    llvm::ArrayRef<StageFindings> findings) {
  return StageDeriver(forward, request, runs, devices, findings).run(std::move(passes));
}

Result<DerivedStages> derive_stages_as_planned(const ForwardModel& forward, const TrainingRequest& request,
                                               const StageRuns& runs, const StageDevices& devices, PassManager passes,
                                               const PlannedStages& planned) {
  return StageDeriver(forward, request, runs, devices, {}, &planned).run(std::move(passes));
}

}  // namespace plimsoll
