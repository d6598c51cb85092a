#pragma once

// Plimsoll as a library: an exported ONNX model becomes a training plan, which promises its memory and predicts its
// time before anything runs, and a session trains with the plan.
//
//   plimsoll::CompileOptions options;
//   options.model = "model.onnx";
//   options.dims["batch"] = 8;
//   plimsoll::Expected<plimsoll::Compiled> compiled = plimsoll::compile(options);
//   if (!compiled) return fail(compiled.error().message);
//   plimsoll::Expected<plimsoll::Session> session = plimsoll::Session::create(compiled->plan);
//
// This header needs the C++20 standard library alone. Sizes are bytes unless a name says otherwise, times are
// microseconds (_us) or milliseconds (_ms), tensors are dense and row-major with the host's byte order. Nothing throws:
// what can fail returns Expected, and an exception out of a caller's own function ends the process. Plans are
// immutable and may be shared among threads; a session is for one thread at a time.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace plimsoll {

// Callers see the names in `plimsoll` itself. The library has other types of some of these names there.
#ifndef PLIMSOLL_INSIDE
inline namespace api {}
#endif

namespace api {

// Says who can fix a failure.
enum class Fault {
  Usage,   // the caller asked for something that does not exist
  Model,   // the model, weights or data cannot be used as asked
  Budget,  // the job does not fit in its memory
  System,  // files, memory, the machine
};

struct Error {
  Fault fault = Fault::System;
  std::string message;  // one line that names the node, the number and the limit
};

// A value, or the error that replaces it.
template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : held_(std::in_place_index<0>, std::move(value)) {}
  Expected(Error error) : held_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return held_.index() == 0; }

  // Only where there is a value.
  T& operator*() & { return *value(); }
  T&& operator*() && { return std::move(*value()); }
  const T& operator*() const& { return *value(); }
  T* operator->() { return value(); }
  const T* operator->() const { return value(); }

  // Only where there is none.
  const Error& error() const {
    const Error* error = std::get_if<1>(&held_);
    return assert(error), *error;
  }

 private:
  T* value() {
    T* value = std::get_if<0>(&held_);
    return assert(value), value;
  }
  const T* value() const { return const_cast<Expected*>(this)->value(); }

  std::variant<T, Error> held_;
};

template <>
class [[nodiscard]] Expected<void> : public Expected<std::monostate> {
 public:
  Expected() : Expected<std::monostate>(std::monostate()) {}
  Expected(Error error) : Expected<std::monostate>(std::move(error)) {}
};

// Element types; each F8 is one byte, Bool is one byte of 0 or 1.
enum class DType { F64, F32, BF16, F16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, Bool };

struct TensorSpec {
  std::string name;  // as the model has it
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

struct StateSpec : TensorSpec {
  bool trained = false;  // an optimizer step changes it
};

// What the optimizer does with a gradient, in PyTorch's words. Each kind reads the numbers that docs/command_line.md
// lists for it; default_optimizer gives those that PyTorch has.
struct Optimizer {
  enum class Kind { Sgd, Adam, AdamW, Adafactor, Lion, RmsProp, Adagrad, Lamb, Muon } kind = Kind::AdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // betas lie in [0, 1)
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  double weight_decay = 0;  // part of the gradient for sgd, adam, rmsprop and adagrad, decoupled for the others
  double alpha = 0.99;
  double beta2_decay = -0.8, clip_threshold = 1, min_scale = 1e-3;

  bool operator==(const Optimizer&) const = default;
};
Optimizer default_optimizer(Optimizer::Kind kind) noexcept;

// Other settings for some weights. Of several groups that match a weight, the first that has a setting decides it.
struct ParameterGroup {
  std::string pattern;            // a regular expression over names
  bool norms_and_biases = false;  // instead of it: all weights with fewer than two dimensions
  std::optional<double> rate;     // multiple of the learning rate
  std::optional<double> weight_decay;
  std::optional<Optimizer::Kind> optimizer;  // for muon alone: Muon or AdamW
};

enum class Precision {
  Exported,
  Fp32,
  Tf32,
  Bf16,  // 16 bits: compute over f32 parameters
  Fp16,
  Auto,  // the one with the least predicted time per sample, of those above that the device's matrix units are made for
  Fp8    // bf16 with 8-bit operands of linear layers' products
};
// Of adam, adamw, lamb and muon: how their moments are stored between updates. In 8 bits they have a scale for each
// 256.
enum class Moments { F32, BF16, EightBit };
enum class MasterWeights { Auto, On, Off };  // f32 copies that the optimizer updates; Auto: of 16 bits
enum class ImageLayout { Auto, ChannelsFirst, ChannelsLast };

// Matrices of a low rank that are trained beside frozen layers (LoRA). docs/adapters.md tells about them.
struct Adapters {
  int64_t rank = 0;                  // 0: there are none
  double alpha = 0;                  // the adapters' scale times their rank; 0: the rank
  bool rslora = false;               // the scale is alpha over the root of the rank
  double dropout = 0;                // below 1: share of their inputs that a step drops
  std::vector<std::string> targets;  // all-linear, ends of modules' paths, regular expressions; empty: all-linear
  std::optional<std::string> root;   // what names of weights begin with and paths do not; none: as the model says

  bool operator==(const Adapters&) const = default;
};
enum class AdapterFormat { Peft, Diffusers, Kohya };

// How frozen matrices of linear layers are stored: in the type in which they are read, in 4 bits with scales in 8 bits
// or in f32, or in 8 bits with a scale for each row.
enum class WeightFormat { AsTrained, NF4, NF4Single, Int4, Int8, FP8 };

// A training job. docs/command_line.md tells about each option under the same name.
struct CompileOptions {
  std::string model;                    // path of the exported .onnx file
  std::map<std::string, int64_t> dims;  // sizes of symbolic dimensions, each above 0
  int64_t batch = 0;                    // leading dimension of the inputs; 0: as exported, or chosen
  bool max_batch = false;               // choose the largest batch that fits; nearly any does unless split is 1
  bool best_batch = false;              // choose the batch that fits with the least predicted time per sample
  int64_t global_batch = 0;             // samples per step: choose batch and accumulate for it; 0: not chosen
  std::string loss;                     // "", OUTPUT, cross-entropy:LOGITS:LABELS, mse:A:B or bce:A:B
  std::vector<std::string> train;       // regular expressions over weights to train; empty: every parameter
  std::vector<std::string> freeze;      // regular expressions over weights to leave as they are
  bool freeze_norm = false;             // batch norms keep their running statistics
  WeightFormat quantize = WeightFormat::AsTrained;
  std::vector<std::string> quantize_skip;  // regular expressions over weights that stay as they are
  Adapters adapters;                       // with them `train` names what is trained beside them; empty: nothing

  Optimizer optimizer;
  int64_t accumulate = 1;  // micro-batches per update, at least 1; 1 where global_batch is given
  std::vector<ParameterGroup> groups;
  double layer_rate = 1;            // factor of the learning rate from each layer to the one below it
  double ema = 0;                   // decay of a running mean of the weights, below 1; 0: there is none
  double clip_grad_norm = 0;        // largest global norm of the gradients; 0: not clipped
  double clip_grad_value = 0;       // largest size of a gradient's element, bounded before the norm; 0: not bounded
  double first_loss_scale = 65536;  // fp16 alone: the loss's factor until an overflow halves it
  Precision precision = Precision::Exported;
  std::string precision_rules;  // lines such as "op:exp = fp32" that overrule `precision`
  MasterWeights master_weights = MasterWeights::Auto;
  Moments moments = Moments::F32;
  ImageLayout layout = ImageLayout::Auto;

  std::string device = "auto";  // a name that devices() gives, or auto: the GPU in this machine where there is one
  std::string device_file;      // path of more device descriptions; "": none
  std::string cluster;          // path of how the devices of several ranks hang together; "": as `device` says
  std::string timings;          // path of measured kernel times; "": predictions alone
  bool any_order = false;       // allow faster kernels whose results differ in rounding from run to run

  int64_t ranks = 1;  // processes with one device each that share the batch; they run the plan together
  std::string mesh;   // how ranks share the job otherwise, such as "data=2,stage=2"; its ranks replace `ranks`
  // The device of each rank, where they may differ, instead of `device` and `ranks`. Without a mesh unlike ones become
  // the stages of a pipeline, in this order.
  std::vector<std::string> devices;
  int zero = 1;  // what ranks divide: 0 nothing, 1 optimizer states, 2 accumulated gradients too, 3 parameters too
  bool bf16_gradient_sums = false;  // ranks send and add up gradients in bf16, half the bytes of f32
  bool local_batch_norm = false;    // batch norms see the rank's own rows alone; otherwise a step equals one rank's

  int64_t budget_bytes = 0;       // device memory each rank may hold; 0: the device's memory
  std::vector<int64_t> budgets;   // the same by rank, each above 0; empty: budget_bytes for all
  int64_t host_budget_bytes = 0;  // memory of each host, for all its ranks; 0: not limited
  bool recompute = true;          // compute values again where the budget asks for it
  bool offload = true;            // let states and values wait in host memory where the budget asks for it
  int64_t split = 0;              // chunks of the batch; 0: where the budget asks for it, 1: never split
  std::string split_from;         // the value behind which the batch comes in chunks; "": chosen by time

  bool alternatives = true;  // say what would make a refused job fit, which takes as long as a few more compiles

  std::function<void(std::string_view phase)> on_phase;  // called as each phase starts
};

// One memory of the device, or the host's.
struct Arena {
  bool on_host = false;
  int64_t bytes = 0;             // size of the one allocation
  int64_t persistent_bytes = 0;  // of states and constants, at its bottom
  int64_t peak_live_bytes = 0;   // largest sum of live bytes
  int64_t budget_bytes = 0;
  std::map<std::string, int64_t> at_peak;  // live bytes at the peak by category: parameters, gradients, saved, ...
};

// A plan says which kernel runs when, on which device, in which bytes. It holds no weights. Copies share their
// contents.
class Plan {
 public:
  static Expected<Plan> load(const std::string& path) noexcept;  // reads and checks a plan's file
  Expected<void> save(const std::string& path) const noexcept;

  const std::string& device() const noexcept;         // of the first rank; joins the names of unlike ones with one plan
  std::vector<std::string> devices() const noexcept;  // of each rank
  int64_t batch() const noexcept;           // samples per micro-batch; 0: the inputs do not share a leading dimension
  int64_t accumulate() const noexcept;      // micro-batches per step
  Precision precision() const noexcept;     // never Auto
  int64_t promised_bytes() const noexcept;  // device memory that the job never exceeds, libraries included
  int64_t promised_bytes(int64_t rank) const noexcept;  // the same of a rank of a pipeline, whose stages differ
  double predicted_step_us() const noexcept;            // of one update with all its micro-batches
  std::vector<Arena> arenas() const noexcept;           // the device's first
  std::vector<TensorSpec> inputs() const noexcept;
  std::vector<StateSpec> states() const noexcept;  // with dimensions in the model's order

  std::string report(int columns = 100) const noexcept;  // what `plimsoll inspect` prints
  std::string to_text() const noexcept;                  // every slot and instruction, a line each
  std::string to_json() const noexcept;                  // docs/interfaces.md
  std::string to_html() const noexcept;                  // the report as one page without outside resources
  // Everything about the values of that name, or made by the model's node of that name.
  Expected<std::string> why(const std::string& name) const noexcept;
  std::string diff(const Plan& after) const noexcept;  // what `after` does otherwise

  struct Impl;
  explicit Plan(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
  const Impl& impl() const noexcept { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// A job that does not fit, with one change that makes it need less device memory.
struct Alternative {
  enum class Change {
    Precision,
    Batch,           // half of it: `batch`, or one of `dims`
    Dimension,       // half of another one of `dims`
    TrainedWeights,  // `train` names the last blocks alone
    Optimizer,       // sgd, which has no state
    HostMemory,      // offloading with `host_budget_bytes` of host memory
    Chunks,          // `split`: the batch in chunks
    Cards,           // `ranks` that divide all states (`zero` 3), each with this batch
    MicroBatches,    // smaller ones, of which `accumulate` make an update of as many samples
    Moments,         // in 8 bits
    Adapters,        // `adapters` of rank 8 are trained, and nothing else
    Quantize         // the same over weights in 4 bits, or in 8-bit floats with products of these
  };
  Change change = Change::Precision;
  CompileOptions options;  // the job with the change, to be compiled; Cards that were estimated: unchanged
  int64_t cards = 1;
  int64_t needs_bytes = 0;  // device memory, per card; where it was planned, enough as a budget
  double sample_us = 0;     // predicted time per sample; per step where Plan::batch() is 0
  bool estimated = false;   // computed from the refused plan instead of planned
  bool fits = false;        // within the device's budget
};

struct Compiled {
  Plan plan;                              // where nothing fits, the plan that needs least
  bool fits = false;                      // within the budgets
  std::string refusal;                    // why it does not fit, with the numbers; "" where it fits
  std::vector<Alternative> alternatives;  // those that fit first, then the fastest per sample; empty where it fits
};

// Seconds to minutes. That a job does not fit is an answer and no error. Errors: Fault::Usage where an option is out of
// its range or excludes another, Fault::Model where the model cannot be trained as asked, Fault::System for files.
Expected<Compiled> compile(const CompileOptions& options) noexcept;

// Compiles for each of the devices, or for every device of devices() if there are none. Ignores options.device. A job
// on the CPU without a budget may hold this machine's memory. Where no device holds the job, the one that lacks least
// has the alternatives.
Expected<std::vector<Compiled>> fit(const CompileOptions& options,
                                    const std::vector<std::string>& devices = {}) noexcept;

struct Device {
  std::string name;   // for CompileOptions::device
  std::string title;  // "NVIDIA H200"
  int64_t memory_bytes = 0;
  int64_t reserved_bytes = 0;  // of them for the driver and libraries
  bool is_here = false;        // in this machine
};
Expected<std::vector<Device>> devices(const std::string& device_file = "") noexcept;

// Something that prevents training a model, or a note about it.
struct Finding {
  std::string title, message;
  std::vector<std::string> nodes;  // names in the model
  std::string freezing;            // whether leaving weights untrained helps
  bool blocks = false;
};
// Returns all findings. Ignores the job's device, budgets and searches.
Expected<std::vector<Finding>> check(const CompileOptions& options) noexcept;

struct SessionOptions {
  int threads = 0;      // of the CPU; 0: as many as the machine has
  bool poison = false;  // overwrite dead bytes with NaN, which finds plans that read them
  // Of several ranks: seconds without a sign of life or of progress from one of them after which the job ends; 0: 20
  // times the predicted step, and at least 60.
  double patience_s = 0;
};

struct Metrics {
  int64_t step = 0;      // updates done, this one included
  double loss = 0;       // mean over all samples of the step
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  double step_ms = 0;
  std::optional<double> loss_scale;  // fp16 alone: of the next step
  int64_t skipped_steps = 0;         // overflows so far
};

struct MergeOptions {
  std::string model;                    // the .onnx file that was trained
  std::string weights;                  // .onnx or .safetensors; "": the model's
  std::string adapter;                  // a folder or a file
  std::string output;                   // .onnx or .safetensors
  std::map<std::string, int64_t> dims;  // sizes of open dimensions, where the model needs some
  std::optional<std::string> root;      // as Adapters::root
};
struct Merged {
  int64_t modules = 0;  // whose adapters were added to their weights
  double largest_change = 0;
  std::string most_changed;  // the weight with it
};
// Adds adapters to the weights of a model.
Expected<Merged> merge(const MergeOptions& options) noexcept;

// Fills in the bytes of one weight.
using WeightReader = std::function<Expected<void>(const TensorSpec& weight, std::span<std::byte> into)>;

// A plan in memory with its weights. Needs the device that the plan is for. A plan for several ranks runs in as many
// processes, which mpirun, srun or the variables RANK, WORLD_SIZE, MASTER_ADDR and LOCAL_RANK have started: each
// creates a session and gives its own rows of every batch (inputs that all samples share whole), and all save together.
class Session {
 public:
  static Expected<Session> create(const Plan& plan, const SessionOptions& options = {}) noexcept;
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  // First values, by one of three before the first step. `seed` starts the random numbers of dropout.
  Expected<void> load_weights(const std::string& path, uint64_t seed = 0) noexcept;  // .onnx or .safetensors
  Expected<void> load_weights(const WeightReader& reader, uint64_t seed = 0) noexcept;
  // Drawn as PyTorch and transformers do by kind of layer; Fault::Model where a weight's layer is not known. With a
  // deviation: all matrices normal with this one, scales of norms 1, other vectors 0.
  Expected<void> random_weights(uint64_t seed, double deviation = 0) noexcept;
  Expected<void> set_learning_rate(double learning_rate) noexcept;

  // One update. `batch` holds the bytes of each of inputs() in their order, for one micro-batch after another, and is
  // copied before the function returns. Fault::Usage where a number or size differs.
  using Bytes = std::span<const std::byte>;
  Expected<Metrics> step(std::span<const Bytes> batch) noexcept;
  // The same in two halves, so that a GPU need not wait for the next batch: start at most two steps, then finish the
  // oldest.
  Expected<void> start(std::span<const Bytes> batch) noexcept;
  Expected<Metrics> finish() noexcept;
  const std::vector<TensorSpec>& inputs() const noexcept;

  // The bytes of one of the plan's states, in the model's order, as they are after the steps that were started.
  Expected<void> read(const std::string& state, std::span<std::byte> to) noexcept;
  // Adapters of PEFT, diffusers or kohya for those of the plan, after the first values. `path` is a folder or a file.
  Expected<void> load_adapter(const std::string& path) noexcept;
  // The plan's adapters into a folder, or, for formats that are one file, a .safetensors file.
  Expected<void> save_adapter(const std::string& path, AdapterFormat format = AdapterFormat::Peft) noexcept;
  // Weights under their names in the model, to .safetensors or .onnx. The latter takes the graph from `model`.
  Expected<void> save_weights(const std::string& path, const std::string& model = "") noexcept;

  // Device memory held now: by the driver's count of this process, or the session's own where nobody counts.
  Expected<int64_t> held_bytes() noexcept;

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace api
}  // namespace plimsoll
