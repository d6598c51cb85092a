#include "kernels/cpu/matmul/matmul.h"

#include "kernels/cpu/common/library.h"

#include <algorithm>
#include <array>

// One matmul primitive for the whole batch. Identical shapes share their generated code through oneDNN's own
// cache, so a model with many equal layers pays for one. On a Zen 4 core the primitive and dnnl_sgemm both
// reach 105 to 115 GFLOP/s (tests/bench/kernels_cpu.cpp); the primitive is used because its scratch memory is
// ours and counted.

namespace plimsoll::cpu {

using dnnl::memory;

struct PreparedMatmul::State {
  Library& library;
  int64_t results = 0, columns = 0;
  bool empty_depth = false;
  dnnl::primitive primitive;
  memory a, b, bias, y, scratch;
  std::array<dnnl_exec_arg_t, 5> arguments{};
  int argument_count = 0;
};

namespace {

// Leading dimensions first, then the matrix. Repeated ones have size 1, which oneDNN broadcasts.
memory::desc matrix_desc(const LoopNest<3>& batch, int tensor, int64_t rows, int64_t columns, int64_t row_step,
                         int64_t column_step) {
  memory::dims sizes, strides;
  for (int d = 0; d < batch.rank; ++d) {
    const bool repeats = batch.strides[tensor][d] == 0;
    sizes.push_back(repeats ? 1 : batch.sizes[d]);
    strides.push_back(repeats ? rows * columns : batch.strides[tensor][d]);
  }
  sizes.insert(sizes.end(), {rows, columns});
  strides.insert(strides.end(), {row_step, column_step});
  return memory::desc(sizes, memory::data_type::f32, strides);
}

memory::desc bias_desc(int batch_rank, int64_t columns) {
  memory::dims sizes(static_cast<size_t>(batch_rank) + 1, 1), strides(sizes.size() + 1, columns);
  sizes.push_back(columns);
  strides.back() = 1;
  return memory::desc(sizes, memory::data_type::f32, strides);
}

}  // namespace

PreparedMatmul::PreparedMatmul(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreparedMatmul::~PreparedMatmul() = default;

std::unique_ptr<PreparedMatmul> PreparedMatmul::create(Library& library, const MatmulShape& shape, std::string& why) {
  auto state = std::make_unique<State>(State{.library = library});
  const LoopNest<3> batch = collapse(shape.batch);
  state->results = batch.iterations() * shape.rows * shape.columns;
  state->columns = shape.columns;
  state->empty_depth = shape.depth == 0;
  if (state->results == 0 || state->empty_depth)
    return std::unique_ptr<PreparedMatmul>(new PreparedMatmul(std::move(state)));
  try {
    const dnnl::engine& engine = library.engine();
    const memory::desc a = matrix_desc(batch, 1, shape.rows, shape.depth, shape.a_row_step, shape.a_depth_step);
    const memory::desc b = matrix_desc(batch, 2, shape.depth, shape.columns, shape.b_depth_step, shape.b_column_step);
    const memory::desc y = matrix_desc(batch, 0, shape.rows, shape.columns, shape.columns, 1);
    const memory::desc bias = bias_desc(batch.rank, shape.columns);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (shape.addend) {
      dnnl::post_ops sum;
      sum.append_sum();
      attr.set_post_ops(sum);
    }
    const dnnl::matmul::desc desc = shape.bias ? dnnl::matmul::desc(a, b, bias, y) : dnnl::matmul::desc(a, b, y);
    const dnnl::matmul::primitive_desc chosen(desc, attr, engine);
    state->primitive = dnnl::matmul(chosen);
    state->a = memory(a, engine, nullptr);
    state->b = memory(b, engine, nullptr);
    state->y = memory(y, engine, nullptr);
    state->scratch = memory(chosen.scratchpad_desc(), engine, nullptr);
    state->arguments = {{{DNNL_ARG_SRC, state->a.get()},
                         {DNNL_ARG_WEIGHTS, state->b.get()},
                         {DNNL_ARG_DST, state->y.get()},
                         {DNNL_ARG_SCRATCHPAD, state->scratch.get()}}};
    state->argument_count = 4;
    if (shape.bias) {
      state->bias = memory(bias, engine, nullptr);
      state->arguments[4] = {DNNL_ARG_BIAS, state->bias.get()};
      state->argument_count = 5;
    }
    library.reserve_scratch(static_cast<int64_t>(chosen.scratchpad_desc().get_size()));
  } catch (const dnnl::error& error) {
    why = error.what();
    return nullptr;
  }
  return std::unique_ptr<PreparedMatmul>(new PreparedMatmul(std::move(state)));
}

bool PreparedMatmul::run(float* y, const float* a, const float* b, const float* bias, const float* addend) {
  State& state = *state_;
  if (state.results == 0) return true;
  if (state.empty_depth) {
    for (int64_t at = 0; at < state.results; ++at)
      y[at] = (bias ? bias[at % state.columns] : 0.0f) + (addend ? addend[at] : 0.0f);
    return true;
  }
  if (addend && addend != y) std::copy_n(addend, state.results, y);
  const std::pair<memory*, void*> places[] = {{&state.a, const_cast<float*>(a)},
                                              {&state.b, const_cast<float*>(b)},
                                              {&state.y, y},
                                              {&state.scratch, state.library.scratch()}};
  for (auto [tensor, data] : places)
    if (dnnl_memory_set_data_handle(tensor->get(), data) != dnnl_success) return false;
  if (bias && dnnl_memory_set_data_handle(state.bias.get(), const_cast<float*>(bias)) != dnnl_success) return false;
  return dnnl_primitive_execute(state.primitive.get(), state.library.stream().get(), state.argument_count,
                                state.arguments.data()) == dnnl_success;
}

}  // namespace plimsoll::cpu
