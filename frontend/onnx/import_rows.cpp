#include "frontend/onnx/import_rows.h"

namespace plimsoll {

void import_as_is(NodeContext& n) {
  const ValueList operands = n.inputs();
  Attrs attrs;
  for (const AttrSpec& attr : n.row().attrs) {
    switch (attr.kind) {
      case AttrKind::Int: attrs.set(attr.name, n.attr_int(attr.name, attr.integer)); break;
      case AttrKind::Float: attrs.set(attr.name, n.attr_float(attr.name, attr.number)); break;
      default: attrs.set(attr.name, n.attr_string(attr.name, attr.text));
    }
    if (attr.name == "axis" && !n.failed()) attrs.set("axis", n.axis(attrs.get_int("axis"), n.rank(operands.front())));
  }
  n.output(0, n.emit(n.target(), operands, std::move(attrs)));
}

std::vector<const ImportRow*> all_import_rows() {
  std::vector<const ImportRow*> rows;
  for (auto family : {elementwise_rows, shape_rows, cut_rows, index_rows, reduce_rows, matmul_rows, conv_rows,
                      pool_rows, resize_rows, grid_rows, fourier_rows, norm_rows, attention_rows, recurrent_rows,
                      loss_rows, random_rows, sequence_rows, control_rows, quantize_rows})
    for (const ImportRow& row : family()) rows.push_back(&row);
  return rows;
}

const ImportRow* find_import_row(llvm::StringRef op, int64_t opset) {
  static const auto by_op = [] {
    llvm::StringMap<llvm::SmallVector<const ImportRow*, 2>> map;
    for (const ImportRow* row : all_import_rows()) map[row->op].push_back(row);
    return map;
  }();
  auto at = by_op.find(op);
  if (at == by_op.end()) return nullptr;
  const ImportRow* best = nullptr;
  for (const ImportRow* row : at->second)
    if (row->since <= opset && (!best || row->since > best->since)) best = row;
  return best;
}

}  // namespace plimsoll
