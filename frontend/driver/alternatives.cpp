#include "frontend/driver/alternatives.h"

#include "frontend/driver/fit_table.h"
#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Regex.h"

#include <algorithm>
#include <optional>

// An alternative is the same job with one change. Alternatives that fit come first, then the predicted time per sample
// decides.

namespace plimsoll {
namespace {

constexpr size_t planned_instructions = 2500;  // a larger job takes too long to plan several times over
constexpr double planning_effort = 0.05;
constexpr int64_t max_cards = 64;

struct Alternative {
  std::string what;
  int64_t needs_bytes;
  double sample_us;
  bool estimated;
};

// Formats bytes without spaces, as the command line reads them.
std::string typed(int64_t bytes) {
  std::string text = format_bytes(bytes);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

double samples_of(const Plan& plan) {
  return static_cast<double>(std::max<int64_t>(plan.training.batch, 1) * plan.training.accumulate);
}

class Alternatives {
 public:
  Alternatives(const Job& job, const TrainingRequest& training, const Plan& smallest)
      : job_(job), request_(training), smallest_(smallest) {
    request_.effort = planning_effort;
    request_.frontier = false;
    size_t instructions = 0;
    for (const PlanFunction& function : smallest.functions) instructions += function.instructions.size();
    plans_ = instructions <= planned_instructions;
  }

  std::vector<Alternative> all() {
    lower_precision();
    half_batch();
    half_length();
    last_blocks();
    optimizer_without_state();
    host_memory();
    chunks_of_batch();
    several_cards();
    llvm::stable_sort(found_, [&](const Alternative& a, const Alternative& b) {
      return std::make_pair(!fits(a), a.sample_us) < std::make_pair(!fits(b), b.sample_us);
    });
    return std::move(found_);
  }

  bool fits(const Alternative& alternative) const { return alternative.needs_bytes <= budget(); }

 private:
  int64_t budget() const { return smallest_.arenas.front().budget_bytes; }

  // What fits, or the plan that needs least. A job that cannot be done, such as a batch that cannot be followed, has
  // none and is no alternative.
  static std::optional<Plan> planned(const Job& job, const TrainingRequest& request) {
    Result<CompileResult> result = job.compile(request);
    if (result) return std::move(result->plan);
    consumeError(result.takeError());
    return std::nullopt;
  }

  bool plan(const std::string& what, const TrainingRequest& request, double samples) {
    return plan(what, job_, request, samples);
  }
  bool plan(const std::string& what, const Job& job, const TrainingRequest& request, double samples) {
    if (!plans_) return false;
    std::optional<Plan> plan = planned(job, request);
    if (plan) found_.push_back({what, plan->promised_bytes(), plan->predicted_step_us / samples, false});
    return plan.has_value();
  }

  void estimate(const std::string& what, int64_t freed_bytes, double step_us, double samples) {
    if (freed_bytes > 0) found_.push_back({what, smallest_.promised_bytes() - freed_bytes, step_us / samples, true});
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
    const std::string& now = request_.precision;
    if ((now != "exported" && now != "fp32" && now != "tf32") || !request_.precision_rules.empty()) return;
    bool multiplies =
        llvm::any_of(smallest_.device.matmul_tflops, [](const auto& entry) { return entry.first == DType::BF16; });
    bool wide = llvm::any_of(smallest_.states, [&](const PlanState& state) {
      return state.role == StateRole::Parameter &&
             smallest_.slots[static_cast<size_t>(state.slot)].type.dtype == DType::F32;
    });
    if (!multiplies || !wide) return;
    TrainingRequest changed = request_;
    changed.precision = "bf16";
    if (!plan("--precision bf16", changed, samples_of(smallest_)))
      estimate("--precision bf16", transient() / 2, smallest_.predicted_step_us / 2, samples_of(smallest_));
  }

  void half_batch() {
    const int64_t half = smallest_.training.batch / 2;
    if (half < 1) return;
    std::string what = "--batch " + std::to_string(half);
    for (const auto& [name, size] : job_.request().import.dims)
      if (size == smallest_.training.batch && llvm::StringRef(name).contains_insensitive("batch"))
        what = "--dim " + name + "=" + std::to_string(half);
    TrainingRequest changed = request_;
    changed.batch = half;
    double samples = static_cast<double>(half * smallest_.training.accumulate),
           updates = summarize_time(smallest_).by_phase_us[static_cast<size_t>(Phase::Update)];
    if (!plan(what, changed, samples))
      estimate(what, transient() / 2, (smallest_.predicted_step_us - updates) / 2 + updates, samples);
  }

  // Halves each dimension that the caller bound and that is not the batch.
  void half_length() {
    for (const auto& [name, size] : job_.request().import.dims) {
      if (size < 2 || llvm::StringRef(name).contains_insensitive("batch")) continue;
      CompileRequest changed = job_.request();
      changed.import.dims[name] = size / 2;
      if (!plans_) continue;
      Result<Job> shorter = Job::open(changed);
      if (!shorter)
        consumeError(shorter.takeError());
      else
        plan("--dim " + name + "=" + std::to_string(size / 2), *shorter, request_, samples_of(smallest_));
    }
  }

  // A block is a number in the names of parameters: h.0.attn.weight, h.1.attn.weight.
  void last_blocks() {
    if (!request_.train.empty() || !request_.freeze.empty()) return;
    const llvm::Regex numbered("^(.*[A-Za-z_]\\.)([0-9]+)\\.");
    std::map<std::string, int64_t> last;  // the key is the name in front of the number
    for (const PlanState& state : smallest_.states) {
      llvm::SmallVector<llvm::StringRef, 3> parts;
      int64_t number = 0;
      if (state.trained && numbered.match(smallest_.slots[static_cast<size_t>(state.slot)].name, &parts) &&
          !parts[2].getAsInteger(10, number))
        last[parts[1].str()] = std::max(last[parts[1].str()], number);
    }
    auto blocks =
        std::max_element(last.begin(), last.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (blocks == last.end() || blocks->second < 3) return;
    std::string numbers, prefix = llvm::Regex::escape(blocks->first);
    for (int64_t block = blocks->second - blocks->second / 4; block <= blocks->second; ++block)
      numbers += (numbers.empty() ? "" : "|") + std::to_string(block);
    TrainingRequest changed = request_;
    changed.train = {"^" + prefix + "(" + numbers + ")\\."};
    plan("the last blocks alone (--train '" + changed.train.front() + "')", changed, samples_of(smallest_));
  }

  // Updates are bound by memory bandwidth. They read and write the optimizer state once, so without it they become
  // faster by its share of the bytes.
  void optimizer_without_state() {
    const int64_t states = persistent(Category::Optimizer);
    if (states == 0 || request_.optimizer.kind == OptimizerKind::Sgd) return;
    TrainingRequest changed = request_;
    changed.optimizer.kind = OptimizerKind::Sgd;
    changed.optimizer.momentum = 0;
    if (plan("--optimizer sgd", changed, samples_of(smallest_))) return;
    double update_us = summarize_time(smallest_).by_phase_us[static_cast<size_t>(Phase::Update)];
    int64_t moved = 1;
    for (const PlanFunction& function : smallest_.functions)
      for (const Instruction& instruction : function.instructions)
        if (instruction.phase == Phase::Update) moved += instruction.bytes_moved;
    double share = std::min(1.0, 2.0 * static_cast<double>(states) / static_cast<double>(moved));
    estimate("--optimizer sgd", states, smallest_.predicted_step_us - share * update_us, samples_of(smallest_));
  }

  // Allows more host memory. Whether copies overlap with computing cannot be estimated, so this is planned even for
  // large jobs.
  void host_memory() {
    const DeviceDescription& device = smallest_.device;
    const TrainingRequest& now = request_;
    if (device.to_host_gb_per_s <= 0 || device.from_host_gb_per_s <= 0 || (now.offload && now.host_budget_bytes == 0))
      return;
    TrainingRequest changed = request_;
    changed.offload = true;
    changed.host_budget_bytes = 0;
    std::optional<Plan> plan = planned(job_, changed);
    if (!plan || plan->arenas.size() == 1) return;
    const int64_t host_bytes = round_up_readable(plan->arenas[1].bytes);
    if (now.host_budget_bytes > 0 && host_bytes > now.host_budget_bytes) {
      changed.host_budget_bytes = host_bytes;
      plan = planned(job_, changed);
    }
    found_.push_back({std::string(now.offload ? "--host-budget " : "--offload auto --host-budget ") + typed(host_bytes),
                      plan->promised_bytes(), plan->predicted_step_us / samples_of(smallest_), false});
  }

  void chunks_of_batch() {
    if (request_.split != 1 || !plans_) return;
    TrainingRequest changed = request_;
    changed.split = 0;
    const std::optional<Plan> plan = planned(job_, changed);
    if (!plan || !is_better(*plan, smallest_)) return;
    if (plan->fit.chunks > 1)
      found_.push_back({"--split auto (" + chunks_of(plan->fit) + ")", plan->promised_bytes(),
                        plan->predicted_step_us / samples_of(smallest_), false});
  }

  // Divides parameters, gradients and optimizer state among N cards (Rajbhandari et al. 2020), each with this batch.
  // The time per sample on each card stays the same.
  void several_cards() {
    if (smallest_.device.backend == "cpu") return;
    const int64_t states =
        persistent(Category::Parameters) + persistent(Category::Gradients) + persistent(Category::Optimizer);
    for (int64_t cards = 2; cards <= max_cards; cards *= 2) {
      if (smallest_.promised_bytes() - states + states / cards > budget()) continue;
      return estimate(std::to_string(cards) +
                          " cards that share the states, each with this batch (an estimate: plans are for one card)",
                      states - states / cards, smallest_.predicted_step_us, samples_of(smallest_));
    }
  }

  const Job& job_;
  TrainingRequest request_;
  const Plan& smallest_;
  bool plans_ = false;
  std::vector<Alternative> found_;
};

// Gives the time per sample where the plan knows its batch, else the time per step.
std::string time_of(const Plan& plan, double sample_us) {
  return format_us(sample_us) + (plan.training.batch > 0 ? " per sample" : " per step");
}

}  // namespace

std::string refusal_text(const CompileResult& result, const Job& job, const TrainingRequest& training) {
  const Plan& smallest = result.plan;
  Alternatives alternatives(job, training, smallest);
  std::string enough, short_of;
  for (const Alternative& alternative : alternatives.all()) {
    std::string& list = alternatives.fits(alternative) ? enough : short_of;
    list += (list.empty() ? "" : ", ") + alternative.what + (alternative.estimated ? " about " : " ") +
            format_bytes(round_up_readable(alternative.needs_bytes)) + " (" + time_of(smallest, alternative.sample_us) +
            ")";
  }
  std::string text =
      shortfall(result) + "; takes " + time_of(smallest, smallest.predicted_step_us / samples_of(smallest));
  if (!enough.empty()) text += "; would fit: " + enough;
  if (!short_of.empty()) text += "; would need less: " + short_of;
  return text;
}

}  // namespace plimsoll
