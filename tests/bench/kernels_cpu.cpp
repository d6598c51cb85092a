#include "runtime/cpu/kernels.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

// Times the CPU kernels on the shapes of one GPT-2 124M training step (batch 1, 256 tokens) and some
// convolutions: kernels_cpu [SECONDS_EACH]. The last column says how often the step runs the call; the sum
// is the time of a step in kernels alone.

using namespace plimsoll;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Returns the best of repeated runs, because the machine may be busy.
template <typename Body>
double best_seconds(double budget, Body&& body) {
  double best = 1e30;
  const double start = now();
  for (int runs = 0; runs < 3 || now() - start < budget; ++runs) {
    const double begin = now();
    body();
    best = std::min(best, now() - begin);
  }
  return best;
}

void fill(const TensorView& view) {
  uint32_t state = 12345;
  for (int64_t i = 0; i < view.elements(); ++i) {
    state = state * 1664525 + 1013904223;
    const double u = (state >> 8) * 0x1p-24;
    is_float(view.type.dtype) ? view.set(i, u + 0.1) : view.set_int(i, static_cast<int64_t>(u * 50));
  }
}

struct Line {
  const char* label;
  const char* op;
  Attrs attrs;
  std::vector<Type> operands;
  int times_per_step = 0;
};

Type f32(std::initializer_list<int64_t> shape) { return Type(DType::F32, llvm::ArrayRef<int64_t>(shape)); }
Type i64(std::initializer_list<int64_t> shape) { return Type(DType::I64, llvm::ArrayRef<int64_t>(shape)); }

double time_line(const CpuKernelTable& table, const Line& line, double budget) {
  const OpDef& op = get_op(line.op);
  llvm::SmallVector<const Type*, 8> types;
  for (const Type& type : line.operands) types.push_back(&type);
  const OpCall call(op, line.attrs, types);
  const Types result_types = llvm::cantFail(infer(call));
  std::vector<Tensor> tensors, results;
  tensors.reserve(line.operands.size());
  for (const Type& type : line.operands) tensors.emplace_back(type);
  results.reserve(result_types.size());
  for (const Type& type : result_types) results.emplace_back(type);
  llvm::SmallVector<TensorView, 8> operands, outs;
  for (const Tensor& tensor : tensors) {
    fill(tensor.view());
    operands.push_back(tensor.view());
  }
  for (const Tensor& tensor : results) outs.push_back(tensor.view());

  const CpuCandidate kernel = table.candidates(op, call, result_types).front();
  cpu::Library library;
  const std::unique_ptr<PreparedKernel> prepared = llvm::cantFail(kernel.prepare(library, call, result_types));
  Tensor workspace(Type(DType::U8, {kernel.workspace_bytes(call, result_types)}));
  const double seconds = best_seconds(budget, [&] {
    llvm::cantFail(kernel.launch({{call, operands, outs, workspace.data()}, prepared.get()}));
  });

  double bytes = 0;
  for (const Type& type : line.operands) bytes += static_cast<double>(type.bytes());
  for (const Type& type : result_types) bytes += static_cast<double>(type.bytes());
  const double flops = op.flops ? op.flops(call, result_types) : static_cast<double>(result_types[0].elements());
  std::printf("%-28s %-13s %10.1f us %8.1f GFLOP/s %7.1f GB/s   x %d\n", line.label, kernel.name().c_str(),
              seconds * 1e6, flops / seconds * 1e-9, bytes / seconds * 1e-9, line.times_per_step);
  return seconds * line.times_per_step;
}

std::vector<Line> gpt2_step() {
  const Attrs none, flip{{"transpose_w", int64_t{1}}}, axis2{{"axis", int64_t{2}}, {"eps", 1e-5}};
  const Attrs norm_grad{{"axis", int64_t{2}}, {"has_scale", int64_t{1}}, {"has_bias", int64_t{1}}};
  const Attrs heads{{"heads", int64_t{12}}, {"kv_heads", int64_t{12}}, {"scale", 0.125}, {"causal", int64_t{1}}};
  const Attrs tanh{{"approximate", std::string("tanh")}};
  const Attrs adam{{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.01}};
  const Type x = f32({1, 256, 768}), wide = f32({1, 256, 3072}), qkv = f32({1, 256, 2304}), stat = f32({1, 256, 1});
  const Type lse = f32({1, 12, 256}), vocabulary = f32({50257, 768}), logits = f32({256, 50257});
  auto linear_trio = [&](std::vector<Line>& lines, const char* name, int64_t in, int64_t out) {
    lines.push_back({name, "linear", none, {f32({256, in}), f32({in, out}), f32({out})}, 12});
    lines.push_back({name, "linear", flip, {f32({256, out}), f32({in, out})}, 12});
    lines.push_back({name, "linear_dw", none, {f32({256, in}), f32({256, out})}, 12});
    lines.push_back({name, "reduce_sum", {{"axes", Ints{0}}, {"keep_dims", int64_t{0}}}, {f32({256, out})}, 12});
  };
  std::vector<Line> lines;
  linear_trio(lines, "qkv projection", 768, 2304);
  linear_trio(lines, "attention projection", 768, 768);
  linear_trio(lines, "mlp up", 768, 3072);
  linear_trio(lines, "mlp down", 3072, 768);
  const std::vector<Line> rest{
      {"logits", "linear", flip, {f32({256, 768}), vocabulary}, 1},
      {"logits dx", "linear", none, {logits, vocabulary}, 1},
      {"logits dw", "linear_dw", flip, {f32({256, 768}), logits}, 1},
      {"split qkv", "split", {{"axis", int64_t{2}}, {"sizes", Ints{768, 768, 768}}}, {qkv}, 12},
      {"join qkv", "concat", {{"axis", int64_t{2}}}, {x, x, x}, 12},
      {"attention", "attention", heads, {x, x, x}, 12},
      {"attention backward", "attention_grad", heads, {x, x, x, x, lse, x}, 12},
      {"layer norm", "layer_norm", axis2, {x, f32({768}), f32({768})}, 25},
      {"layer norm backward", "layer_norm_grad", norm_grad, {x, x, stat, stat, f32({768})}, 25},
      {"gelu", "gelu", tanh, {wide}, 12},
      {"gelu backward", "gelu_grad", tanh, {wide, wide}, 12},
      {"residual", "add", none, {x, x}, 48},
      {"cross-entropy", "cross_entropy", none, {logits, i64({256})}, 1},
      {"cross-entropy backward", "cross_entropy_grad", none, {logits, i64({256}), f32({256}), f32({}), f32({})}, 1},
      {"token embedding", "gather", {{"axis", int64_t{0}}}, {vocabulary, i64({1, 256})}, 1},
      {"token embedding backward",
       "gather_grad",
       {{"axis", int64_t{0}}, {"size", int64_t{50257}}},
       {i64({1, 256}), x},
       1},
      {"tied embedding sum", "add_n", none, {vocabulary, vocabulary}, 1},
      {"norm of 7 M gradients", "sum_squares", none, {f32({7087872})}, 18},
      {"adamw on 7 M parameters",
       "adamw",
       adam,
       {f32({7087872}), f32({7087872}), f32({7087872}), f32({7087872}), i64({}), f32({})},
       18},
  };
  lines.insert(lines.end(), rest.begin(), rest.end());
  return lines;
}

std::vector<Line> others() {
  const Attrs pads{{"pads", Ints{1, 1, 1, 1}}};
  Attrs dx = pads, dw = pads;
  dx.set("shape", Ints{8, 64, 56, 56});
  dw.set("shape", Ints{64, 64, 3, 3});
  const Type x = f32({8, 64, 56, 56}), w = f32({64, 64, 3, 3});
  const Attrs window{{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}};
  return {
      {"conv 3x3", "conv", pads, {x, w}},
      {"conv 3x3 dx", "conv_dx", dx, {x, w}},
      {"conv 3x3 dw", "conv_dw", dw, {x, x}},
      {"batch norm", "batch_norm", {{"eps", 1e-5}}, {x, f32({64}), f32({64})}},
      {"batch norm backward", "batch_norm_grad", {{"eps", 1e-5}}, {x, x, f32({64}), f32({64}), f32({64})}},
      {"max pool", "max_pool", window, {f32({8, 64, 112, 112})}},
      {"max pool backward", "max_pool_grad", window, {f32({8, 64, 112, 112}), x}},
      {"transpose heads", "transpose", {{"perm", Ints{0, 2, 1, 3}}}, {f32({4, 256, 12, 64})}},
      {"transpose matrix", "transpose", {{"perm", Ints{1, 0}}}, {f32({3072, 768})}},
      {"softmax", "softmax", {{"axis", int64_t{1}}}, {f32({3072, 1024})}},
      {"dropout", "dropout", {{"ratio", 0.1}, {"id", int64_t{1}}}, {f32({3145728}), i64({2})}},
      {"cast to bf16", "cast", {{"to", DType::BF16}}, {f32({3145728})}},
  };
}

// Times the library's plain sgemm on the same matmul, to compare it with the prepared primitives.
void time_sgemm(const char* label, int64_t m, int64_t n, int64_t k, char transpose_b, double budget) {
  Tensor a(f32({m, k})), b(f32({k, n})), y(f32({m, n}));
  fill(a.view());
  fill(b.view());
  const double seconds = best_seconds(budget, [&] {
    dnnl_sgemm('N', transpose_b, m, n, k, 1, a.view().as<float>(), k, b.view().as<float>(), transpose_b == 'T' ? k : n,
               0, y.view().as<float>(), n);
  });
  std::printf("%-28s %-13s %10.1f us %8.1f GFLOP/s\n", label, "dnnl_sgemm", seconds * 1e6,
              2e-9 * static_cast<double>(m * n * k) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const double budget = argc > 1 ? std::atof(argv[1]) : 0.2;
  const CpuKernelTable table;
  double step = 0;
  for (const Line& line : gpt2_step()) step += time_line(table, line, budget);
  std::printf("kernels of one step: %.1f ms\n\n", step * 1e3);
  for (const Line& line : others()) time_line(table, line, budget);
  std::printf("\n");
  time_sgemm("qkv projection", 256, 2304, 768, 'N', budget);
  time_sgemm("qkv projection dx", 256, 768, 2304, 'T', budget);
  time_sgemm("mlp up", 256, 3072, 768, 'N', budget);
  time_sgemm("logits", 256, 50257, 768, 'T', budget);
  return 0;
}
