#include "passes/mesh/mesh_estimate.h"

// Programs of one rank are derived for a few sizes of its batch and each number of ranks along the tensor axis, without
// laying them out. What the data axis, ZeRO and stages make of them is arithmetic (passes/mesh/mesh_estimate.cpp).

#include "ir/ops/common/support.h"
#include "ir/support/parallel.h"
#include "passes/analysis/aliasing.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/single_value_cuts.h"
#include "passes/partition/divide_batch.h"
#include "passes/pipelines.h"
#include "passes/target/precision_rules.h"
#include "passes/train/training_step.h"

#include "llvm/ADT/StringSet.h"

#include <cmath>
#include <optional>
#include <utility>

namespace plimsoll {
namespace {

constexpr int tensor_bits = 2;            // sizes 1, 2, 3, 4, 6, 8, 12, 16, ...
constexpr double min_less_work = 0.95;    // of a smaller tensor axis' matmuls, for a larger one to be worth trying
constexpr int max_useless_sizes = 2;      // in a row, after which larger ones are not tried
constexpr size_t sizes_at_once = 2;       // of them that are looked at beside each other
constexpr int64_t max_tensor_ranks = 64;  // beyond a host's links nobody gains from it

// Reads a program of one rank.
class WorkReader {
 public:
  WorkReader(const Program& program, const TrainingRequest& request, const DeviceDescription& device,
             const KernelCatalog& catalog)
      : program_(program), request_(request), device_(device), catalog_(catalog) {}

  RankWork work() {
    RankWork work;
    const Graph& step = program_.functions.front();
    for (NodeId id : step.order()) {
      const Node& node = step.node(id);
      if (is_update(node) || !is_instruction(node)) continue;
      ++work.nodes;
      if (node.op->engine == Engine::Ranks) {
        add(step, node, axis_of(node) == MeshAxis::Data ? work.over_data : work.over_tensor);
        continue;
      }
      if (may_be_kept(step, node)) continue;
      const Cost cost = cost_of(step, node, device_);
      const double us = predicted_us(step, node, chosen_kernel(step, node, catalog_), device_);
      (node.phase == Phase::Forward ? work.forward_us : work.backward_us) += us;
      if (!reads_states_alone(step, node)) work.sure_us += us;
      // Timings may be below the description's ceilings, and then they are what plans count.
      const double ceiling_us = ceiling_us_of(step, node, cost);
      const double share = ceiling_us > 0 ? std::min(1.0, us / ceiling_us) : 1;
      if (is_matmul(node)) work.matmul_us += share * device_.roofline_us(cost.flops, 0, matrix_type(step, node));
      work.memory_us += share * device_.roofline_us(0, cost.bytes_moved, std::nullopt);
      work.working_bytes = std::max(work.working_bytes, cost.bytes_moved);
    }
    work.saved_bytes = saved_bytes(step);
    return work;
  }

  TensorProfile states() {
    TensorProfile profile;
    llvm::StringSet<> counted;
    for (const Graph& function : program_.functions) {
      for (const State& state : function.states)
        if (counted.insert(function.value(state.value).name).second) add_state(function, state, profile);
      add_updates(function, profile);
    }
    const Graph& last = program_.functions.back();
    for (const StateGradient& gradient : last.gradients) add_trained(last, gradient, profile);
    return profile;
  }

 private:
  // A gradient that is cast for its sum over ranks is a result of its product, which then came with the sum.
  static bool is_update(const Node& node) { return node.phase == Phase::Update && !is_matmul(node); }
  static bool is_matmul(const Node& node) { return node.op->precision == Precision::Low && !node.operands.empty(); }
  static DType matrix_type(const Graph& graph, const Node& node) { return graph.type(node.operands[0]).dtype; }

  double ceiling_us_of(const Graph& graph, const Node& node, const Cost& cost) const {
    return device_.roofline_us(cost.flops, cost.bytes_moved,
                               is_matmul(node) ? std::optional(matrix_type(graph, node)) : std::nullopt);
  }

  void add(const Graph& graph, const Node& node, Exchanges& exchanges) const {
    const AxisLink link = device_.link_of(axis_of(node));
    exchanges.count += 1;
    exchanges.sent_bytes +=
        std::max(0.0, cost_of(graph, node, device_).predicted_us - link.base_us) * link.gb_per_s * 1e3;
  }

  // Such as a cast of a parameter, which may come with a gather.
  static bool reads_states_alone(const Graph& graph, const Node& node) {
    return llvm::all_of(node.operands, [&](ValueId operand) {
      if (operand == ValueId::None) return true;
      return graph.find_state(root_of(graph, operand)) != nullptr;
    });
  }

  // A 16-bit copy of a parameter, which updates may write for the next step.
  static bool may_be_kept(const Graph& graph, const Node& node) {
    return node.op->name == "cast" && is_16_bit_float(graph.type(node.results[0]).dtype) &&
           reads_states_alone(graph, node);
  }

  static MeshAxis axis_of(const Node& node) {
    return parse_axis(node.attrs.get_string("axis")).value_or(MeshAxis::Data);
  }

  int64_t saved_bytes(const Graph& step) const {
    std::vector<bool> counted(step.value_count(), false);
    int64_t bytes = 0;
    for (NodeId id : step.order()) {
      const Node& node = step.node(id);
      if (node.phase == Phase::Forward) continue;
      for (ValueId operand : node.operands) {
        if (operand == ValueId::None) continue;
        const ValueId root = root_of(step, operand);
        const NodeId producer = step.value(root).producer;
        if (counted[index_of(root)] || producer == NodeId::None || step.node(producer).phase != Phase::Forward)
          continue;
        counted[index_of(root)] = true;
        bytes += step.type(root).bytes();
      }
    }
    return bytes;
  }

  static void add_state(const Graph& function, const State& state, TensorProfile& profile) {
    const int64_t bytes = function.type(state.value).bytes();
    switch (state.role) {
      case StateRole::Parameter: profile.parameter_bytes += bytes; break;
      case StateRole::Optimizer: profile.optimizer_bytes += bytes; break;
      case StateRole::Gradient: profile.gradient_bytes += bytes; break;
      case StateRole::Buffer:
      case StateRole::Counter: profile.other_bytes += bytes; break;
    }
  }

  void add_updates(const Graph& function, TensorProfile& profile) const {
    for (NodeId id : function.order()) {
      const Node& node = function.node(id);
      if (!is_update(node) || !is_instruction(node)) continue;
      if (node.op->engine == Engine::Ranks) {
        if (axis_of(node) == MeshAxis::Tensor) add(function, node, profile.update_over_tensor);
        continue;
      }
      profile.update_us += predicted_us(function, node, chosen_kernel(function, node, catalog_), device_);
      profile.update_memory_us += device_.roofline_us(0, cost_of(function, node, device_).bytes_moved, std::nullopt);
    }
  }

  void add_trained(const Graph& function, const StateGradient& gradient, TensorProfile& profile) const {
    const Type &type = function.type(gradient.state), &made = function.type(gradient.value);
    const int64_t elements = type.elements(), narrow = is_mixed(request_.precision) ? 2 : dtype_bytes(type.dtype);
    const int64_t sum =
        request_.master_weights == MasterWeights::Off ? dtype_bytes(made.dtype) : dtype_bytes(stat_dtype(made.dtype));
    profile.trained += 1;
    profile.trained_bytes += type.bytes();
    profile.read_bytes += elements * std::min(narrow, dtype_bytes(type.dtype));
    profile.sum_bytes += elements * sum;
    const int64_t least = std::min({narrow, dtype_bytes(type.dtype), dtype_bytes(made.dtype)});
    profile.largest_gradient_bytes = std::max(profile.largest_gradient_bytes, elements * least);
  }

  const Program& program_;
  const TrainingRequest& request_;
  const DeviceDescription& device_;
  const KernelCatalog& catalog_;
};

// Bytes of one sample over the cut in the middle, and how computing is spread over what stands between cuts.
StageProfile stages_of(const Graph& forward, int64_t rows, const DeviceDescription& device,
                       const KernelCatalog& catalog) {
  StageProfile profile;
  const std::vector<SingleValueCut> cuts = find_single_value_cuts(forward);
  double block_us = 0, all_us = 0;
  size_t cut = 0;
  for (NodeId id : forward.order()) {
    const Node& node = forward.node(id);
    if (is_instruction(node) && node.op->engine == Engine::Compute)
      block_us += predicted_us(forward, node, chosen_kernel(forward, node, catalog), device);
    if (cut == cuts.size() || cuts[cut].after != id) continue;
    profile.block_share.push_back(block_us);
    all_us += std::exchange(block_us, 0);
    ++cut;
  }
  profile.block_share.push_back(block_us);
  all_us += block_us;
  for (double& share : profile.block_share) share = all_us > 0 ? share / all_us : 0;
  if (!cuts.empty())
    profile.border_bytes = static_cast<double>(forward.type(cuts[cuts.size() / 2].value).bytes()) /
                           static_cast<double>(std::max<int64_t>(rows, 1));
  return profile;
}

class Profiler {
 public:
  Profiler(const CleanModel& model, const TrainingRequest& request, TensorRanks tensor, const DeviceDescription& device,
           const KernelCatalog& catalog)
      : model_(model), request_(request), tensor_(tensor), device_(device), catalog_(catalog) {
    request_.zero = 0;
  }

  Result<ModelProfile> run() {
    prepare_undivided_models();
    const bool tries_sizes = tensor_.most > 1 && !tensor_.is_given;
    std::optional<Result<Sample>> one;
    std::vector<std::optional<Sample>> first;  // of the first size of the tensor axis that is tried
    parallel_for(tries_sizes ? 2 : 1, [&](size_t i) {
      if (i == 0)
        one.emplace(sample(1, 1));
      else
        first = samples(std::pair(tensor_sizes_to_try().front(), int64_t{1}));
    });
    if (!*one) return one->takeError();
    profile_.batch = (*one)->batch;
    profile_.stages = std::move((*one)->stages);
    const std::vector<int64_t> data = data_sizes();
    add_work(1, std::move(**one));
    if (tries_sizes)
      add_tensor_sizes(std::move(first));
    else if (Status s = add_given_size())
      return s;
    add_sizes_of_batch(data);
    for (auto& [tensor, profile] : profile_.with)
      llvm::sort(profile.work, [](const RankWork& a, const RankWork& b) { return a.rows < b.rows; });
    return std::move(profile_);
  }

 private:
  struct Sample {
    int64_t batch = 0;
    TensorProfile profile;  // with one size of the batch
    StageProfile stages;    // of one rank
  };

  Result<Sample> sample(int64_t tensor, int64_t data) const {
    TrainingRequest request = request_;
    request.mesh = {};
    request.mesh[MeshAxis::Tensor] = tensor, request.mesh[MeshAxis::Data] = data;
    Result<ForwardModel> forward = forward_of(request);
    if (!forward) return forward.takeError();
    Sample sample;
    sample.batch = forward->summary.batch;
    if (tensor == 1 && data == 1) sample.stages = stages_of(forward->graph, sample.batch, device_, catalog_);
    Result<Program> program = make_training_program(std::move(forward->graph), request);
    if (!program) return program.takeError();
    for (Graph& function : program->functions) {
      const std::string pipeline = step_pipeline(request, catalog_.preferences(), preferred_moments(catalog_));
      for (llvm::StringRef passes_in_turn : {llvm::StringRef(pipeline), llvm::StringRef(fuse_pipeline)})
        if (Result<bool> changed = forward->passes.run(function, passes_in_turn); !changed) return changed.takeError();
    }
    WorkReader reader(*program, request_, device_, catalog_);
    sample.profile = reader.states();
    sample.profile.tensor_ranks = tensor;
    sample.profile.work.push_back(reader.work());
    sample.profile.work.back().rows = std::max<int64_t>(rows_of_rank(sample.batch, data), 1);
    return sample;
  }

  // What all samples start from. Where it cannot be prepared, each sample says why.
  void prepare_undivided_models() {
    parallel_for(tensor_.most > 1 ? 2 : 1, [&](size_t divides_tensors) {
      TrainingRequest request = request_;
      request.mesh = {};
      request.mesh[MeshAxis::Tensor] = 1 + static_cast<int64_t>(divides_tensors);
      Result<ForwardModel> undivided =
          prepare_undivided({model_.graph, model_.passes.sparing()}, request, catalog_.preferences());
      if (undivided)
        undivided_[divides_tensors].emplace(std::move(*undivided));
      else
        llvm::consumeError(undivided.takeError());
    });
  }

  Result<ForwardModel> forward_of(const TrainingRequest& request) const {
    const std::optional<ForwardModel>& undivided = undivided_[request.mesh[MeshAxis::Tensor] > 1];
    if (!undivided) return prepare_forward({model_.graph, model_.passes.sparing()}, request, catalog_.preferences());
    return divide_forward(*undivided, request, catalog_.preferences());
  }

  void add_work(int64_t tensor, Sample sample) {
    auto [at, fresh] = profile_.with.try_emplace(tensor, std::move(sample.profile));
    if (!fresh) at->second.work.push_back(sample.profile.work.front());
  }

  // One sample of the batch a rank, all of it, and a size between.
  std::vector<int64_t> data_sizes() const {
    std::vector<int64_t> sizes{1};
    const int64_t batch = profile_.batch;
    if (batch <= 1) return sizes;
    auto between = static_cast<int64_t>(std::sqrt(static_cast<double>(batch)));
    while (batch % between != 0) --between;
    if (between > 1) sizes.push_back(between);
    sizes.push_back(batch);
    return sizes;
  }

  Status add_given_size() {
    if (tensor_.most == 1) return Status::success();
    Result<Sample> found = sample(tensor_.most, 1);
    if (!found) return found.takeError();
    add_work(tensor_.most, std::move(*found));
    return Status::success();
  }

  std::vector<int64_t> tensor_sizes_to_try() const {
    std::vector<int64_t> sizes = axis_sizes(std::min(tensor_.most, max_tensor_ranks), tensor_bits);
    sizes.erase(sizes.begin());  // one rank
    return sizes;
  }

  // At the largest batch of a rank's; what no smaller size makes shorter is left out. `found` is of the first size.
  void add_tensor_sizes(std::vector<std::optional<Sample>> found) {
    double least_us = profile_.with.at(1).work.front().matmul_us;
    int useless = 0;
    const std::vector<int64_t> sizes = tensor_sizes_to_try();
    llvm::ArrayRef<int64_t> left = llvm::ArrayRef<int64_t>(sizes).drop_front(found.size());
    for (;;) {
      for (std::optional<Sample>& each : found) {
        if (!each || useless == max_useless_sizes) continue;
        const double us = each->profile.work.front().matmul_us;
        if (us >= min_less_work * least_us) {
          ++useless;
          continue;
        }
        useless = 0;
        least_us = us;
        const int64_t tensor = each->profile.tensor_ranks;
        add_work(tensor, std::move(*each));
      }
      if (left.empty() || useless == max_useless_sizes) return;
      std::vector<std::pair<int64_t, int64_t>> some;
      for (int64_t tensor : left.take_front(sizes_at_once)) some.push_back({tensor, 1});
      left = left.drop_front(some.size());
      found = samples(some);
    }
  }

  void add_sizes_of_batch(llvm::ArrayRef<int64_t> data) {
    std::vector<std::pair<int64_t, int64_t>> wanted;
    for (const auto& [tensor, profile] : profile_.with)
      for (int64_t size : data.drop_front()) wanted.push_back({tensor, size});
    for (std::optional<Sample>& found : samples(wanted))
      if (found) {
        const int64_t tensor = found->profile.tensor_ranks;
        add_work(tensor, std::move(*found));
      }
  }

  // By ranks along the tensor and the data axis; none where these cannot be planned.
  std::vector<std::optional<Sample>> samples(llvm::ArrayRef<std::pair<int64_t, int64_t>> ranks) const {
    std::vector<std::optional<Sample>> samples(ranks.size());
    parallel_for(ranks.size(), [&](size_t i) {
      Result<Sample> found = sample(ranks[i].first, ranks[i].second);
      if (found)
        samples[i].emplace(std::move(*found));
      else
        llvm::consumeError(found.takeError());
    });
    return samples;
  }

  const CleanModel& model_;
  TrainingRequest request_;
  TensorRanks tensor_;
  const DeviceDescription& device_;
  const KernelCatalog& catalog_;
  std::optional<ForwardModel> undivided_[2];  // by whether ranks divide tensors
  ModelProfile profile_;
};

}  // namespace

std::vector<int64_t> ModelProfile::tensor_sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& each : with) sizes.push_back(each.first);
  return sizes;
}

Result<ModelProfile> profile_model(const CleanModel& model, const TrainingRequest& request, TensorRanks tensor,
                                   const DeviceDescription& device, const KernelCatalog& catalog) {
  return Profiler(model, request, tensor, device, catalog).run();
}

}  // namespace plimsoll
