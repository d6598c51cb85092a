#include "frontend/driver/run_data.h"

#include "frontend/driver/transforms_file.h"
#include "ir/machine/image_decoding.h"
#include "ir/support/units.h"
#include "runtime/comm/communicator.h"
#include "runtime/cuda/card_decoder.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace plimsoll {
namespace {

// Below this share the remedies cost more than they bring.
constexpr double reported_share = 0.01;

}  // namespace

Status read_data_options(const DataRequest& request, DataOptions& options) {
  if (request.last_batch != "drop" && request.last_batch != "pad")
    return usage_error("--last-batch is drop or pad, not '" + request.last_batch + "'");
  if (!(request.hold_out >= 0 && request.hold_out < 1))
    return usage_error("--hold-out is a share of the samples, at least 0 and below 1");
  options.hold_out = request.hold_out;
  options.shuffle = !request.in_order;
  options.last_batch = request.last_batch == "pad" ? LastBatch::Pad : LastBatch::Drop;
  options.threads = request.threads;
  options.document_end = request.document_end;
  Result<size_t> labels = read_choice("--labels", request.labels, {"auto", "same", "next"});
  if (!labels) return labels.takeError();
  options.labels = static_cast<LabelTokens>(*labels);
  if (request.transforms.empty()) return Status::success();
  Result<Transforms> transforms = read_transforms(request.transforms);
  if (!transforms) return transforms.takeError();
  options.transforms = transforms->image;
  options.padding = transforms->padding;
  return Status::success();
}

Result<int64_t> cache_bytes_of_run(const std::string& asked, const Plan& plan) {
  return asked.empty() ? plan.host.cache_bytes : size_option("--cache", asked);
}

Status RunData::open(const RunOptions& options, const RunStart& start, const Session& session,
                     const DecodeChoice& decode, Communicator* ranks) {
  DataOptions data_options = session.rows_of_rank(start.seed);
  if (Status s = read_data_options(options.data_request, data_options)) return s;
  Result<int64_t> cache = cache_bytes_of_run(options.cache, session.plan());
  if (!cache) return cache.takeError();
  data_options.cache_bytes = *cache;
  data_options.shorter = shorter_inputs_of(session.plan());
  decoding_note_ = decode.note;
  if (decode.on_gpu) {
    Result<std::shared_ptr<ImageDecoder>> decoder = open_card_decoder();
    if (!decoder && decode.was_asked) return in_context("--decode gpu", decoder.takeError());
    if (decoder) {
      data_options.decoder = std::move(*decoder);
      decoding_bytes_ = decode.device_bytes;
      decoding_note_ = "JPEGs are decoded on the GPU, in " + format_bytes(ImageDecodingMemory::device_bytes()) +
                       " of its memory " +
                       (decoding_bytes_ > 0 ? "beside the plan's promise" : "that the plan reserves") + " and " +
                       format_bytes(decode.pinned_bytes) + " pinned on the host";
    } else {
      decoding_note_ = "JPEGs are decoded by the processor: " + take_diag(decoder.takeError()).text();
    }
  }
  Result<std::unique_ptr<BatchSource>> source = open_data(options.data, session.inputs(), data_options);
  if (!source) return source.takeError();
  source_ = std::move(*source);
  const Plan& plan = session.plan();
  data_ranks_ = plan.mesh[MeshAxis::Data];
  Result<int64_t> steps = count_steps(options, start, plan, ranks);
  if (!steps) return steps.takeError();
  steps_ = *steps;
  if (start.batches > 0)
    if (Status s = source_->seek(start.batches)) return s;
  // By the end of its first batch nvJPEG holds what it will hold, so that the promise can be looked at.
  if (data_options.decoder) source_->wait();
  return Status::success();
}

// A stage of a pipeline without inputs does not know the epochs; the ranks that have inputs agree.
Result<int64_t> RunData::count_steps(const RunOptions& options, const RunStart& start, const Plan& plan,
                                     Communicator* ranks) const {
  if (options.epochs == 0) return options.steps;
  const int64_t own = source_->batches_per_epoch();
  std::vector<int64_t> all = {own};
  if (ranks && ranks->ranks() > 1) {
    all.resize(static_cast<size_t>(ranks->ranks()));
    if (Status s = ranks->gather_all(&own, all.data(), sizeof own)) return s;
  }
  const int64_t batches = *std::max_element(all.begin(), all.end());
  if (batches == 0) return usage_error("--epochs: " + options.data + " has no epochs; give --steps");
  const int64_t left = std::max<int64_t>(0, options.epochs * batches - start.batches);
  const int64_t steps = start.steps + left / plan.training.accumulate;
  if (steps > 0) return steps;
  return usage_error("--epochs: " + options.data + " has " + llvm::Twine(batches) +
                     " batches in an epoch, one step needs " + llvm::Twine(plan.training.accumulate));
}

void RunData::count_started_step() {
  const int64_t before = std::exchange(items_counted_, source_->items_read());
  step_items_.push_back(static_cast<double>((items_counted_ - before) * data_ranks_));
}

double RunData::take_items() {
  const double items = step_items_.front();
  step_items_.pop_front();
  return items;
}

void RunData::start_clock() {
  waited_before_s_ = source_->waited_s();
  clock_start_ = std::chrono::steady_clock::now();
}

std::string RunData::describe_wait() const {
  const double passed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - clock_start_).count();
  const double share = passed_s > 0 ? (source_->waited_s() - waited_before_s_) / passed_s : 0;
  if (share < reported_share) return "";
  const std::string waited = "steps waited for data " + format_share(share) + " of the time";
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (source_->threads() == 0) return waited;
  if (source_->threads() < cores)
    return waited + "; --data-threads " + std::to_string(cores) + " reads with every core, now " +
           std::to_string(source_->threads()) + (source_->threads() == 1 ? " does" : " do");
  return waited + ", with " + std::to_string(source_->threads()) + " threads that read";
}

}  // namespace plimsoll
