#pragma once

// What the caller wants of a training job, and what comes of it, as data.

#include "ir/mesh.h"
#include "ir/op_def.h"
#include "ir/plan/plan.h"
#include "passes/partition/pipeline_schedule.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll {

// Passes read what their optimizer has a use for: passes/train/optimizer_settings.h says which.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::AdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double alpha = 0.99;                            // rmsprop: decay of the mean of squares
  double beta2_decay = -0.8, clip_threshold = 1;  // adafactor
  double min_scale = 1e-3;                        // adafactor: a parameter's root mean square counts as at least this
};

enum class ImageLayout : uint8_t { Auto, ChannelsFirst, ChannelsLast };  // Auto: what convolutions are faster in

enum class MasterWeights : uint8_t { Auto, On, Off };  // Auto: f32 masters for 16-bit parameters

// How Adam's moments are stored between updates; in 8 bits with a scale for each 256 (Dettmers et al. 2022).
enum class Moments : uint8_t { F32, BF16, EightBit };
inline constexpr llvm::StringLiteral moment_formats[] = {"f32", "bf16", "8bit"};

// A function of the plan that computes the loss and other outputs of a batch and changes no state.
struct EvaluationRequest {
  bool wanted = false;
  int64_t batch = 0;                 // 0: the training's, halved while evaluation needs more memory than training
  std::vector<std::string> metrics;  // besides the loss: see passes/evaluate/metrics.h
};

// Matrices of a low rank that are trained beside frozen layers (LoRA, Hu et al. 2021).
struct AdapterRequest {
  int64_t rank = 0;                  // 0: there are none
  double alpha = 0;                  // scale of an adapter times its rank; 0: the rank, a scale of 1
  bool rslora = false;               // the scale is alpha over the root of the rank (Kalajdzievski 2023)
  bool dora = false;                 // norms of adapted weights' rows are trained apart (DoRA, Liu et al. 2024)
  double dropout = 0;                // of the adapters' inputs
  std::vector<std::string> targets;  // passes/train/adapter_targets.h; empty: all linear layers
  std::optional<std::string> root;   // what names of weights begin with and paths of modules do not; none: unknown

  bool wanted() const { return rank > 0; }
  double alpha_or_rank() const { return alpha > 0 ? alpha : static_cast<double>(rank); }
};

// How frozen weights of linear layers are stored.
enum class WeightFormat : uint8_t {
  AsTrained,  // in the type in which they are read
  NF4,        // 4 bits, whose scales are quantised too (Dettmers et al. 2023)
  NF4Single,  // 4 bits with f32 scales
  Int4,       // whole numbers of 4 bits with f32 scales
  Int8,
  FP8,
};
inline constexpr llvm::StringLiteral weight_formats[] = {"as-trained", "nf4", "nf4-single", "int4", "int8", "fp8"};
inline llvm::StringRef format_name(WeightFormat format) { return weight_formats[static_cast<size_t>(format)]; }
struct QuantizeRequest {
  WeightFormat format = WeightFormat::AsTrained;
  std::vector<std::string> skip;  // regular expressions over names of weights that stay as they are
  // Up to so many bytes of transposes of fp8 codes that products read are states as well, so that no step makes them.
  // With 0 the search for a budget chooses.
  int64_t turned_bytes = 0;
};

struct PreparedProgram;  // passes/derive_program.h

struct TrainingRequest {
  std::string loss;                // "" | OUTPUT | cross-entropy:LOGITS:LABELS | mse:A:B | bce:A:B
  std::vector<std::string> train;  // regular expressions over state names; empty: every parameter
  std::vector<std::string> freeze;
  AdapterRequest adapters;  // with them `train` names what is trained beside them, and empty means nothing
  QuantizeRequest quantize;
  OptimizerSpec optimizer;
  int64_t accumulate = 1;      // micro-batches an update
  double clip_grad_norm = 0;   // 0: off
  double clip_grad_value = 0;  // largest absolute value of a gradient's element, before clip_grad_norm; 0: off
  double ema = 0;              // decay of the running mean of the weights; 0: there is none
  std::vector<ParameterGroup> groups;
  double layer_rate = 1;  // factor of the learning rate from each layer to the one below it
  Mesh mesh;              // the ranks that share the job; the batch is theirs together
  // Of a pipeline: the equal chunks of a rank's batch that go through the stages one after the other; 0: as many as
  // divide the batch, up to four for each stage.
  int64_t micro_batches = 0;
  std::optional<PipelineSchedule> schedule;  // of a pipeline; none: the fastest that fits
  int64_t runs_per_stage = 0;                // of interleaved stages, at least 2; 0: as many as are fastest
  // What ranks along the data axis divide instead of each keeping all (ZeRO): 1 the optimizer's states, 2 also
  // accumulated gradients, 3 also parameters.
  int zero = 0;
  // What ranks with different rows send of a gradient: f32, or 16 bits, in which NCCL then adds them up as well.
  DType sum_dtype = DType::F32;
  Statistics batch_norm = Statistics::OfAllRanks;  // which rows batch norms see where ranks share the batch
  double first_loss_scale = 65536;                 // fp16: the gradients' factor until an overflow halves it
  int64_t batch = 0;                               // 0: as exported
  std::string precision = "exported";              // or fp32, tf32, bf16, fp16, fp8; recorded in the plan
  std::string precision_rules;                     // what a --precision-file says, see passes/target/precision_rules.h
  MasterWeights master_weights = MasterWeights::Auto;
  Moments moments = Moments::F32;
  ImageLayout layout = ImageLayout::Auto;
  int64_t budget_bytes = 0;  // of each rank; 0: its device's memory
  // By stage of a pipeline, where they differ; 0: the device's memory. Empty: `budget_bytes` for all.
  std::vector<int64_t> stage_budgets;
  bool frontier = false;  // also find the plans of smaller budgets
  bool recompute = true;  // rematerialise where the budget asks for it
  // Chunks of the batch for all that follows `split_from`; 0: where the budget asks for it, 1: never.
  int64_t split = 0;
  std::string split_from;  // a value of the model; empty: the one that takes least time
  // With `split` 0, which of the values behind which chunks may pay are tried, by their place in the graph; a place
  // behind the last means the last. None: all.
  std::optional<std::vector<size_t>> split_regions;
  // Only what the job would roughly need. A usual search for the same job tries these plans, too.
  bool is_short = false;
  bool offload = true;  // let states and values wait in host memory where the budget asks for it
  EvaluationRequest evaluation;
  // Plans that take so long or longer are of no use, and what bounds show to be so is not searched.
  double enough_us = std::numeric_limits<double>::infinity();
  // Where nothing is within the budget, the same of plans that need so many bytes of the device or more.
  int64_t enough_bytes = std::numeric_limits<int64_t>::max();
  // Where bounds show that a stage of a pipeline needs more bytes than this, its stages may keep quick layouts, which
  // need as much as searched ones, or more; 0: none may.
  int64_t quick_above_bytes = 0;
  // The result keeps what the search started from, which serves another request that differs in limits and effort
  // alone. A pipeline has nothing to keep.
  bool keeps_program = false;
  std::shared_ptr<const PreparedProgram> prepared = nullptr;
  bool is_one_of_many = false;  // meshes that are compared, so long programs of stages are not searched as far
  double effort = 1;            // search work for rematerialisation and placement, as a multiple of the usual
  // Memory of each host, for all its ranks: what waits there, loading and the cache; 0: not limited.
  int64_t host_budget_bytes = 0;
  int64_t cache_bytes = 0;   // host memory in which a run may keep decoded samples
  bool checkpoints = false;  // hold back host memory for the snapshot of a run with checkpoints
  // Of a cluster: what each host has for its ranks, 0: not limited, and how many of them it holds, 0: all.
  int64_t host_memory_bytes = 0, ranks_per_host = 0;

  bool scales_loss() const { return precision == "fp16"; }
  bool trains_copies() const { return precision == "bf16" || precision == "fp16" || precision == "fp8"; }
  // The ZeRO stage as it is done. Where ranks train 16-bit copies of f32 weights, these weights are states of the
  // optimizer like others (Rajbhandari et al. 2020): with stages 1 and 2 a rank keeps its piece of them, too, and
  // gathers the copy, if a step does so once. It then divides what stage 3 does.
  int zero_as_done(int stage, const Mesh& ranks) const {
    const bool gathers_once = accumulate == 1 && ranks[MeshAxis::Data] == ranks.ranks();
    return stage > 0 && gathers_once && trains_copies() && master_weights != MasterWeights::Off ? 3 : stage;
  }
  int64_t ranks_of_host() const { return ranks_per_host > 0 ? std::min(ranks_per_host, mesh.ranks()) : mesh.ranks(); }
  // What the ranks of a host may hold of it together; 0: not limited.
  int64_t host_budget_of_host() const {
    if (host_memory_bytes == 0 || host_budget_bytes == 0) return std::max(host_memory_bytes, host_budget_bytes);
    return std::min(host_memory_bytes, host_budget_bytes);
  }
  // Each of them plans within an equal share of what is left beside a snapshot, which the first rank takes.
  int64_t host_budget_of_rank(int64_t snapshot_bytes = 0) const {
    const int64_t of_host = host_budget_of_host();
    return of_host == 0 ? 0 : std::max<int64_t>(1, (of_host - snapshot_bytes) / ranks_of_host());
  }
  // What each rank of a stage may hold of its device.
  int64_t budget_of_stage(size_t stage, const DeviceDescription& device) const {
    const int64_t bytes = stage_budgets.empty() ? budget_bytes : stage_budgets[stage];
    return bytes > 0 ? bytes : device.memory_bytes;
  }
};

// What a stage needs of its device, and what it may have.
struct StageNeed {
  int64_t needs_bytes = 0, budget_bytes = 0;
};

// That a job does not fit is an answer and no error.
struct CompileResult {
  Plan plan;  // where nothing is within the budget, the plan that needs least; of a pipeline, that of the stage that
              // lacks most
  bool fits = true;
  bool is_too_slow = false;                   // nothing is faster than TrainingRequest::enough_us, and there is no plan
  bool is_too_large = false;                  // nothing needs less than TrainingRequest::enough_bytes, likewise
  int64_t host_budget_bytes = 0;              // as asked; 0: not limited
  std::vector<Plan> frontier;                 // plans of smaller budgets, where these were asked for
  std::vector<StageNeed> stages;              // of a pipeline that does not fit, by stage, as it was cut
  std::vector<size_t> split_regions;          // of a job that does not fit: those worth a look in a job like it
  std::shared_ptr<PreparedProgram> prepared;  // where the request asked to keep it

  std::vector<Plan*> plans() {
    std::vector<Plan*> all{&plan};
    for (Plan& smaller : frontier) all.push_back(&smaller);
    return all;
  }
};

inline CompileResult none_is_faster() {
  CompileResult result;
  result.fits = false;
  result.is_too_slow = true;
  return result;
}

inline CompileResult none_needs_less() {
  CompileResult result;
  result.fits = false;
  result.is_too_large = true;
  return result;
}

}  // namespace plimsoll
