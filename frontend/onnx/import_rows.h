#pragma once

// One row per ONNX operator and form names the function that turns it into our ops.

#include "frontend/onnx/masked_writes.h"
#include "frontend/onnx/node_context.h"

namespace plimsoll {

// The attributes that our op takes over from a node under their names in ONNX, each with ONNX's default. An `axis` is
// normalised by the rank of input 0.
using RowAttrs = FixedList<AttrSpec, 4>;

struct ImportRow {
  llvm::StringLiteral op;  // "Conv", or "com.microsoft:Gelu" outside the standard domain
  int since;               // the first opset with this form; it holds until the next row
  void (*import)(NodeContext& n);
  llvm::StringLiteral target = "";  // our op, for functions that serve several operators
  RowAttrs attrs = {};
};

// One list per family and file.
llvm::ArrayRef<ImportRow> attention_rows();
llvm::ArrayRef<ImportRow> control_rows();
llvm::ArrayRef<ImportRow> conv_rows();
llvm::ArrayRef<ImportRow> cut_rows();
llvm::ArrayRef<ImportRow> elementwise_rows();
llvm::ArrayRef<ImportRow> fourier_rows();
llvm::ArrayRef<ImportRow> grid_rows();
llvm::ArrayRef<ImportRow> index_rows();
llvm::ArrayRef<ImportRow> loss_rows();
llvm::ArrayRef<ImportRow> matmul_rows();
llvm::ArrayRef<ImportRow> norm_rows();
llvm::ArrayRef<ImportRow> pool_rows();
llvm::ArrayRef<ImportRow> quantize_rows();
llvm::ArrayRef<ImportRow> random_rows();
llvm::ArrayRef<ImportRow> recurrent_rows();
llvm::ArrayRef<ImportRow> reduce_rows();
llvm::ArrayRef<ImportRow> resize_rows();
llvm::ArrayRef<ImportRow> sequence_rows();
llvm::ArrayRef<ImportRow> shape_rows();

// Emits the row's op on all inputs in order, with the row's attributes.
void import_as_is(NodeContext& n);

// einsum.cpp defines this.
void import_einsum(NodeContext& n);

// Imports a ScatterND whose inputs are the data, a mask and values.
const ImportRow& masked_write_row(MaskedWrite::Form form);

// All rows, by family.
std::vector<const ImportRow*> all_import_rows();
// Returns the row for an operator at an opset, or null.
const ImportRow* find_import_row(llvm::StringRef op, int64_t opset);

}  // namespace plimsoll
