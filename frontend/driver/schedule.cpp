#include "frontend/driver/commands.h"

// Options about the learning rate, as a schedule.

namespace plimsoll {
namespace {

Status read_rate(llvm::StringRef option, const std::string& text, std::optional<RelativeRate>& into) {
  if (text.empty()) return Status::success();
  Result<RelativeRate> rate = parse_relative_rate(text);
  if (!rate) return in_context(option, rate.takeError());
  into = *rate;
  return Status::success();
}

}  // namespace

Result<LearningRateSchedule> read_schedule(const RateOptions& options, double peak, int64_t updates) {
  ScheduleRequest request{.shape = options.shape, .peak = peak};
  request.updates = options.updates > 0 ? options.updates : updates;
  if (options.warmup >= 0) request.warmup = options.warmup;
  if (options.decay >= 0) request.decay = options.decay;
  if (options.power >= 0) request.power = options.power;
  if (Status s = read_rate("--warmup-from", options.warmup_from, request.first)) return s;
  if (Status s = read_rate("--lr-end", options.end, request.last)) return s;
  return make_schedule(request);
}

}  // namespace plimsoll
