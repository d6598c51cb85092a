#include "kernels/cpu/conv/convolution.h"

#include "kernels/cpu/common/library.h"
#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/vectorised.h"
#include "kernels/division.h"

#include <algorithm>
#include <array>

namespace plimsoll::cpu {

using dnnl::memory;

namespace {

int64_t extent(const int64_t* dims, int rank) {
  int64_t n = 1;
  for (int d = 0; d < rank; ++d) n *= dims[d];
  return n;
}

// Where the blocked copies of x, w and y stand in the workspace, and its end.
std::array<int64_t, 4> workspace_layout(const ConvolutionShape& s) {
  const int64_t out = s.out_channels / s.groups, in = s.in_channels / s.groups;
  const bool depthwise = out == 1 && in == 1;
  const int64_t pairs = depthwise ? round_up(s.groups, 64) : s.groups * round_up(out, 64) * round_up(in, 16);
  const int64_t elements[3] = {s.batch * round_up(s.in_channels, 16) * extent(s.input, s.spatial_rank),
                               pairs * extent(s.kernel, s.spatial_rank),
                               s.batch * round_up(s.out_channels, 16) * extent(s.output, s.spatial_rank)};
  std::array<int64_t, 4> at{};
  for (int t = 0; t < 3; ++t) at[t + 1] = at[t] + round_up(elements[t] * static_cast<int64_t>(sizeof(float)), 64);
  return at;
}

// x, w and y, in the order of the workspace.
using Descs = std::array<memory::desc, 3>;

Descs plain_descs(const ConvolutionShape& s) {
  auto dims = [&](std::initializer_list<int64_t> lead, const int64_t* rest) {
    memory::dims all(lead);
    all.insert(all.end(), rest, rest + s.spatial_rank);
    return all;
  };
  auto dense = [&](const memory::dims& sizes) {
    const size_t space = static_cast<size_t>(s.spatial_rank), channels = sizes.size() - space - 1;
    std::vector<size_t> order;  // outermost first
    for (size_t d = 0; d < channels; ++d) order.push_back(d);
    if (!s.channels_last) order.push_back(channels);
    for (size_t d = 1; d <= space; ++d) order.push_back(channels + d);
    if (s.channels_last) order.push_back(channels);
    memory::dims strides(sizes.size());
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0; stride *= sizes[order[i]]) strides[order[i]] = stride;
    return memory::desc(sizes, memory::data_type::f32, strides);
  };
  const int64_t out = s.out_channels / s.groups, in = s.in_channels / s.groups;
  return {dense(dims({s.batch, s.in_channels}, s.input)),
          dense(s.groups > 1 ? dims({s.groups, out, in}, s.kernel) : dims({out, in}, s.kernel)),
          dense(dims({s.batch, s.out_channels}, s.output))};
}

Descs any_descs(const Descs& plain) {
  Descs any;
  for (size_t t = 0; t < 3; ++t)
    any[t] = memory::desc(plain[t].dims(), memory::data_type::f32, memory::format_tag::any);
  return any;
}

struct Windows {
  memory::dims strides, dilations, begin, end;
  explicit Windows(const ConvolutionShape& s)
      : strides(s.strides, s.strides + s.spatial_rank),
        dilations(s.dilations, s.dilations + s.spatial_rank),
        begin(s.pads_begin, s.pads_begin + s.spatial_rank),
        end(s.pads_end, s.pads_end + s.spatial_rank) {
    for (int64_t& d : dilations) --d;  // oneDNN counts the gaps
  }
};

// A primitive with the tensors it settled on.
struct Chosen {
  dnnl::primitive primitive;
  Descs descs;
  memory::desc scratch;
};

dnnl::primitive_attr own_scratch() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

dnnl::convolution_forward::primitive_desc forward_desc(const dnnl::engine& engine, const ConvolutionShape& s,
                                                       const Descs& t) {
  const Windows w(s);
  const memory::desc bias({s.out_channels}, memory::data_type::f32, memory::format_tag::a);
  using Forward = dnnl::convolution_forward;
  const auto kind = dnnl::prop_kind::forward_training;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const Forward::desc desc =
      s.bias ? Forward::desc(kind, algorithm, t[0], t[1], bias, t[2], w.strides, w.dilations, w.begin, w.end)
             : Forward::desc(kind, algorithm, t[0], t[1], t[2], w.strides, w.dilations, w.begin, w.end);
  return Forward::primitive_desc(desc, own_scratch(), engine);
}

Chosen choose(const dnnl::engine& engine, ConvolutionPass pass, const ConvolutionShape& s, const Descs& t) {
  const Windows w(s);
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto forward = forward_desc(engine, s, t);
  if (pass == ConvolutionPass::Forward)
    return {dnnl::convolution_forward(forward),
            {forward.src_desc(), forward.weights_desc(), forward.dst_desc()},
            forward.scratchpad_desc()};
  if (pass == ConvolutionPass::InputGradient) {
    using Backward = dnnl::convolution_backward_data;
    const Backward::primitive_desc chosen(
        Backward::desc(algorithm, t[0], t[1], t[2], w.strides, w.dilations, w.begin, w.end), own_scratch(), engine,
        forward);
    return {Backward(chosen),
            {chosen.diff_src_desc(), chosen.weights_desc(), chosen.diff_dst_desc()},
            chosen.scratchpad_desc()};
  }
  using Backward = dnnl::convolution_backward_weights;
  const Backward::primitive_desc chosen(
      Backward::desc(algorithm, t[0], t[1], t[2], w.strides, w.dilations, w.begin, w.end), own_scratch(), engine,
      forward);
  return {Backward(chosen),
          {chosen.src_desc(), chosen.diff_weights_desc(), chosen.diff_dst_desc()},
          chosen.scratchpad_desc()};
}

bool fits(const Descs& descs, const std::array<int64_t, 4>& layout) {
  for (size_t t = 0; t < 3; ++t)
    if (static_cast<int64_t>(descs[t].get_size()) > layout[t + 1] - layout[t]) return false;
  return true;
}

// Names of x, w and y in each pass.
std::array<int, 3> argument_names(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::Forward: return {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    case ConvolutionPass::InputGradient: return {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST};
    default: return {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST};
  }
}

int written_tensor(ConvolutionPass pass) {
  return pass == ConvolutionPass::Forward ? 2 : pass == ConvolutionPass::InputGradient ? 0 : 1;
}

// One of x, w, y: as the caller has it, as the primitive wants it, and the way between.
struct Tensor {
  memory plain, blocked;
  dnnl::primitive reorder;  // none when both are the same
  bool moves = false;
};

}  // namespace

struct PreparedConvolution::State {
  Library& library;
  std::array<int64_t, 4> layout{};
  int written = 2;
  std::array<Tensor, 3> tensors;
  memory bias, scratch;
  dnnl::primitive primitive;
  std::array<dnnl_exec_arg_t, 5> arguments{};
  int argument_count = 4;

  void add_reorder(int t, const memory::desc& plain, const memory::desc& wanted) {
    const dnnl::engine& engine = library.engine();
    Tensor& tensor = tensors[t];
    tensor.plain = memory(plain, engine, nullptr);
    tensor.blocked = memory(wanted, engine, nullptr);
    tensor.moves = plain != wanted;
    if (!tensor.moves) return;
    const bool out = t == written;
    const dnnl::reorder::primitive_desc desc(engine, out ? wanted : plain, engine, out ? plain : wanted, own_scratch());
    library.reserve_scratch(static_cast<int64_t>(desc.scratchpad_desc().get_size()));
    tensor.reorder = dnnl::reorder(desc);
  }

  bool reorder(const Tensor& tensor, bool out) const {
    const dnnl_exec_arg_t names[] = {{DNNL_ARG_FROM, (out ? tensor.blocked : tensor.plain).get()},
                                     {DNNL_ARG_TO, (out ? tensor.plain : tensor.blocked).get()},
                                     {DNNL_ARG_SCRATCHPAD, scratch.get()}};
    return dnnl_primitive_execute(tensor.reorder.get(), library.stream().get(), 3, names) == dnnl_success;
  }
};

int64_t convolution_workspace_bytes(const ConvolutionShape& shape) { return workspace_layout(shape)[3]; }

PreparedConvolution::PreparedConvolution(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreparedConvolution::~PreparedConvolution() = default;

std::unique_ptr<PreparedConvolution> PreparedConvolution::create(Library& library, ConvolutionPass pass,
                                                                 const ConvolutionShape& shape, std::string& why) {
  auto state = std::make_unique<State>(State{.library = library});
  state->layout = workspace_layout(shape);
  state->written = written_tensor(pass);
  try {
    const dnnl::engine& engine = library.engine();
    const Descs plain = plain_descs(shape);
    Chosen chosen = choose(engine, pass, shape, any_descs(plain));
    if (!fits(chosen.descs, state->layout)) chosen = choose(engine, pass, shape, plain);
    const std::array<int, 3> names = argument_names(pass);
    library.reserve_scratch(static_cast<int64_t>(chosen.scratch.get_size()));
    state->scratch = memory(chosen.scratch, engine, nullptr);
    for (int t = 0; t < 3; ++t) {
      state->add_reorder(t, plain[t], chosen.descs[t]);
      state->arguments[t] = {names[t], state->tensors[t].blocked.get()};
    }
    state->arguments[3] = {DNNL_ARG_SCRATCHPAD, state->scratch.get()};
    if (shape.bias) {
      state->bias = memory({{shape.out_channels}, memory::data_type::f32, memory::format_tag::a}, engine, nullptr);
      state->arguments[state->argument_count++] = {DNNL_ARG_BIAS, state->bias.get()};
    }
    state->primitive = chosen.primitive;
  } catch (const dnnl::error& error) {
    why = error.what();
    return nullptr;
  }
  return std::unique_ptr<PreparedConvolution>(new PreparedConvolution(std::move(state)));
}

bool PreparedConvolution::run(const float* x, const float* w, const float* y, const float* bias, void* workspace) {
  State& state = *state_;
  auto place = [](const memory& tensor, const void* data) {
    return dnnl_memory_set_data_handle(tensor.get(), const_cast<void*>(data)) == dnnl_success;
  };
  const float* data[3] = {x, w, y};
  if (!place(state.scratch, state.library.scratch())) return false;
  if (bias && !place(state.bias, bias)) return false;
  for (int t = 0; t < 3; ++t) {
    const Tensor& tensor = state.tensors[t];
    const void* blocked =
        tensor.moves ? static_cast<char*>(workspace) + state.layout[t] : static_cast<const void*>(data[t]);
    if (!place(tensor.plain, data[t]) || !place(tensor.blocked, blocked)) return false;
    if (tensor.moves && t != state.written && !state.reorder(tensor, false)) return false;
  }
  if (dnnl_primitive_execute(state.primitive.get(), state.library.stream().get(), state.argument_count,
                             state.arguments.data()) != dnnl_success)
    return false;
  const Tensor& result = state.tensors[state.written];
  return !result.moves || state.reorder(result, true);
}

PLIMSOLL_VECTORISED static void add_to_run(float* y, float added, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += added;
}

void add_channel_bias(float* y, const float* bias, int64_t batch, int64_t channels, int64_t inner) {
  parallel_rows(batch * channels, inner, [&](int64_t begin, int64_t end) {
    for (int64_t run = begin; run < end; ++run) add_to_run(y + run * inner, bias[run % channels], inner);
  });
}

}  // namespace plimsoll::cpu
