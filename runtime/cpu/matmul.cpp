#include "kernels/cpu/matmul/matmul.h"
#include "ir/f8_scales.h"
#include "ir/support/align.h"
#include "kernels/cpu/elementwise/f8.h"
#include "kernels/cpu/reduce/reduce.h"
#include "runtime/cpu/kernels.h"
#include "runtime/kernels/elementwise.h"
#include "runtime/kernels/matmul.h"

// matmul, linear and linear's weight gradient: each is one prepared oneDNN matmul. The scratch memory of all
// of them is one buffer in the prepared state, as large as the largest wants (some 100 KiB), so plans need no
// workspace here.

namespace plimsoll {
namespace {

struct PreparedMatmulKernel : PreparedKernel {
  std::unique_ptr<cpu::PreparedMatmul> matmul;
};

Result<std::unique_ptr<PreparedKernel>> prepare_matmul_plan(cpu::Library& library, const cpu::MatmulShape& shape) {
  auto prepared = std::make_unique<PreparedMatmulKernel>();
  std::string why;
  prepared->matmul = cpu::PreparedMatmul::create(library, shape, why);
  if (!prepared->matmul) return system_error("oneDNN refuses a matmul: " + why);
  return prepared;
}

// A row-major matrix as an operand of a matmul: steps along its rows and columns as the matmul sees them.
struct Steps {
  int64_t row, column;
  Steps(int64_t stored_columns, bool transposed)
      : row(transposed ? 1 : stored_columns), column(transposed ? stored_columns : 1) {}
};

Status launch(const CpuCall& k, const float* a, const float* b, const float* bias = nullptr,
              const float* addend = nullptr) {
  auto* prepared = static_cast<PreparedMatmulKernel*>(k.prepared);
  if (prepared->matmul->run(k.out<float>(0), a, b, bias, addend)) return Status::success();
  return system_error("oneDNN failed in a matmul");
}

// ---- matmul ----

Result<std::unique_ptr<PreparedKernel>> prepare_matmul(cpu::Library& library, const OpCall& call,
                                                       llvm::ArrayRef<Type> results) {
  const Type &a = call["a"], &b = call["b"], &y = results[0];
  const bool transpose_a = call.get_int("transpose_a"), transpose_b = call.get_int("transpose_b");
  const Steps a_steps(a.shape.back(), transpose_a), b_steps(b.shape.back(), transpose_b);
  return prepare_matmul_plan(library, {.batch = matmul_batch(y, a, b),
                                       .rows = y.shape[y.rank() - 2],
                                       .columns = y.shape[y.rank() - 1],
                                       .depth = a.shape[a.rank() - (transpose_a ? 2 : 1)],
                                       .a_row_step = a_steps.row,
                                       .a_depth_step = a_steps.column,
                                       .b_depth_step = b_steps.row,
                                       .b_column_step = b_steps.column,
                                       .bias = false});
}

Status launch_matmul(const CpuCall& k) { return launch(k, k.in<float>("a"), k.in<float>("b")); }

// ---- linear ----

Result<std::unique_ptr<PreparedKernel>> prepare_linear(cpu::Library& library, const OpCall& call,
                                                       llvm::ArrayRef<Type> results) {
  const Type &x = call["x"], &w = call["w"];
  const Steps w_steps(w.shape[1], call.get_int("transpose_w"));
  return prepare_matmul_plan(library, {.rows = rows_of(x),
                                       .columns = results[0].shape.back(),
                                       .depth = x.shape.back(),
                                       .a_row_step = x.shape.back(),
                                       .a_depth_step = 1,
                                       .b_depth_step = w_steps.row,
                                       .b_column_step = w_steps.column,
                                       .bias = call.has("bias"),
                                       .addend = call.has("addend")});
}

Status launch_linear(const CpuCall& k) {
  return launch(k, k.in<float>("x"), k.in<float>("w"), k.in<float>("bias"), k.in<float>("addend"));
}

Result<std::unique_ptr<PreparedKernel>> prepare_linear_dw(cpu::Library& library, const OpCall& call,
                                                          llvm::ArrayRef<Type> results) {
  const WeightGradientSides sides(call);
  return prepare_matmul_plan(library, {.rows = results[0].shape[0],
                                       .columns = results[0].shape[1],
                                       .depth = rows_of(call["x"]),
                                       .a_row_step = 1,
                                       .a_depth_step = call[sides.left].shape.back(),
                                       .b_depth_step = call[sides.right].shape.back(),
                                       .b_column_step = 1,
                                       .bias = false,
                                       .addend = call.has("addend")});
}

Status launch_linear_dw(const CpuCall& k) {
  const WeightGradientSides sides(k.call);
  if (Status s = launch(k, k.in<float>(sides.left), k.in<float>(sides.right), nullptr, k.in<float>("addend"))) return s;
  if (!k.call.gives("dbias")) return Status::success();
  const Type& dy = k.call["dy"];
  cpu::reduce(cpu::Reduction::Sum, {2, {rows_of(dy), dy.shape.back()}, {true, false}}, k.out<float>("dbias"),
              k.in<float>("dy"));
  return Status::success();
}

// ---- linear_f8: a product of f32 copies, which processors have units for ----

int64_t copy_bytes(const Type& codes) { return align_up(codes.elements() * int64_t{sizeof(float)}, 64); }

int64_t linear_f8_workspace(const OpCall& call, llvm::ArrayRef<Type>) {
  return copy_bytes(call["x"]) + copy_bytes(call["w"]);
}

Result<std::unique_ptr<PreparedKernel>> prepare_linear_f8(cpu::Library& library, const OpCall& call,
                                                          llvm::ArrayRef<Type>) {
  const Type &x = call["x"], &w = call["w"];
  return prepare_matmul_plan(library, {.rows = rows_of(x),
                                       .columns = w.shape[0],
                                       .depth = w.shape[1],
                                       .a_row_step = w.shape[1],
                                       .a_depth_step = 1,
                                       .b_depth_step = 1,
                                       .b_column_step = w.shape[1],
                                       .bias = call.has("bias"),
                                       .addend = call.has("addend")});
}

void widen_codes(const CpuCall& k, PortKey codes, PortKey scales, float* into) {
  const Type& type = k.call[codes];
  const int64_t rows = rows_of(type), columns = type.shape.back();
  const F8Grid grid = f8_grid(*f8_scales_of(k.call[scales], rows, columns), rows, columns);
  cpu::from_f8(k.in<uint8_t>(codes), rows, columns, code_numbers(dtype_name(type.dtype)).values.data(),
               k.in<float>(scales), {grid.block_rows, grid.block_columns, grid.row_step, grid.column_step}, into);
}

Status launch_linear_f8(const CpuCall& k) {
  auto* x = k.scratch<float>();
  auto* w = reinterpret_cast<float*>(k.scratch<std::byte>() + copy_bytes(k.call["x"]));
  widen_codes(k, "x", "x_scale", x);
  widen_codes(k, "w", "w_scale", w);
  return launch(k, x, w, k.in<float>("bias"), k.in<float>("addend"));
}

bool accepts_linear_f8(const OpCall&, llvm::ArrayRef<Type> results) { return results[0].dtype == DType::F32; }

bool accepts_matmul(const OpCall& call, llvm::ArrayRef<Type> results) {
  return all_f32(call, results) && results[0].rank() <= 10;
}

constexpr CpuKernel matmul_table[] = {
    {op_matmul, "onednn", accepts_matmul, launch_matmul, nullptr, prepare_matmul},
    {op_linear, "onednn", all_f32, launch_linear, nullptr, prepare_linear},
    {op_linear_dw, "onednn", all_f32, launch_linear_dw, nullptr, prepare_linear_dw},
    {op_linear_f8, "onednn", accepts_linear_f8, launch_linear_f8, linear_f8_workspace, prepare_linear_f8},
};

}  // namespace

llvm::ArrayRef<CpuKernel> matmul_kernels() { return matmul_table; }

}  // namespace plimsoll
