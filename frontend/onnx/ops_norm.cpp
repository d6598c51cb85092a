#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"

// Imports normalisations and softmax.

namespace plimsoll {
namespace {

double epsilon(NodeContext& n) { return n.attr_float("epsilon", 1e-5f); }

// Normalises with the batch's statistics and updates the running ones, which are states of the model.
void train_batch_norm(NodeContext& n) {
  ValueList results = n.emit_all("batch_norm", {n.input(0), n.input(1), n.input(2)}, {{"eps", epsilon(n)}});
  n.output(0, results[0]);
  Importer& importer = n.importer();
  for (size_t i : {1, 2}) {
    ValueId running = n.input(i + 2);
    if (n.failed()) return;
    bool follows = n.options().training && importer.is_state(running);
    if (!follows && !n.wants(i)) continue;
    ValueId so_far = follows ? importer.state_so_far(running) : running;
    ValueId next = n.emit("running_update", {so_far, results[i]}, {{"momentum", n.attr_float("momentum", 0.9f)}});
    n.output(i, next);
    if (n.failed() || !follows) continue;
    importer.mark_buffer(running);
    importer.update_state(running, next);
  }
  for (size_t i : {3, 4})  // before opset 14 these are the batch's statistics
    if (n.wants(i)) n.output(i, results[i - 2]);
}

void import_batch_norm(NodeContext& n) {
  // Before opset 14 more than one output means training.
  bool exported_for_training = n.attr_int("training_mode", 0) != 0 || (n.opset() < 14 && n.wants(1));
  bool train = n.options().training ? !n.options().freeze_norm : exported_for_training;
  if (train) return train_batch_norm(n);
  ValueList operands = n.inputs();
  n.output(0, n.emit("batch_norm_inference", operands, {{"eps", epsilon(n)}}));
  for (size_t i : {3, 4}) {
    if (n.failed()) return;
    n.importer().mark_buffer(operands[i]);
    n.output(i - 2, operands[i]);
  }
}

// Returns a scale or bias that broadcasts to `shape` as in numpy.
ValueId spread(NodeContext& n, ValueId parameter, llvm::ArrayRef<int64_t> shape) {
  if (n.failed() || parameter == ValueId::None) return parameter;
  std::optional<Shape> common = broadcast_shapes(n.shape(parameter), shape);
  if (common && llvm::ArrayRef<int64_t>(*common) == shape) return n.expand(parameter, shape);
  n.fail("a scale or bias of " + to_string(n.type(parameter)) + " does not spread over " + to_string(shape));
  return ValueId::None;
}

// Layer norm has a bias and gives its statistics, RMS norm does neither.
void import_row_norm(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t axis = n.axis(n.attr_int("axis", -1), n.rank(x));
  Shape normalised = n.dims_from(x, axis);
  ValueList operands{x, spread(n, n.input(1), normalised)};
  if (n.has(2)) operands.push_back(spread(n, n.input(2), normalised));
  ValueList results = n.emit_all(n.target(), operands, {{"axis", axis}, {"eps", epsilon(n)}});
  for (size_t i = 0; i < n.output_count() && i < results.size(); ++i) n.output(i, results[i]);
}

void emit_group_norm(NodeContext& n, ValueId x, ValueId scale, ValueId bias, int64_t groups) {
  n.output(0, n.emit("group_norm", {x, scale, bias}, {{"groups", groups}, {"eps", epsilon(n)}}));
}

void import_instance_norm(NodeContext& n) {
  ValueId x = n.input(0);
  emit_group_norm(n, x, n.input(1), n.input(2), n.dim(x, 1));
}

void import_group_norm(NodeContext& n) {
  emit_group_norm(n, n.input(0), n.input(1), n.input(2), n.attr_int("num_groups", 1));
}

// Opset 18 has one scale and bias per group instead of per channel.
void import_group_norm_18(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t groups = n.attr_int("num_groups", 1), channels = n.dim(x, 1);
  auto per_channel = [&](ValueId parameter) {
    if (n.failed() || n.dim(parameter, 0) == channels) return parameter;
    return n.reshape(n.expand(n.reshape(parameter, {groups, 1}), {groups, channels / groups}), {channels});
  };
  if (groups < 1 || channels % groups != 0)
    return n.fail(llvm::Twine(channels) + " channels do not divide into " + llvm::Twine(groups) + " groups");
  emit_group_norm(n, x, per_channel(n.input(1)), per_channel(n.input(2)), groups);
}

// Divides x by its p-norm along one axis; the result is 0 where the norm is 0.
void import_lp_normalization(NodeContext& n) {
  ValueId x = n.input(0);
  Ints axes{n.axis(n.attr_int("axis", -1), n.rank(x))};
  int64_t p = n.attr_int("p", 2);
  if (p != 1 && p != 2) return n.fail("p is " + llvm::Twine(p) + ", not 1 or 2");
  DType dtype = n.type(x).dtype;
  ValueId sum = n.reduce("reduce_sum", p == 1 ? n.emit("abs", {x}) : n.emit("mul", {x, x}), axes, true);
  // Zeros are replaced before the root, because its derivative at 0 is infinite.
  sum = n.emit("where", {n.emit("equal", {sum, n.scalar(0, dtype)}), n.scalar(1, dtype), sum});
  n.output(0, n.emit("div", {x, p == 1 ? sum : n.emit("sqrt", {sum})}));
}

void import_mean_variance(NodeContext& n) {
  ValueId x = n.input(0);
  Ints axes = n.has_attr("axes") ? n.attr_ints("axes") : Ints{0, 2, 3};
  axes = n.axes(axes, n.rank(x));
  ValueId centred = n.emit("sub", {x, n.reduce("reduce_mean", x, axes, true)});
  ValueId deviation = n.emit("sqrt", {n.reduce("reduce_mean", n.emit("mul", {centred, centred}), axes, true)});
  n.output(0, n.emit("div", {centred, n.emit("add", {deviation, n.scalar(1e-9, n.type(x).dtype)})}));
}

// Before opset 13 the dimensions from the axis on count as one.
void import_softmax_flat(NodeContext& n) {
  ValueId x = n.input(0);
  const Shape shape = n.shape(x);
  int64_t axis = n.axis(n.attr_int("axis", 1), n.rank(x));
  if (n.failed()) return;
  llvm::ArrayRef<int64_t> dims = shape;
  ValueId flat = n.reshape(x, {element_count(dims.take_front(axis)), element_count(dims.drop_front(axis))});
  n.output(0, n.reshape(n.emit(n.target(), {flat}, {{"axis", 1}}), shape));
}

constexpr ImportRow norm_table[] = {
    {"BatchNormalization", 7, import_batch_norm},
    {"GroupNormalization", 18, import_group_norm_18},
    {"GroupNormalization", 21, import_group_norm},
    {"Hardmax", 1, import_softmax_flat, "hardmax"},
    {"Hardmax", 13, import_as_is, "hardmax", {{"axis", -1}}},
    {"InstanceNormalization", 6, import_instance_norm},
    {"LRN", 1, import_as_is, "lrn", {{"size", 1}, {"alpha", 1e-4f}, {"beta", 0.75}, {"bias", 1.0}}},
    {"LayerNormalization", 17, import_row_norm, "layer_norm"},
    {"LogSoftmax", 1, import_softmax_flat, "log_softmax"},
    {"LogSoftmax", 13, import_as_is, "log_softmax", {{"axis", -1}}},
    {"LpNormalization", 1, import_lp_normalization},
    {"MeanVarianceNormalization", 9, import_mean_variance},
    {"RMSNormalization", 23, import_row_norm, "rms_norm"},
    {"Softmax", 1, import_softmax_flat, "softmax"},
    {"Softmax", 13, import_as_is, "softmax", {{"axis", -1}}},
};

}  // namespace

llvm::ArrayRef<ImportRow> norm_rows() { return norm_table; }

}  // namespace plimsoll
