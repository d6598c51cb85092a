#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"

// Imports control flow that is known at import: the taken branch is inlined and loops are unrolled.

namespace plimsoll {
namespace {

constexpr int64_t max_iterations = 4096;

const onnx::GraphProto* body_of(NodeContext& n, llvm::StringRef attribute) {
  const onnx::AttributeProto* body = n.attr(attribute);
  if (body && body->has_g()) return &body->g();
  n.fail("has no " + attribute);
  return nullptr;
}

bool all_known(NodeContext& n, llvm::ArrayRef<Item> items) {
  if (llvm::any_of(items, [](const Item& item) { return item.kind == Item::Kind::Unknown; }))
    n.fail("its body could not be imported");
  return !n.failed();
}

void import_if(NodeContext& n) {
  int64_t condition = n.known_int(0, "condition");
  const onnx::GraphProto* branch = n.failed() ? nullptr : body_of(n, condition ? "then_branch" : "else_branch");
  if (!branch) return;
  std::vector<Item> outputs = n.importer().run_subgraph(*branch, {});
  if (!all_known(n, outputs)) return;
  for (size_t i = 0; i < std::min(outputs.size(), n.output_count()); ++i) n.output_item(i, outputs[i]);
}

ValueId stack(NodeContext& n, llvm::ArrayRef<ValueId> slices, int64_t axis) {
  std::vector<ValueId> rows;
  for (ValueId slice : slices) rows.push_back(n.unsqueeze(slice, std::min<int64_t>(axis, n.rank(slice))));
  return n.concat(rows, axis);
}

// Stops at the trip count, or when the condition is false. The condition must be known each time.
void import_loop(NodeContext& n) {
  const onnx::GraphProto* body = body_of(n, "body");
  int64_t trips = n.has(0) ? n.known_int(0, "trip count") : INT64_MAX;
  bool going = !n.has(1) || n.known_int(1, "condition") != 0;
  size_t carried = n.input_count() - std::min<size_t>(n.input_count(), 2);
  if (!n.failed() && static_cast<size_t>(body->output_size()) < 1 + carried) n.fail("its body lacks outputs");
  if (n.failed()) return;
  std::vector<Item> state;
  for (size_t i = 0; i < carried; ++i) state.push_back(n.item(i + 2));
  size_t scans = static_cast<size_t>(body->output_size()) - 1 - carried;
  std::vector<std::vector<ValueId>> scanned(scans);
  for (int64_t i = 0; i < trips && going; ++i) {
    if (i == max_iterations) return n.fail("runs more than " + llvm::Twine(max_iterations) + " times");
    std::vector<Item> arguments{Item::of(n.constant_value(Tensor::scalar_int(i))),
                                Item::of(n.constant_value(Tensor::scalar_int(1, DType::Bool)))};
    arguments.insert(arguments.end(), state.begin(), state.end());
    std::vector<Item> outputs = n.importer().run_subgraph(*body, arguments);
    if (!all_known(n, outputs)) return;
    TensorRef condition = n.constant(outputs[0].tensor);
    if (!condition) return n.fail("its condition is computed from data and cannot be known before running");
    going = condition->get(0) != 0;
    state.assign(outputs.begin() + 1, outputs.begin() + 1 + static_cast<long>(carried));
    for (size_t s = 0; s < scans; ++s) scanned[s].push_back(outputs[1 + carried + s].tensor);
  }
  for (size_t i = 0; i < carried; ++i) n.output_item(i, state[i]);
  for (size_t s = 0; s < scans; ++s) {
    if (n.wants(carried + s) && scanned[s].empty()) return n.fail("never runs, so the type of its output is unknown");
    if (n.wants(carried + s)) n.output(carried + s, stack(n, scanned[s], 0));
  }
}

// Imports the body once per element of the scanned inputs, forwards or backwards.
void import_scan(NodeContext& n) {
  const onnx::GraphProto* body = body_of(n, "body");
  auto scan_inputs = static_cast<size_t>(n.attr_int("num_scan_inputs", 0));
  ValueList inputs = n.inputs();
  if (!n.failed() && (scan_inputs < 1 || scan_inputs > inputs.size()))
    n.fail("num_scan_inputs is " + llvm::Twine(scan_inputs));
  size_t carried = inputs.size() - std::min(scan_inputs, inputs.size());
  if (!n.failed() && static_cast<size_t>(body->output_size()) < carried) n.fail("its body lacks outputs");
  if (n.failed()) return;
  size_t scans = static_cast<size_t>(body->output_size()) - carried;
  auto list = [&](llvm::StringRef name, size_t size) {
    Ints values = n.attr_ints(name);
    values.resize(size, 0);
    return values;
  };
  Ints in_axes = list("scan_input_axes", scan_inputs), in_turned = list("scan_input_directions", scan_inputs);
  Ints out_axes = list("scan_output_axes", scans), out_turned = list("scan_output_directions", scans);
  for (size_t i = 0; i < scan_inputs; ++i) in_axes[i] = n.axis(in_axes[i], n.rank(inputs[carried + i]));
  int64_t length = n.dim(inputs[carried], in_axes[0]);
  if (length > max_iterations) n.fail("runs more than " + llvm::Twine(max_iterations) + " times");
  std::vector<Item> state;
  for (size_t i = 0; i < carried; ++i) state.push_back(n.item(i));
  std::vector<std::vector<ValueId>> scanned(scans);
  for (int64_t t = 0; t < length && !n.failed(); ++t) {
    std::vector<Item> arguments = state;
    for (size_t i = 0; i < scan_inputs; ++i) {
      const int64_t at = in_turned[i] ? length - 1 - t : t;
      arguments.push_back(Item::of(n.select(inputs[carried + i], in_axes[i], at)));
    }
    std::vector<Item> outputs = n.importer().run_subgraph(*body, arguments);
    if (!all_known(n, outputs)) return;
    state.assign(outputs.begin(), outputs.begin() + static_cast<long>(carried));
    for (size_t s = 0; s < scans; ++s) scanned[s].push_back(outputs[carried + s].tensor);
  }
  for (size_t i = 0; i < carried; ++i) n.output_item(i, state[i]);
  for (size_t s = 0; s < scans && !n.failed(); ++s) {
    if (out_turned[s]) std::reverse(scanned[s].begin(), scanned[s].end());
    n.output(carried + s, stack(n, scanned[s], n.axis(out_axes[s], n.rank(scanned[s].front()) + 1)));
  }
}

constexpr ImportRow control_table[] = {
    {"If", 1, import_if},
    {"Loop", 11, import_loop},
    {"Scan", 9, import_scan},
};

}  // namespace

llvm::ArrayRef<ImportRow> control_rows() { return control_table; }

}  // namespace plimsoll
