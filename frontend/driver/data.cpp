#include "frontend/driver/commands.h"
#include "frontend/driver/run_data.h"
#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/support/units.h"
#include "runtime/data/describe.h"

#include "llvm/Support/Format.h"

#include <algorithm>
#include <limits>

// Says what a data set holds, and shows the first batch that a plan would train with: through the same readers and
// transforms as training, so that a wrong mean, a wrong crop or a wrong column is seen before the first step.

namespace plimsoll {
namespace {

void print_range(llvm::raw_ostream& out, const TensorView& values) {
  double least = std::numeric_limits<double>::infinity(), largest = -least, sum = 0;
  for (int64_t i = 0; i < values.elements(); ++i) {
    const double number = values.get(i);
    least = std::min(least, number);
    largest = std::max(largest, number);
    sum += number;
  }
  out << llvm::format("%.4g to %.4g, mean %.4g\n", least, largest, sum / static_cast<double>(values.elements()));
}

// What the step of the next batch takes, which may be one for shorter samples.
std::vector<InputSpec> inputs_of_next(const BatchSource& source, const Plan& plan,
                                      llvm::ArrayRef<ShorterInputs> shorter) {
  const std::optional<int64_t> length = source.next_length();
  for (const ShorterInputs& step : shorter)
    if (length == step.length) return step.inputs;
  return inputs_of(plan);
}

Status show_first_batch(BatchSource& source, llvm::ArrayRef<InputSpec> inputs, llvm::raw_ostream& out) {
  std::vector<Tensor> batch;
  std::vector<TensorView> views;
  for (const InputSpec& input : inputs) batch.emplace_back(input.type);
  for (const Tensor& tensor : batch) views.push_back(tensor.view());
  if (Status s = source.next(views)) return s;
  for (size_t i = 0; i < inputs.size(); ++i) {
    out << "  " << inputs[i].name << " " << to_string(inputs[i].type) << ": ";
    print_range(out, views[i]);
  }
  return Status::success();
}

Status show_match(const DataCommandOptions& options, llvm::raw_ostream& out) {
  Result<Plan> plan = load_plan(options.plan);
  if (!plan) return plan.takeError();
  if (Status s = check_plan(*plan)) return in_context(options.plan, std::move(s));
  const std::vector<InputSpec> inputs = inputs_of(*plan);
  DataOptions data_options{.seed = options.seed, .ranks = plan->mesh[MeshAxis::Data]};
  data_options.shorter = shorter_inputs_of(*plan);
  if (Status s = read_data_options(options.data_request, data_options)) return s;
  Result<std::unique_ptr<BatchSource>> source = open_data(options.data, inputs, data_options);
  if (!source) return source.takeError();
  const int64_t batches = (*source)->batches_per_epoch();
  out << "feeds " << options.plan;
  if (batches > 0)
    out << ": an epoch has " << format_count(batches) << " batches of " << (*source)->samples_per_batch()
        << " samples, " << format_count(batches / plan->training.accumulate) << " steps";
  out << "\nthe first batch:\n";
  return show_first_batch(**source, inputs_of_next(**source, *plan, data_options.shorter), out);
}

}  // namespace

Status data_command(const DataCommandOptions& options, Console& console) {
  Result<std::vector<std::string>> lines = describe_data(options.data);
  if (!lines) return lines.takeError();
  console.out << options.data << ": ";
  for (const std::string& line : *lines) console.out << line << "\n";
  return options.plan.empty() ? Status::success() : show_match(options, console.out);
}

}  // namespace plimsoll
