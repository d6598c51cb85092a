#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/provenance.h"

// Imports classification losses. Ours compute in f32 or more; a cast restores the model's dtype at the end.

namespace plimsoll {
namespace {

Attrs loss_attrs(NodeContext& n) {
  Attrs attrs{{"reduction", n.attr_string("reduction", "mean")}};
  if (n.has_attr("ignore_index")) attrs.set("ignore_index", n.attr_int("ignore_index", 0));
  return attrs;
}

ValueList loss_operands(NodeContext& n) {
  ValueList operands{n.input(0), n.input(1)};
  if (n.has(2)) operands.push_back(n.input(2));
  return operands;
}

void import_cross_entropy(NodeContext& n) {
  ValueList operands = loss_operands(n);
  DType dtype = n.type(operands[0]).dtype;
  if (n.wants(1)) n.output(1, n.emit("log_softmax", {operands[0]}, {{"axis", 1}}));
  Attrs attrs = loss_attrs(n);
  if (const double smoothing = recorded_label_smoothing(n.node()); smoothing > 0)
    attrs.set("label_smoothing", smoothing);
  n.output(0, n.cast(n.emit("cross_entropy", operands, attrs), dtype));
}

void import_nll(NodeContext& n) {
  ValueList operands = loss_operands(n);
  DType dtype = n.type(operands[0]).dtype;
  n.output(0, n.cast(n.emit("nll_loss", operands, loss_attrs(n)), dtype));
}

constexpr ImportRow loss_table[] = {
    {"NegativeLogLikelihoodLoss", 12, import_nll},
    {"SoftmaxCrossEntropyLoss", 12, import_cross_entropy},
};

}  // namespace

llvm::ArrayRef<ImportRow> loss_rows() { return loss_table; }

}  // namespace plimsoll
