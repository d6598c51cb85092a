#include "frontend/api/adapters.h"
#include "frontend/api/job.h"
#include "frontend/api/plimsoll_impl.h"
#include "frontend/api/save_states.h"
#include "ir/support/strings.h"
#include "runtime/comm/communicator.h"
#include "runtime/session.h"

#include <cstring>

namespace plimsoll::api {
namespace {

// One step's batches out of the caller's memory.
class GivenBatches : public BatchSource {
 public:
  explicit GivenBatches(std::span<const Session::Bytes> tensors) : tensors_(tensors) {}

  Status next(llvm::ArrayRef<TensorView> inputs) override {
    for (const TensorView& input : inputs) std::memcpy(input.data, tensors_[next_++].data(), input.type.bytes());
    return Status::success();
  }
  Status seek(int64_t) override { return usage_error("the caller's batches have no position"); }
  llvm::StringRef item_name() const override { return "batches"; }

 private:
  std::span<const Session::Bytes> tensors_;
  size_t next_ = 0;
};

std::string count_of(int64_t bytes) { return std::to_string(bytes) + " bytes"; }

Metrics public_metrics(const StepMetrics& metrics) {
  return {metrics.step,    metrics.loss,       metrics.grad_norm,    metrics.learning_rate,
          metrics.step_ms, metrics.loss_scale, metrics.skipped_steps};
}

}  // namespace

struct Session::Impl {
  std::unique_ptr<Communicator> ranks;  // null: one rank
  std::unique_ptr<plimsoll::Session> session;
  std::vector<TensorSpec> inputs;
  bool has_weights = false;
  int in_flight = 0;  // steps that were started and not finished
};

namespace {

constexpr int max_in_flight = 2;

Expected<void> after_first_values(Session::Impl& session, Status status) {
  session.in_flight = 0;
  session.has_weights = !status;
  return to_public_status(std::move(status));
}

Status check_start(const Session::Impl& session, std::span<const Session::Bytes> batch) {
  if (!session.has_weights) return usage_error("the session has no weights yet");
  if (session.in_flight == max_in_flight) return usage_error("two steps are in flight; finish one before the next");
  const size_t inputs = session.inputs.size();
  const size_t tensors = inputs * static_cast<size_t>(session.session->plan().training.accumulate);
  if (batch.size() != tensors)
    return usage_error("a step takes " + std::to_string(tensors) + " tensors, got " + std::to_string(batch.size()));
  for (size_t i = 0; i < tensors; ++i) {
    const TensorSpec& input = session.inputs[i % inputs];
    if (batch[i].size() != static_cast<size_t>(input.bytes))
      return usage_error("input '" + input.name + "' takes " + count_of(input.bytes) + ", got " +
                         count_of(static_cast<int64_t>(batch[i].size())));
  }
  return Status::success();
}

}  // namespace

Session::Session(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Expected<Session> Session::create(const Plan& plan, const SessionOptions& options) noexcept {
  Result<std::unique_ptr<Communicator>> ranks =
      plan.impl().plan.mesh.ranks() > 1 ? connect_ranks() : Result<std::unique_ptr<Communicator>>(nullptr);
  if (!ranks) return to_public(ranks.takeError());
  Result<std::unique_ptr<plimsoll::Session>> session = plimsoll::Session::create(
      plan.impl().plan,
      {.threads = options.threads, .poison = options.poison, .ranks = ranks->get(), .patience_s = options.patience_s});
  if (!session) return to_public(session.takeError());
  auto impl = std::make_unique<Impl>();
  impl->ranks = std::move(*ranks);
  impl->session = std::move(*session);
  impl->inputs = plan.inputs();
  return Session(std::move(impl));
}

Expected<void> Session::load_weights(const std::string& path, uint64_t seed) noexcept {
  Result<Weights> weights = open_weights(path);
  if (!weights) return to_public(weights.takeError());
  return after_first_values(*impl_,
                            impl_->session->initialise(weights->load, seed, weights->load_range, weights->type_of));
}

Expected<void> Session::load_weights(const WeightReader& reader, uint64_t seed) noexcept {
  auto load = [&](llvm::StringRef name, const TensorView& into) {
    const TensorSpec weight = to_public(name.str(), into.type);
    return to_status(reader(weight, {into.as<std::byte>(), static_cast<size_t>(weight.bytes)}));
  };
  return after_first_values(*impl_, impl_->session->initialise(load, seed));
}

Expected<void> Session::random_weights(uint64_t seed, double deviation) noexcept {
  return after_first_values(*impl_, impl_->session->initialise_randomly(seed, deviation));
}

Expected<void> Session::set_learning_rate(double learning_rate) noexcept {
  return to_public_status(impl_->session->set_learning_rate(learning_rate));
}

Expected<Metrics> Session::step(std::span<const Bytes> batch) noexcept {
  if (impl_->in_flight > 0) return Error{Fault::Usage, "a step that was started is to be finished first"};
  if (Expected<void> started = start(batch); !started) return started.error();
  return finish();
}

Expected<void> Session::start(std::span<const Bytes> batch) noexcept {
  if (Status s = check_start(*impl_, batch)) return to_public(std::move(s));
  GivenBatches batches(batch);
  if (Status s = impl_->session->start(batches)) return to_public(std::move(s));
  ++impl_->in_flight;
  return {};
}

Expected<Metrics> Session::finish() noexcept {
  if (impl_->in_flight == 0) return Error{Fault::Usage, "no step was started"};
  --impl_->in_flight;
  Result<StepMetrics> metrics = impl_->session->finish();
  if (!metrics) return to_public(metrics.takeError());
  return public_metrics(*metrics);
}

const std::vector<TensorSpec>& Session::inputs() const noexcept { return impl_->inputs; }

Expected<void> Session::read(const std::string& state, std::span<std::byte> to) noexcept {
  return to_public_status(impl_->session->read_state(state, [&](const TensorView& view) -> Status {
    if (to.size() != static_cast<size_t>(view.type.bytes()))
      return usage_error("state '" + state + "' has " + count_of(view.type.bytes()) + ", the buffer " +
                         count_of(static_cast<int64_t>(to.size())));
    std::memcpy(to.data(), view.data, to.size());
    return Status::success();
  }));
}

Expected<void> Session::load_adapter(const std::string& path) noexcept {
  if (!impl_->has_weights) return Error{Fault::Usage, "the session has no weights yet"};
  return to_public_status(plimsoll::load_adapter(*impl_->session, path));
}

Expected<void> Session::save_adapter(const std::string& path, AdapterFormat format) noexcept {
  const auto inside = static_cast<plimsoll::AdapterFormat>(format);
  if (Status s = check_adapter_target(path, inside)) return to_public(std::move(s));
  return to_public_status(plimsoll::save_adapter(*impl_->session, path, inside));
}

Expected<void> Session::save_weights(const std::string& path, const std::string& model) noexcept {
  if (Status s = check_save_targets(path, model)) return to_public(std::move(s));
  return to_public_status(save_states(*impl_->session, path, {ends_with(model, ".onnx") ? model : "", model}));
}

Expected<int64_t> Session::held_bytes() noexcept {
  Result<MemoryUse> use = impl_->session->executor().memory_use();
  if (!use) return to_public(use.takeError());
  return use->process_bytes > 0 ? use->process_bytes : use->arena_bytes + use->other_bytes;
}

}  // namespace plimsoll::api
