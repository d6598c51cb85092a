#include "runtime/cuda/backend/cudnn_plan.h"

// Graphs are not written as JSON, which takes half the time of compiling.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <array>
#include <set>

namespace plimsoll {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorRefs = std::shared_ptr<Tensor_attributes>;

fe::DataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::BF16: return fe::DataType_t::BFLOAT16;
    case DType::F16: return fe::DataType_t::HALF;
    case DType::F64: return fe::DataType_t::DOUBLE;
    default: return fe::DataType_t::FLOAT;
  }
}

Status refused(const llvm::Twine& what, fe::error_object error) {
  return system_error("cuDNN: " + what + ": " + error.get_message());
}

std::vector<int64_t> list(llvm::ArrayRef<int64_t> values) { return values.vec(); }

struct Graph : fe::graph::Graph {
  // Says whether a listed plan suits the card and the limits that were set. Builds nothing.
  bool is_supported(int64_t at) { return plans.check_support_at_index(at).is_good(); }
};

// Tensors are numbered by their place in run()'s list.
class GraphPlan : public CudnnPlan {
 public:
  GraphPlan(const CudnnCard& card, DType compute) {
    if (!card.handle) graph.set_sm_version(card.compute_capability);  // operations take a copy as they are made
    graph.set_intermediate_data_type(data_type(compute)).set_compute_data_type(data_type(compute));
  }

  TensorRefs input(int64_t place, const CudnnTensor& tensor) {
    return graph.tensor(describe(Tensor_attributes(), place, tensor));
  }

  void output(const TensorRefs& result, int64_t place, const CudnnTensor& tensor) {
    result->set_output(true);
    describe(*result, place, tensor);
  }

  // Engines with one of the `unwanted` notes are left out. For ranks see plan_convolution.
  Status build(const CudnnCard& card, const llvm::Twine& what, const std::vector<fe::NumericalNote_t>& unwanted = {},
               int rank = 0) {
    if (!card.handle)
      if (Status s = plan_without(card)) return s;
    if (fe::error_object error = graph.validate(); error.is_bad()) return refused(what, error);
    fe::error_object built = card.handle ? graph.build_operation_graph(card.handle) : graph.build_operation_graph();
    if (built.is_bad()) return refused(what, built);
    if (Status s = rank == 0 ? choose_first(what, unwanted) : choose_other(what, unwanted, rank)) return s;
    if (fe::error_object error = graph.get_workspace_size(workspace_bytes_); error.is_bad())
      return refused(what, error);
    return Status::success();
  }

  Status run(cudnnContext* cudnn, llvm::ArrayRef<const void*> tensors, void* workspace) override {
    for (size_t i = 0; i < tensors.size(); ++i) pointers_[static_cast<int64_t>(i) + 1] = const_cast<void*>(tensors[i]);
    fe::error_object error = graph.execute(cudnn, pointers_, workspace);
    return error.is_bad() ? refused("run", error) : Status::success();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  Graph graph;

 private:
  Status choose_first(const llvm::Twine& what, const std::vector<fe::NumericalNote_t>& unwanted) {
    if (fe::error_object error = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
        error.is_bad())
      return refused(what, error);
    graph.deselect_numeric_notes(unwanted);
    if (fe::error_object error = graph.check_support(); error.is_bad()) return refused(what, error);
    if (fe::error_object error = graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE); error.is_bad())
      return refused(what, error);
    return Status::success();
  }

  // cuDNN has two heuristics that reckon apart from each other. Their lists are taken in turn, from the first on, and
  // what has the engine and the tile of one taken before is passed over: the lists depend on shapes, card and version
  // alone, so that a plan gives the same bits again. Listing takes milliseconds, so that every rank does it anew;
  // building compiles what depthwise convolutions ask for.
  Status choose_other(const llvm::Twine& what, const std::vector<fe::NumericalNote_t>& unwanted, int rank) {
    std::array<int64_t, 2> next{}, end{};
    for (size_t list = 0; list < 2; ++list) {
      next[list] = graph.get_execution_plan_count();
      fe::error_object listed = graph.create_execution_plans({list == 0 ? fe::HeurMode_t::A : fe::HeurMode_t::B});
      end[list] = listed.is_bad() ? next[list] : graph.get_execution_plan_count();
    }
    graph.deselect_numeric_notes(unwanted);
    std::set<std::pair<int64_t, int64_t>> taken;
    for (size_t list = 0; next[0] < end[0] || next[1] < end[1]; list = 1 - list)
      while (next[list] < end[list]) {
        const int64_t at = next[list]++;
        const auto kind = engine_and_tile(at);
        if (taken.count(kind) || !graph.is_supported(at)) continue;
        if (taken.size() < static_cast<size_t>(rank)) {
          taken.insert(kind);
          break;
        }
        if (graph.build_plan_at_index(at).is_good()) return Status::success();
      }
    return system_error("cuDNN: " + what + ": no algorithm of rank " + llvm::Twine(rank + 1));
  }

  std::pair<int64_t, int64_t> engine_and_tile(int64_t at) const {
    int64_t engine = -1;
    std::unordered_map<fe::KnobType_t, int64_t> knobs;
    if (graph.get_engine_and_knobs_at_index(at, engine, knobs).is_bad()) return {-1, at};
    auto tile = knobs.find(fe::KnobType_t::TILE_SIZE);
    return {engine, tile == knobs.end() ? -1 : tile->second};
  }

  Status plan_without(const CudnnCard& card) {
    auto properties = std::make_shared<fe::DeviceProperties>();
    if (fe::error_object error = properties->deserialize({card.description.begin(), card.description.end()});
        error.is_bad())
      return refused("description of the card", error);
    graph.set_device_properties(properties);
    return Status::success();
  }

  static Tensor_attributes& describe(Tensor_attributes&& tensor, int64_t place, const CudnnTensor& as) {
    return describe(tensor, place, as);
  }
  static Tensor_attributes& describe(Tensor_attributes& tensor, int64_t place, const CudnnTensor& as) {
    return tensor.set_uid(place + 1)
        .set_dim(list(as.sizes))
        .set_stride(list(as.strides))
        .set_data_type(data_type(as.dtype));
  }

  std::unordered_map<int64_t, void*> pointers_;
  int64_t workspace_bytes_ = 0;
};

// [batch, heads, rows, 1]
CudnnTensor lse_of(const CudnnTensor& y) {
  const int64_t batch = y.sizes[0], heads = y.sizes[1], rows = y.sizes[2];
  return {DType::F32, {batch, heads, rows, 1}, {heads * rows, rows, 1, 1}};
}

}  // namespace

Result<std::string> describe_card_to_cudnn() {
  fe::DeviceProperties properties;
  std::vector<uint8_t> description;
  if (fe::error_object error = properties.set_device_id(0).build(); error.is_bad())
    return refused("description of the card", error);
  if (fe::error_object error = properties.serialize(description); error.is_bad())
    return refused("description of the card", error);
  return std::string(description.begin(), description.end());
}

Result<std::unique_ptr<CudnnPlan>> plan_attention(const CudnnCard& card, const CudnnAttention& a) {
  auto plan = std::make_unique<GraphPlan>(card, DType::F32);
  TensorRefs q = plan->input(0, a.q), k = plan->input(1, a.k), v = plan->input(2, a.v);
  auto attributes = fe::graph::SDPA_attributes()
                        .set_name("attention")
                        .set_generate_stats(true)
                        .set_attn_scale(static_cast<float>(a.scale));
  if (a.causal) attributes.set_causal_mask(true);
  auto [y, lse] = plan->graph.sdpa(q, k, v, attributes);
  plan->output(y, 3, a.y);
  plan->output(lse, 4, lse_of(a.y));
  if (Status s = plan->build(card, "attention")) return s;
  return plan;
}

Result<std::unique_ptr<CudnnPlan>> plan_attention_grad(const CudnnCard& card, const CudnnAttention& a) {
  auto plan = std::make_unique<GraphPlan>(card, DType::F32);
  TensorRefs q = plan->input(0, a.q), k = plan->input(1, a.k), v = plan->input(2, a.v), y = plan->input(3, a.y);
  TensorRefs lse = plan->input(4, lse_of(a.y)), dy = plan->input(5, a.y);
  auto attributes =
      fe::graph::SDPA_backward_attributes().set_name("attention_grad").set_attn_scale(static_cast<float>(a.scale));
  if (a.causal) attributes.set_causal_mask(true);
  attributes.set_deterministic_algorithm(a.deterministic);
  auto [dq, dk, dv] = plan->graph.sdpa_backward(q, k, v, y, dy, lse, attributes);
  plan->output(dq, 6, a.q);
  plan->output(dk, 7, a.k);
  plan->output(dv, 8, a.v);
  if (Status s = plan->build(card, "attention_grad")) return s;
  return plan;
}

namespace {

template <typename Attributes>
Attributes window(const CudnnConvolution& c) {
  return Attributes()
      .set_pre_padding(list(c.pads_begin))
      .set_post_padding(list(c.pads_end))
      .set_stride(list(c.strides))
      .set_dilation(list(c.dilations));
}

}  // namespace

Result<std::unique_ptr<CudnnPlan>> plan_convolution(const CudnnCard& card, const CudnnConvolution& c,
                                                    int64_t max_workspace_bytes, int rank) {
  auto plan = std::make_unique<GraphPlan>(card, c.x.dtype == DType::F64 ? DType::F64 : DType::F32);
  switch (c.pass) {
    case ConvPass::Forward:
      plan->output(
          plan->graph.conv_fprop(plan->input(0, c.x), plan->input(1, c.w), window<fe::graph::Conv_fprop_attributes>(c)),
          2, c.y);
      break;
    case ConvPass::InputGradient:
      plan->output(
          plan->graph.conv_dgrad(plan->input(2, c.y), plan->input(1, c.w), window<fe::graph::Conv_dgrad_attributes>(c)),
          0, c.x);
      break;
    case ConvPass::WeightGradient:
      plan->output(
          plan->graph.conv_wgrad(plan->input(2, c.y), plan->input(0, c.x), window<fe::graph::Conv_wgrad_attributes>(c)),
          1, c.w);
      break;
  }
  plan->graph.deselect_workspace_greater_than(max_workspace_bytes);
  std::vector<fe::NumericalNote_t> unwanted = {fe::NumericalNote_t::NONDETERMINISTIC};
  if (c.x.dtype == DType::F32 && !c.tensor_cores) {
    unwanted.push_back(fe::NumericalNote_t::TENSOR_CORE);
    unwanted.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
  }
  if (Status s = plan->build(card, "convolution", unwanted, rank)) return s;
  return plan;
}

}  // namespace plimsoll
