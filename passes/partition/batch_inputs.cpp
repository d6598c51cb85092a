#include "passes/partition/divide_batch.h"

// Which inputs carry the samples of the batch: by a trial on a copy of the graph for each way to divide it.

#include <numeric>
#include <set>

namespace plimsoll {
namespace {

int64_t smallest_divisor(int64_t number) {
  for (int64_t divisor = 2; divisor * divisor <= number; ++divisor)
    if (number % divisor == 0) return divisor;
  return number;
}

Status ambiguous(const Graph& graph, llvm::ArrayRef<ValueId> inputs) {
  std::string list;
  for (ValueId input : inputs)
    list += (list.empty() ? "" : ", ") + graph.value(input).name + " has " +
            std::to_string(graph.type(input).shape[0]) + " rows";
  return model_error("which inputs carry the samples of the batch cannot be told: " + list +
                     "; export one that all samples share with a leading dimension of 1");
}

// An input that nobody reads goes with one of its size.
BatchInputs with_unread(const Graph& graph, std::vector<ValueId> batch, llvm::ArrayRef<ValueId> inputs) {
  auto rows_of = [&](ValueId input) { return graph.type(input).shape[0]; };
  BatchInputs result;
  llvm::copy_if(inputs, std::back_inserter(result.inputs), [&](ValueId input) {
    return llvm::is_contained(batch, input) ||
           (!graph.is_used(input) && llvm::any_of(batch, [&](ValueId b) { return rows_of(b) == rows_of(input); }));
  });
  const int64_t first = rows_of(result.inputs.front());
  result.samples = llvm::all_of(result.inputs, [&](ValueId input) { return rows_of(input) == first; }) ? first : 0;
  return result;
}

}  // namespace

Result<BatchInputs> find_batch(const Graph& graph) {
  auto rows_of = [&](ValueId input) { return graph.type(input).shape[0]; };
  std::vector<ValueId> with_rows, inputs;  // `inputs`: of more than one row
  llvm::copy_if(graph.inputs, std::back_inserter(with_rows), [&](ValueId i) { return graph.type(i).rank() > 0; });
  llvm::copy_if(with_rows, std::back_inserter(inputs), [&](ValueId i) { return rows_of(i) > 1; });
  if (inputs.empty()) return BatchInputs{with_rows.empty() ? 0 : rows_of(with_rows.front()), with_rows};
  if (inputs.size() == 1) return BatchInputs{rows_of(inputs.front()), inputs};

  const bool equal = llvm::all_of(inputs, [&](ValueId input) { return rows_of(input) == rows_of(inputs.front()); });
  int64_t common = 0;
  for (ValueId input : inputs) common = std::gcd(common, rows_of(input));
  std::set<int64_t> parts;  // ways to divide that make each input either rows or whole
  if (common > 1)
    parts = {smallest_divisor(common)};
  else
    for (ValueId input : inputs) parts.insert(smallest_divisor(rows_of(input)));
  std::vector<ValueId> batch;
  for (int64_t each : parts) {
    std::vector<ValueId> dividing;
    llvm::copy_if(inputs, std::back_inserter(dividing), [&](ValueId i) { return rows_of(i) % each == 0; });
    std::vector<ValueId> found = inputs_used_as_rows(graph, each, dividing);
    if (!batch.empty() && !found.empty() && found != batch) return ambiguous(graph, {batch.front(), found.front()});
    if (!found.empty()) batch = std::move(found);
  }
  if (batch.empty() && !equal) return ambiguous(graph, inputs);
  if (batch.empty()) batch = inputs;
  return with_unread(graph, std::move(batch), inputs);
}

}  // namespace plimsoll
