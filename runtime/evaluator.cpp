#include "runtime/evaluator.h"

#include "ir/op_def.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <cstring>

// Outputs add up over the samples of a data set: counts as they are, means by the weight of their samples. A batch that
// the data do not fill repeats one of its samples, and what the repeats add is subtracted again: a second call with
// that sample alone says how much it is. So any model's loss is right for any number of samples, without an op that
// knows which rows count.

namespace plimsoll {
namespace {

// [label, prediction] counts of so many classes.
struct ClassCounts {
  double right, labels, predictions;
};

std::vector<ClassCounts> count_by_class(const std::vector<double>& confusion) {
  const auto classes = static_cast<size_t>(std::llround(std::sqrt(static_cast<double>(confusion.size()))));
  std::vector<ClassCounts> counts(classes, ClassCounts{});
  for (size_t label = 0; label < classes; ++label)
    for (size_t prediction = 0; prediction < classes; ++prediction) {
      const double count = confusion[label * classes + prediction];
      counts[label].labels += count;
      counts[prediction].predictions += count;
      if (label == prediction) counts[label].right += count;
    }
  return counts;
}

// The mean of `score` over the classes that occur as a label or a prediction.
double mean_over_classes(const std::vector<double>& confusion, double (*score)(const ClassCounts& counts)) {
  double sum = 0;
  int64_t seen = 0;
  for (const ClassCounts& counts : count_by_class(confusion)) {
    if (counts.labels + counts.predictions < 0.5) continue;
    sum += score(counts);
    ++seen;
  }
  return sum / static_cast<double>(seen);
}

double f1(const ClassCounts& counts) { return 2 * counts.right / (counts.labels + counts.predictions); }
double overlap(const ClassCounts& counts) { return counts.right / (counts.labels + counts.predictions - counts.right); }

}  // namespace

const Metric* EvaluationResult::find(llvm::StringRef name) const {
  const auto found = llvm::find_if(metrics, [&](const Metric& metric) { return metric.name == name; });
  return found == metrics.end() ? nullptr : &*found;
}

bool is_better_when_larger(llvm::StringRef metric) {
  return metric == "accuracy" || metric == "f1" || metric == "miou" || starts_with(metric, "top");
}

Result<Evaluator> Evaluator::create(Session& session) {
  const std::optional<size_t> function = session.plan().find_function(evaluate_function);
  if (function) return Evaluator(session, *function);
  return usage_error("the plan has no function to evaluate with; compile it with --evaluate");
}

Evaluator::Evaluator(Session& session, size_t function)
    : session_(&session), function_(function), is_fed_(session.plan().functions[function].inputs.size(), true) {}

std::vector<InputSpec> Evaluator::inputs() const {
  std::vector<InputSpec> fed;
  for (const auto& input : llvm::enumerate(inputs_of(session_->plan(), function_)))
    if (is_fed_[input.index()]) fed.push_back(input.value());
  return fed;
}

void Evaluator::feed_predictions_only() {
  const Plan& plan = session_->plan();
  std::vector<bool> needed(plan.slots.size(), false);
  const auto need = [&](SlotId slot) {
    if (slot >= 0) needed[static_cast<size_t>(plan.storage_of(slot))] = true;
  };
  for (const PlanOutput* output : rows()) need(output->slot);
  // Of other stages' outputs this one may have a part, which it sends.
  for (const Instruction& instruction : function().instructions)
    if (instruction.op == "send") need(instruction.operands.front());
  for (const Instruction& instruction : llvm::reverse(function().instructions))
    if (llvm::any_of(instruction.results,
                     [&](SlotId result) { return needed[static_cast<size_t>(plan.storage_of(result))]; }))
      for (SlotId operand : instruction.operands) need(operand);
  for (const auto& input : llvm::enumerate(function().inputs))
    is_fed_[input.index()] = needed[static_cast<size_t>(input.value().slot)];
}

const Type& Evaluator::type_of(const PlanOutput& output) const {
  return session_->plan().slots[static_cast<size_t>(output.slot)].type;
}

std::vector<const PlanOutput*> Evaluator::rows() const {
  std::vector<const PlanOutput*> found;
  for (const PlanOutput& output : function().outputs)
    if (output.use == OutputUse::Rows) found.push_back(&output);
  return found;
}

// Inputs with another first dimension are the same for all samples.
void Evaluator::repeat_first_sample(llvm::ArrayRef<TensorView> inputs, int64_t from) const {
  for (const TensorView& input : inputs) {
    if (input.type.rank() == 0 || input.type.shape[0] != batch()) continue;
    const auto bytes = static_cast<size_t>(input.type.bytes() / batch());
    for (int64_t row = from; row < batch(); ++row)
      std::memcpy(input.as<char>() + static_cast<size_t>(row) * bytes, input.data, bytes);
  }
}

Result<int64_t> Evaluator::run_batch(llvm::function_ref<Status(llvm::ArrayRef<TensorView>)> fill) {
  Executor& executor = session_->executor();
  Result<llvm::ArrayRef<TensorView>> inputs = executor.next_inputs(function_);
  if (!inputs) return inputs.takeError();
  std::vector<TensorView> fed;
  for (size_t i = 0; i < inputs->size(); ++i)
    if (const TensorView& input = (*inputs)[i]; is_fed_[i])
      fed.push_back(input);
    else
      std::memset(input.data, 0, static_cast<size_t>(input.type.bytes()));
  if (Status s = fill(fed)) return s;
  return executor.run(function_);
}

Status Evaluator::add_outputs(int64_t run, double factor, Sums& sums) {
  const llvm::ArrayRef<PlanOutput> outputs = function().outputs;
  Result<llvm::ArrayRef<double>> read = session_->executor().outputs(function_, run);
  if (!read) return read.takeError();
  const std::vector<double> first(read->begin(), read->end());
  auto weight = static_cast<double>(batch());
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].name == "weight") weight = first[i];
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::vector<double>& sum = sums[i];
    if (outputs[i].use == OutputUse::Mean) {
      // The mean of no labels is no number.
      if (weight != 0) sum[0] += factor * weight * first[i];
    } else if (outputs[i].use == OutputUse::Sum && sum.size() == 1) {
      sum[0] += factor * first[i];
    } else if (outputs[i].use == OutputUse::Sum) {
      Status added = session_->executor().read(outputs[i].slot, [&](const TensorView& view) {
        for (size_t at = 0; at < sum.size(); ++at) sum[at] += factor * view.get(static_cast<int64_t>(at));
        return Status::success();
      });
      if (added) return added;
    }
  }
  return Status::success();
}

Status Evaluator::remove_repeats(int64_t repeats, Sums& sums, std::vector<Tensor> first_sample) {
  Result<int64_t> run = run_batch([&](llvm::ArrayRef<TensorView> inputs) {
    for (size_t i = 0; i < inputs.size(); ++i)
      std::memcpy(inputs[i].data, first_sample[i].data(), static_cast<size_t>(inputs[i].type.bytes()));
    repeat_first_sample(inputs, 1);
    return Status::success();
  });
  if (!run) return run.takeError();
  return add_outputs(*run, -static_cast<double>(repeats) / static_cast<double>(batch()), sums);
}

int64_t Evaluator::samples_of(int64_t data_rank, int64_t samples) const {
  return std::clamp<int64_t>(samples - data_rank * batch(), 0, batch());
}

bool Evaluator::waits_for_other_rows() const {
  // Another stage may have pieces of its weights, and all stages make as many calls.
  const Mesh& mesh = session_->plan().mesh;
  if (mesh[MeshAxis::Stage] > 1 && mesh[MeshAxis::Data] > 1) return true;
  return llvm::any_of(function().instructions, [](const Instruction& instruction) {
    return get_op(instruction.op).collective && instruction.attrs.get_string("axis") == axis_name(MeshAxis::Data);
  });
}

// A stage of a pipeline may have no inputs, and then does not know how many samples there are.
Result<Evaluator::Samples> Evaluator::samples_in(const BatchSource& data, int64_t batches) {
  const int64_t epoch = data.batches_per_epoch();
  if (epoch > 0) batches = batches == 0 ? epoch : std::min(batches, epoch);
  Samples found{batches, batches > 0 && epoch > 0 ? data.samples_in(batches - 1) : 0};
  const Plan& plan = session_->plan();
  if (plan.mesh[MeshAxis::Stage] > 1) {
    const auto ranks = static_cast<size_t>(plan.mesh.ranks()), own = 3 * static_cast<size_t>(session_->rank());
    std::vector<double> all(3 * ranks, 0.0);
    all[own] = static_cast<double>(epoch), all[own + 1] = static_cast<double>(found.batches);
    all[own + 2] = static_cast<double>(found.in_last);
    if (Status s = session_->add_over_ranks(all)) return s;
    for (size_t rank = 0; rank < ranks; ++rank)
      if (all[3 * rank] > 0) found = {static_cast<int64_t>(all[3 * rank + 1]), static_cast<int64_t>(all[3 * rank + 2])};
  }
  if (found.batches == 0) found.batches = default_batches;
  if (found.in_last == 0) found.in_last = batch() * plan.mesh[MeshAxis::Data];
  return found;
}

// Ranks along the tensor axis have the same rows, and all stages the same outputs: they count once.
Status Evaluator::add_over_ranks(Sums& sums) {
  const Mesh& mesh = session_->plan().mesh;
  const int64_t rank = session_->rank();
  const bool counts = mesh.coordinate(rank, MeshAxis::Tensor) == 0 && mesh.coordinate(rank, MeshAxis::Stage) == 0;
  std::vector<double> all;
  for (const std::vector<double>& each : sums)
    for (double number : each) all.push_back(counts ? number : 0);
  if (Status s = session_->add_over_ranks(all)) return s;
  auto next = all.begin();
  for (std::vector<double>& each : sums)
    for (double& number : each) number = *next++;
  return Status::success();
}

Status Evaluator::hand_out(int64_t first, int64_t samples, RowSink rows) {
  const auto samples_of_rank = [&](int64_t data_rank) { return samples_of(data_rank, samples); };
  for (const PlanOutput* output : this->rows())
    if (Status s = session_->executor().read(output->slot, [&](const TensorView& view) {
          return session_->collect_rows(view, samples_of_rank, [&](int64_t data_rank, const TensorView& of_rank) {
            return rows(*output, first + data_rank * batch(), of_rank);
          });
        }))
      return s;
  return Status::success();
}

Result<EvaluationResult> Evaluator::run(BatchSource& data, int64_t batches, RowSink rows) {
  const auto start = std::chrono::steady_clock::now();
  Result<Samples> there = samples_in(data, batches);
  if (!there) return there.takeError();
  Sums sums;
  for (const PlanOutput& output : function().outputs)
    sums.emplace_back(static_cast<size_t>(output.use == OutputUse::Sum ? type_of(output).elements() : 1), 0.0);
  if (Status s = data.seek(0)) return s;
  const bool waits = waits_for_other_rows();  // then all ranks make as many calls, though some have no samples left
  EvaluationResult result;
  const int64_t full = batch() * session_->plan().mesh[MeshAxis::Data];
  for (int64_t n = 0; n < there->batches; ++n) {
    const int64_t of_all = n + 1 < there->batches ? full : there->in_last,
                  samples = samples_of(session_->rows_of_rank(0).rank, of_all), repeats = batch() - samples;
    result.samples += of_all;
    if (samples == 0 && !waits) continue;  // of the last batch the other ranks have all
    const bool runs_again = waits ? of_all < full : repeats > 0;
    std::vector<Tensor> kept;  // inputs of a batch that the data do not fill
    Result<int64_t> run = run_batch([&](llvm::ArrayRef<TensorView> inputs) -> Status {
      if (Status s = data.next(inputs)) return s;
      if (!runs_again) return Status::success();
      if (samples == 0)
        for (const TensorView& input : inputs) std::memset(input.data, 0, static_cast<size_t>(input.type.bytes()));
      else
        repeat_first_sample(inputs, samples);
      for (const TensorView& input : inputs) kept.emplace_back(input.type, input.data);
      return Status::success();
    });
    if (!run) return run.takeError();
    if (Status s = add_outputs(*run, 1, sums)) return s;
    if (rows)
      if (Status s = hand_out(result.samples - of_all, of_all, rows)) return s;
    if (runs_again)
      if (Status s = remove_repeats(repeats, sums, std::move(kept))) return s;
  }
  if (Status s = add_over_ranks(sums)) return s;
  Result<std::vector<Metric>> found = metrics(sums, result.samples);
  if (!found) return found.takeError();
  result.metrics = std::move(*found);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

double Evaluator::sum_of(llvm::StringRef output, const Sums& sums, double otherwise) const {
  const llvm::ArrayRef<PlanOutput> outputs = function().outputs;
  const auto found = llvm::find_if(outputs, [&](const PlanOutput& each) { return each.name == output; });
  return found == outputs.end() ? otherwise : sums[static_cast<size_t>(found - outputs.begin())][0];
}

Result<std::vector<Metric>> Evaluator::metrics(const Sums& sums, int64_t samples) const {
  const double weight = sum_of("weight", sums, static_cast<double>(samples)), loss = sum_of("loss", sums, NAN) / weight;
  std::vector<Metric> found{{"loss", loss}};
  for (const std::string& asked : session_->plan().evaluation.metrics) {
    const std::string name = llvm::StringRef(asked).split(':').first.str();
    const llvm::ArrayRef<PlanOutput> outputs = function().outputs;
    const auto confusion = llvm::find_if(outputs, [](const PlanOutput& each) { return each.name == "confusion"; });
    if (name == "perplexity") {
      found.push_back({name, std::exp(loss)});
    } else if (name == "f1" || name == "miou") {
      if (confusion == outputs.end()) return model_error("the plan has no output to make the metric " + name + " from");
      found.push_back({name, mean_over_classes(sums[static_cast<size_t>(confusion - outputs.begin())],
                                               name == "f1" ? f1 : overlap)});
    } else if (name != "loss") {
      const auto output = llvm::find_if(outputs, [&](const PlanOutput& each) { return each.name == name; });
      if (output == outputs.end()) return model_error("the plan has no output to make the metric " + name + " from");
      found.push_back(
          {name, sum_of(name, sums, 0) / (output->use == OutputUse::Sum ? sum_of("counted", sums, 0) : weight)});
    }
  }
  return found;
}

}  // namespace plimsoll
