#include "frontend/api/alternatives.h"

#include "frontend/api/choose_mesh.h"
#include "ir/eight_bit_moments.h"
#include "ir/plan/summary.h"
#include "ir/support/parallel.h"
#include "ir/support/strings.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"
#include "passes/budget/split_search.h"
#include "passes/train/optimizer_settings.h"
#include "passes/train/update_rules.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Regex.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

namespace plimsoll {
namespace {

constexpr size_t planned_instructions = 2500;  // a larger job takes too long to plan several times over
constexpr int64_t usual_rank = 8;              // of adapters that nobody has described
constexpr int64_t max_cards = 64, max_planned_cards = 8;

double samples_of(const Plan& plan) {
  return static_cast<double>(std::max<int64_t>(plan.training.batch, 1) * plan.training.accumulate);
}

using Change = Alternative::Change;

class Alternatives {
 public:
  Alternatives(const Job& job, const TrainingRequest& training, const Plan& smallest,
               llvm::ArrayRef<size_t> split_regions)
      : job_(job), training_(training), smallest_(smallest) {
    training_.effort = short_effort;
    training_.is_short = training_.mesh[MeshAxis::Stage] == 1;
    training_.frontier = false;
    if (is_within_host_budget(smallest) && smallest.promised_bytes() > budget())
      training_.enough_bytes = smallest.promised_bytes();
    if (training_.split < 1 && training_.mesh[MeshAxis::Stage] == 1) training_.split_regions = split_regions.vec();
    size_t instructions = 0;
    for (const PlanFunction& function : smallest.functions) instructions += function.instructions.size();
    plans_ = instructions <= planned_instructions;
  }

  // Each kind of change is planned on its own.
  std::vector<Alternative> all() {
    using FindChanges = void (Alternatives::*)();
    constexpr FindChanges kinds[] = {&Alternatives::lower_precision,
                                     &Alternatives::half_batch,
                                     &Alternatives::half_length,
                                     &Alternatives::last_blocks,
                                     &Alternatives::optimizer_without_state,
                                     &Alternatives::small_moments,
                                     &Alternatives::adapters,
                                     &Alternatives::quantised_weights,
                                     &Alternatives::eight_bit_floats,
                                     &Alternatives::host_memory,
                                     &Alternatives::chunks_of_batch,
                                     &Alternatives::micro_batches,
                                     &Alternatives::several_cards};
    std::vector<Alternatives> of_kind(std::size(kinds), *this);
    // From the last on, since these plan several jobs each and take longest.
    parallel_for(of_kind.size(), [&](size_t i) {
      const size_t kind = of_kind.size() - 1 - i;
      (of_kind[kind].*kinds[kind])();
    });
    for (Alternatives& each : of_kind) std::move(each.found_.begin(), each.found_.end(), std::back_inserter(found_));
    // What needs as much, as far as anyone reads it, is no help.
    const int64_t needs_bytes = round_up_readable(smallest_.promised_bytes());
    llvm::erase_if(found_, [&](const Alternative& each) {
      return !each.fits && is_within_host_budget(smallest_) && round_up_readable(each.needs_bytes) >= needs_bytes;
    });
    llvm::stable_sort(found_, [&](const Alternative& a, const Alternative& b) {
      return std::make_pair(!a.fits, a.sample_us) < std::make_pair(!b.fits, b.sample_us);
    });
    return std::move(found_);
  }

 private:
  int64_t budget() const { return smallest_.arenas.front().budget_bytes; }

  // The job as it was asked for, of which an alternative changes one thing.
  Alternative changed(Change change) const { return {.change = change, .request = job_.request()}; }

  struct Planned {
    Plan plan;
    bool fits;
    int64_t needs_bytes;  // the job is accepted within so many
    bool is_help = true;  // where not, it needs no less than the refused job, and there is no plan
  };

  // What fits, or the plan that needs least where that is less than the refused job needs. A job that cannot be done,
  // such as a batch that cannot be followed, has none and is no alternative.
  static std::optional<Planned> planned(const Job& job, TrainingRequest request) {
    request.keeps_program = request.mesh[MeshAxis::Stage] == 1;
    Result<CompileResult> result = job.compile(request);
    if (!result) {
      consumeError(result.takeError());
      return std::nullopt;
    }
    if (result->is_too_large) return Planned{{}, false, 0, false};
    const int64_t needs_bytes = accepted_bytes(job, request, *result);
    return Planned{std::move(result->plan), result->fits, needs_bytes};
  }

  // A search within what the plan needs looks at fewer plans than one within the budget, and may miss the plan where
  // its copies gave way to the layout. Then the budget is what the job needs.
  static int64_t accepted_bytes(const Job& job, const TrainingRequest& request, const CompileResult& result) {
    const int64_t bytes = result.plan.promised_bytes(), budget_bytes = result.plan.arenas.front().budget_bytes;
    TrainingRequest close = request;
    close.budget_bytes = round_up_readable(bytes);
    if (!result.fits || close.budget_bytes >= budget_bytes || request.mesh[MeshAxis::Stage] > 1) return bytes;
    close.prepared = result.prepared;
    Result<CompileResult> again = job.compile(close);
    if (again && again->fits) return bytes;
    if (!again) consumeError(again.takeError());
    return budget_bytes;
  }

  void add(Alternative alternative, int64_t needs_bytes, double step_us, double samples) {
    alternative.needs_bytes = needs_bytes;
    alternative.fits = needs_bytes <= budget();
    alternative.sample_us = step_us / samples;
    found_.push_back(std::move(alternative));
  }
  void add(Alternative alternative, const Planned& planned) {
    if (!planned.is_help) return;
    const Plan& plan = planned.plan;
    add(std::move(alternative), planned.needs_bytes, plan.predicted_step_us, samples_of(plan));
    const bool within_host = plan.host.budget_bytes == 0 || most_on_a_host(plan) <= plan.host.budget_bytes;
    found_.back().fits = planned.fits || (found_.back().fits && within_host && is_within_host_budget(plan));
  }

  // Plans the alternative as `training` of `job`. Returns false where that would take too long or cannot be done.
  bool plan(const Alternative& alternative, const Job& job, const TrainingRequest& training) {
    if (!plans_) return false;
    const std::optional<Planned> result = planned(job, training);
    if (result) add(alternative, *result);
    return result.has_value();
  }
  bool plan(const Alternative& alternative, const TrainingRequest& training) {
    return plan(alternative, job_, training);
  }

  void estimate(Alternative alternative, int64_t freed_bytes, double step_us, double samples) {
    alternative.estimated = true;
    if (freed_bytes > 0) add(std::move(alternative), smallest_.promised_bytes() - freed_bytes, step_us, samples);
  }

  int64_t persistent(Category category) const {
    int64_t bytes = 0;
    for (const Slot& slot : smallest_.slots)
      if (slot.function < 0 && slot.category == category && slot.view_of < 0 && slot.space == MemorySpace::Device)
        bytes += slot.bytes;
    return bytes;
  }

  int64_t transient() const { return smallest_.arenas.front().bytes - smallest_.arenas.front().persistent_bytes; }

  void lower_precision() {
    const std::string& now = training_.precision;
    if ((now != "exported" && now != "fp32" && now != "tf32") || !training_.precision_rules.empty()) return;
    bool multiplies =
        llvm::any_of(smallest_.device.matmul_tflops, [](const auto& entry) { return entry.first == DType::BF16; });
    bool wide = llvm::any_of(smallest_.states, [&](const PlanState& state) {
      return state.role == StateRole::Parameter && smallest_.slots[state.slot].type.dtype == DType::F32;
    });
    if (!multiplies || !wide) return;
    Alternative bf16 = changed(Change::Precision);
    TrainingRequest training = training_;
    bf16.request.training.precision = training.precision = "bf16";
    if (!plan(bf16, training)) estimate(bf16, transient() / 2, smallest_.predicted_step_us / 2, samples_of(smallest_));
  }

  // The dimension that the caller bound to the batch, or the batch itself.
  void change_batch(Alternative& alternative, int64_t batch) const {
    CompileRequest& request = alternative.request;
    request.max_batch = request.best_batch = false, request.global_batch = 0;
    for (auto& [name, size] : request.import.dims)
      if (size == smallest_.training.batch && llvm::StringRef(name).contains_insensitive("batch"))
        size = batch, alternative.dimension = name;
    if (alternative.dimension.empty()) request.training.batch = batch;
  }

  void half_batch() {
    const int64_t half = smallest_.training.batch / 2;
    if (half < 1) return;
    Alternative halved = changed(Change::Batch);
    halved.number = half;
    TrainingRequest training = training_;
    training.batch = half;
    change_batch(halved, half);
    const double samples = static_cast<double>(half * smallest_.training.accumulate),
                 update_us = summarize_time(smallest_).by_phase_us[static_cast<size_t>(Phase::Update)];
    if (!plan(halved, training))
      estimate(halved, transient() / 2, (smallest_.predicted_step_us - update_us) / 2 + update_us, samples);
  }

  // As many samples an update, in smaller micro-batches whose gradients are added up. One sample of each rank at a time
  // needs least; where that fits, the micro-batch with the most samples that does is named as well.
  void micro_batches() {
    const int64_t batch = smallest_.training.batch, ranks = training_.mesh[MeshAxis::Data];
    const CompileRequest& request = job_.request();
    if (!plans_ || request.chooses_batch() || !request.budgets.empty() || training_.mesh[MeshAxis::Stage] > 1) return;
    std::vector<int64_t> sizes;
    for (int64_t size = ranks; size < batch; size += ranks)
      if (batch % size == 0) sizes.push_back(size);
    if (sizes.empty() || !plan_micro_batches(sizes.front(), 1) || found_.empty()) return;
    Alternative& least = found_.back();
    const int64_t least_bytes = least.least_bytes = least.needs_bytes;
    if (!least.fits) return;
    size_t fits = 0, above = sizes.size();
    while (above - fits > 1) {
      const size_t middle = fits + (above - fits) / 2;
      const size_t known = found_.size();
      if (!plan_micro_batches(sizes[middle], training_.budget_bytes)) return;
      const bool is_added = found_.size() > known, most = is_added && found_.back().fits;
      (most ? fits : above) = middle;
      // Of those that fit, the one with more samples stays beside the least.
      if (most ? found_.size() > 2 : is_added) found_.erase(most ? found_.end() - 2 : found_.end() - 1);
    }
    if (fits > 0) return;
    // With all of the budget it takes less time.
    found_.pop_back();
    if (plan_micro_batches(sizes.front(), training_.budget_bytes) && !found_.empty())
      found_.back().least_bytes = least_bytes;
  }

  bool plan_micro_batches(int64_t batch, int64_t budget_bytes) {
    Alternative smaller = changed(Change::MicroBatches);
    TrainingRequest training = training_;
    training.batch = smaller.number = batch;
    training.budget_bytes = budget_bytes;
    training.accumulate *= smallest_.training.batch / batch;
    change_batch(smaller, batch);
    smaller.request.training.accumulate = training.accumulate;
    return plan(smaller, training);
  }

  // Halves each dimension that the caller bound and that is not the batch.
  void half_length() {
    if (!plans_) return;
    for (const auto& [name, size] : job_.request().import.dims) {
      if (size < 2 || llvm::StringRef(name).contains_insensitive("batch")) continue;
      Alternative halved = changed(Change::Dimension);
      halved.dimension = name;
      halved.request.import.dims[name] = halved.number = size / 2;
      Result<Job> shorter = Job::open(halved.request);
      if (!shorter)
        consumeError(shorter.takeError());
      else
        plan(halved, *shorter, training_);
    }
  }

  // A block is a number at the end of a part of the names of parameters: h.0.attn.weight, layer_1.mlp.3.weight. Where
  // names have several, that of which there are most.
  void last_blocks() {
    if (!training_.train.empty() || !training_.freeze.empty() || training_.adapters.wanted()) return;
    std::map<std::string, int64_t> last;  // the key is the name in front of the number
    for (const PlanState& state : smallest_.states) {
      if (!state.trained) continue;
      const llvm::StringRef name = smallest_.slots[state.slot].name;
      for (size_t dot = name.find('.'); dot != llvm::StringRef::npos; dot = name.find('.', dot + 1)) {
        const llvm::StringRef front = name.take_front(dot), prefix = front.rtrim("0123456789");
        int64_t number = 0;
        if (!llvm::StringRef("._").contains(prefix.empty() ? 'x' : prefix.back())) continue;
        if (front.drop_front(prefix.size()).getAsInteger(10, number)) continue;
        last[prefix.str()] = std::max(last[prefix.str()], number);
      }
    }
    auto blocks =
        std::max_element(last.begin(), last.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (blocks == last.end() || blocks->second < 3) return;
    std::string numbers, prefix = llvm::Regex::escape(blocks->first);
    for (int64_t block = blocks->second - blocks->second / 4; block <= blocks->second; ++block)
      numbers += (numbers.empty() ? "" : "|") + std::to_string(block);
    Alternative last_blocks = changed(Change::TrainedWeights);
    TrainingRequest training = training_;
    last_blocks.request.training.train = training.train = {"^" + prefix + "(" + numbers + ")\\."};
    plan(last_blocks, training);
  }

  // Updates are bound by memory bandwidth. They read and write the optimizer state once, so without it they become
  // faster by its share of the bytes.
  void optimizer_without_state() {
    const int64_t states = persistent(Category::Optimizer);
    if (states == 0 || training_.optimizer.kind == OptimizerKind::Sgd) return;
    Alternative sgd = changed(Change::Optimizer);
    TrainingRequest training = training_;
    training.optimizer.kind = OptimizerKind::Sgd;
    training.optimizer.momentum = 0;
    training.optimizer.nesterov = false;
    sgd.request.training.optimizer = training.optimizer;
    if (plan(sgd, training)) return;
    double update_us = summarize_time(smallest_).by_phase_us[static_cast<size_t>(Phase::Update)];
    int64_t moved = 1;
    for (const PlanFunction& function : smallest_.functions)
      for (const Instruction& instruction : function.instructions)
        if (instruction.phase == Phase::Update) moved += instruction.bytes_moved;
    double share = std::min(1.0, 2.0 * static_cast<double>(states) / static_cast<double>(moved));
    estimate(sgd, states, smallest_.predicted_step_us - share * update_us, samples_of(smallest_));
  }

  void small_moments() {
    if (training_.moments != Moments::F32 || !has_moments(training_.optimizer.kind)) return;
    Alternative narrow = changed(Change::Moments);
    TrainingRequest training = training_;
    narrow.request.training.moments = training.moments = Moments::EightBit;
    if (plan(narrow, training)) return;
    int64_t freed_bytes = 0;
    for (const PlanState& state : smallest_.states) {
      const Slot& slot = smallest_.slots[static_cast<size_t>(state.slot)];
      const bool is_moment = ends_with(slot.name, mean_suffix) || ends_with(slot.name, square_suffix);
      if (!is_moment || slot.space != MemorySpace::Device || slot.type.dtype != DType::F32) continue;
      const int64_t elements = slot.type.elements();
      if (elements < min_eight_bit_elements) continue;
      freed_bytes += slot.bytes - elements - moment_blocks(elements) * dtype_bytes(DType::F32);
    }
    // The update reads and writes that much less.
    const DeviceDescription& device = smallest_.device;
    const double less_us = device.roofline_us(0, 2 * freed_bytes, std::nullopt);
    estimate(narrow, freed_bytes, smallest_.predicted_step_us - less_us, samples_of(smallest_));
  }

  // A step of adapters has less to plan than the whole model's, so these are planned even for large jobs.
  void adapters() {
    TrainingRequest training = training_;
    if (!trains_all() || training.adapters.wanted()) return;
    Alternative lora = changed(Change::Adapters);
    lora.request.training.adapters.rank = training.adapters.rank = usual_rank;
    if (const std::optional<Planned> result = planned(job_, training)) add(std::move(lora), *result);
  }

  void quantised_weights() { quantised(WeightFormat::NF4, training_.precision); }

  // Where the device multiplies 8-bit floats faster, a base in them is less and faster.
  void eight_bit_floats() {
    const DeviceDescription& device = smallest_.device;
    const bool is_faster = device.matmul_tflops_for(DType::F8E4M3) > device.matmul_tflops_for(DType::BF16);
    if (training_.precision == "bf16" && is_faster) quantised(WeightFormat::FP8, "fp8");
  }

  void quantised(WeightFormat format, const std::string& precision) {
    TrainingRequest training = training_;
    if (training.quantize.format != WeightFormat::AsTrained) return;
    if (!training.adapters.wanted() && !trains_all()) return;
    Alternative packed = changed(Change::Quantize);
    if (!training.adapters.wanted()) training.adapters.rank = usual_rank;
    training.quantize.format = format;
    packed.request.training.adapters = training.adapters;
    packed.request.training.quantize = training.quantize;
    packed.request.training.precision = training.precision = precision;
    if (const std::optional<Planned> result = planned(job_, training)) add(std::move(packed), *result);
  }

  bool trains_all() const { return training_.train.empty() && training_.freeze.empty(); }

  // With equal shares each rank of a host has room for what the largest needs.
  int64_t host_budget_for(const Plan& plan) const {
    int64_t most = 0;
    for (const Plan* stage : plan.stages()) most = std::max(most, stage->host_bytes() - stage->host.snapshot_bytes);
    return most * training_.ranks_of_host() + plan.host.snapshot_bytes;
  }

  // Allows more host memory. Whether copies overlap with computing cannot be estimated, so this is planned even for
  // large jobs.
  void host_memory() {
    const DeviceDescription& device = smallest_.device;
    const TrainingRequest& now = training_;
    if (device.to_host_gb_per_s <= 0 || device.from_host_gb_per_s <= 0 || (now.offload && now.host_budget_bytes == 0))
      return;
    TrainingRequest training = training_;
    training.offload = true;
    training.host_budget_bytes = 0;
    std::optional<Planned> result = planned(job_, training);
    if (!result || !result->is_help || result->plan.arenas.size() == 1) return;
    Alternative more = changed(Change::HostMemory);
    more.number = round_up_readable(host_budget_for(result->plan));
    if (now.host_budget_bytes > 0 && more.number > now.host_budget_bytes) {
      training.host_budget_bytes = more.number;
      result = planned(job_, training);
    }
    more.request.training.offload = true;
    more.request.training.host_budget_bytes = more.number;
    if (result) add(std::move(more), *result);
  }

  void chunks_of_batch() {
    if (training_.split != 1 || !plans_) return;
    TrainingRequest training = training_;
    training.split = 0;
    const std::optional<Planned> result = planned(job_, training);
    if (!result || !result->is_help || !is_better(result->plan, smallest_) || result->plan.fit.chunks <= 1) return;
    Alternative chunks = changed(Change::Chunks);
    chunks.request.training.split = 0;
    chunks.fit = result->plan.fit;
    add(std::move(chunks), *result);
  }

  // Cards that divide parameters, gradients and optimizer state (Rajbhandari et al. 2020), each with this batch.
  void several_cards() {
    if (smallest_.device.backend == "cpu" || training_.mesh.ranks() > 1) return;
    if (needs_whole_parameters(training_.optimizer.kind)) return;
    if (is_too_large_for_cards()) return;
    const bool is_planned = smallest_.training.batch > 0;
    if (is_planned && plans_) return fewest_cards();
    for (int64_t cards = 2; cards <= max_cards; cards *= 2)
      if (is_planned && cards <= max_planned_cards ? plan_cards(cards) : estimate_cards(cards)) return;
  }

  // Each of more cards needs less, so fewer are planned only where the most are enough.
  void fewest_cards() {
    plan_cards(max_planned_cards);
    if (found_.empty() || !found_.back().fits) return;
    for (int64_t cards = 2; cards < max_planned_cards; cards *= 2) {
      if (!plan_cards(cards)) continue;
      if (found_.size() > 1) found_.erase(found_.begin());
      return;
    }
  }

  // Whether an instruction needs more than the budget by itself that has the same rows on any number of cards.
  bool is_too_large_for_cards() const {
    const LargestInstruction largest = largest_instruction(smallest_);
    const bool updates = smallest_.functions[largest.function].instructions[largest.instruction].phase == Phase::Update;
    return !updates && largest.bytes + smallest_.device.reserve_bytes() > budget();
  }

  int64_t bytes_that_cards_free(int64_t cards) const {
    const int64_t states =
        persistent(Category::Parameters) + persistent(Category::Gradients) + persistent(Category::Optimizer);
    return states - states / cards;
  }

  // Where the job fits so; the time per sample on each card stays the same.
  bool estimate_cards(int64_t cards) {
    const int64_t freed_bytes = bytes_that_cards_free(cards);
    if (smallest_.promised_bytes() - freed_bytes > budget()) return false;
    Alternative shared = changed(Change::Cards);
    shared.number = cards;
    estimate(shared, freed_bytes, smallest_.predicted_step_us, samples_of(smallest_));
    return true;
  }

  // Returns false where more cards may do. The ZeRO stage of a small job is chosen as for a job on so many cards. A
  // large one divides all that can be divided, on as many cards as could be enough, since each plan takes seconds.
  bool plan_cards(int64_t cards) {
    if (!plans_ && smallest_.promised_bytes() - bytes_that_cards_free(cards) > budget()) return false;
    Alternative shared = changed(Change::Cards);
    TrainingRequest training = training_;
    shared.number = training.mesh[MeshAxis::Data] = cards;
    training.batch = smallest_.training.batch * cards;
    training.zero = 3;
    training.enough_bytes = std::numeric_limits<int64_t>::max();  // plans of several meshes are compared
    Result<CompileResult> result =
        plans_ ? choose_mesh(job_, training, {.cards = cards, .mesh = training.mesh}) : job_.compile(training);
    if (!result) {
      llvm::consumeError(result.takeError());
      return true;
    }
    change_batch(shared, training.batch);
    shared.request.training.mesh = training.mesh;
    shared.request.training.zero = with_mesh_of(result->plan, training).zero;
    if (!result->fits && 2 * cards <= max_planned_cards) return false;
    const int64_t needs_bytes = accepted_bytes(job_, with_mesh_of(result->plan, training), *result);
    add(shared, Planned{std::move(result->plan), result->fits, needs_bytes});
    return true;
  }

  const Job& job_;
  TrainingRequest training_;
  const Plan& smallest_;
  bool plans_ = false;
  std::vector<Alternative> found_;
};

}  // namespace

std::vector<Alternative> find_alternatives(const Plan& smallest, llvm::ArrayRef<size_t> split_regions, const Job& job,
                                           const TrainingRequest& training) {
  return Alternatives(job, training, smallest, split_regions).all();
}

}  // namespace plimsoll
