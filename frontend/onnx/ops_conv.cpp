#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"
#include "frontend/onnx/windows.h"
#include "ir/fold.h"
#include "ir/support/strings.h"

// Imports convolutions and transposed convolutions.

namespace plimsoll {
namespace {

bool check_spatial(NodeContext& n, ValueId x, ValueId w) {
  if (n.rank(x) < 3 || n.rank(w) != n.rank(x))
    n.fail("needs [N, C, spatial...] and weights of the same rank, got " + to_string(n.type(x)) + " and " +
           to_string(n.type(w)));
  return !n.failed();
}

// PyTorch's exporter adds a bias of zeros to a convolution without bias.
bool is_zero(NodeContext& n, ValueId value) {
  std::optional<ConstantView> constant = find_constant(n.importer().graph(), value);
  if (!constant) return false;
  for (int64_t i = 0; i < constant->base->type().elements(); ++i)
    if (constant->base->get(i) != 0) return false;
  return true;
}

ValueList conv_operands(NodeContext& n) {
  ValueList operands{n.input(0), n.input(1)};
  if (n.has(2) && !n.failed() && !is_zero(n, n.input(2))) operands.push_back(n.input(2));
  return operands;
}

void import_conv(NodeContext& n) {
  ValueList operands = conv_operands(n);
  if (!check_spatial(n, operands[0], operands[1])) return;
  NodeWindow window = read_window(n, n.dims_from(operands[0], 2), n.dims_from(operands[1], 2), WindowFor::Input);
  Attrs attrs = window.attrs();
  attrs.set("groups", n.attr_int("group", 1));
  n.output(0, n.emit("conv", operands, attrs));
}

// An output shape, or SAME, decides the padding. If it would be negative, the output grows instead.
void fit_output(NodeContext& n, ValueId x, NodeWindow& window, Ints& output_padding) {
  std::string auto_pad = n.attr_string("auto_pad", "NOTSET");
  Ints wanted = n.attr_ints("output_shape");
  if (static_cast<int64_t>(wanted.size()) == n.rank(x)) wanted.erase(wanted.begin(), wanted.begin() + 2);
  bool same = starts_with(auto_pad, "SAME");
  if (wanted.empty() && !same) return;
  if (!wanted.empty() && wanted.size() != window.rank())
    n.fail("output_shape has " + llvm::Twine(wanted.size()) + " entries for " + llvm::Twine(window.rank()) +
           " spatial dimensions");
  for (int64_t number : wanted) check_window_number(n, number);
  if (n.failed()) return;
  Ints total;
  for (size_t d = 0; d < window.rank(); ++d) {
    int64_t in = n.dim(x, static_cast<int64_t>(d) + 2);
    int64_t out = wanted.empty() ? in * window.strides[d] : wanted[d];
    int64_t full = window.strides[d] * (in - 1) + output_padding[d] + window.span(d);
    if (out > full) output_padding[d] += out - full;
    total.push_back(std::max<int64_t>(0, full - out));
  }
  window.pads = split_pads(total, auto_pad != "SAME_UPPER");
}

void import_conv_transpose(NodeContext& n) {
  ValueList operands = conv_operands(n);
  if (!check_spatial(n, operands[0], operands[1])) return;
  NodeWindow window = read_window(n, n.dims_from(operands[0], 2), n.dims_from(operands[1], 2), WindowFor::Transpose);
  Ints output_padding = n.attr_ints("output_padding");
  if (output_padding.empty()) output_padding.assign(window.rank(), 0);
  if (output_padding.size() != window.rank())
    n.fail("output_padding has " + llvm::Twine(output_padding.size()) + " entries for " + llvm::Twine(window.rank()) +
           " spatial dimensions");
  for (int64_t number : output_padding) check_window_number(n, number);
  if (n.failed()) return;
  fit_output(n, operands[0], window, output_padding);
  if (n.failed()) return;
  Attrs attrs = window.attrs();
  attrs.set("groups", n.attr_int("group", 1));
  attrs.set("output_padding", output_padding);
  n.output(0, n.emit("conv_transpose", operands, attrs));
}

constexpr ImportRow conv_table[] = {
    {"Conv", 1, import_conv},
    {"ConvTranspose", 1, import_conv_transpose},
};

}  // namespace

llvm::ArrayRef<ImportRow> conv_rows() { return conv_table; }

}  // namespace plimsoll
