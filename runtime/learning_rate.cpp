#include "runtime/learning_rate.h"

#include "ir/support/did_you_mean.h"

#include <algorithm>
#include <cmath>

// With a warm-up of W of N updates, update t < W has the rate first + (peak - first) * t / W, and the shape goes over
// the N - W updates behind it: the values of transformers' get_*_schedule_with_warmup, and those of PyTorch's LinearLR,
// CosineAnnealingLR and PolynomialLR where there is no warm-up. One-cycle is PyTorch's OneCycleLR without its change of
// the momentum.

namespace plimsoll {
namespace {

constexpr double pi = 3.14159265358979323846;

double between(double from, double to, double share) { return from + (to - from) * share; }
// Half a cosine: slow at both ends.
double eased(double from, double to, double share) { return to + (from - to) / 2 * (1 + std::cos(pi * share)); }

// The first half ends one update early, and so does the second, since PyTorch counts the updates from 0.
double one_cycle(const LearningRateSchedule& s, double at) {
  const double bottom = static_cast<double>(s.updates) - 1;
  if (at < s.top) return eased(s.first, s.peak, at / s.top);
  return eased(s.peak, s.last, std::min(1.0, (at - s.top) / (bottom - s.top)));
}

// A setting that changes nothing would be believed to.
Status check_use(const ScheduleRequest& request, RateShape shape) {
  const std::string name = rate_shape_names[static_cast<size_t>(shape)].str();
  if (request.first && request.warmup.value_or(0) == 0 && shape != RateShape::OneCycle)
    return usage_error("the schedule has a first rate, and no warm-up that starts there");
  if (request.last && shape == RateShape::Constant) return usage_error("a constant learning rate has no end to go to");
  if (request.decay && shape != RateShape::Wsd)
    return usage_error("only the schedule wsd takes a number of decay updates, not " + name);
  if (request.power && shape != RateShape::Polynomial)
    return usage_error("only the schedule polynomial has a power, not " + name);
  return Status::success();
}

}  // namespace

double LearningRateSchedule::rate(int64_t update) const {
  const auto at = static_cast<double>(update);
  if (shape == RateShape::OneCycle) return one_cycle(*this, at);
  if (update < warmup) return between(first, peak, at / static_cast<double>(warmup));
  if (shape == RateShape::Constant) return peak;
  if (update >= updates) return last;
  const double done = (at - static_cast<double>(warmup)) / static_cast<double>(updates - warmup);
  switch (shape) {
    case RateShape::Linear: return between(peak, last, done);
    case RateShape::Cosine: return eased(peak, last, done);
    case RateShape::Polynomial: return between(last, peak, std::pow(1 - done, power));
    default: break;
  }
  const int64_t into_decay = update - (updates - decay);
  return into_decay <= 0 ? peak : between(peak, last, static_cast<double>(into_decay) / static_cast<double>(decay));
}

Result<RelativeRate> parse_relative_rate(llvm::StringRef text) {
  RelativeRate rate;
  llvm::StringRef number = text.trim();
  rate.relative = number.consume_back("x");
  if (number.getAsDouble(rate.value) || !std::isfinite(rate.value) || rate.value < 0)
    return usage_error("'" + text + "' is no learning rate; write it as 1e-5, or as 0.1x for a tenth of the usual one");
  return rate;
}

Result<LearningRateSchedule> make_schedule(const ScheduleRequest& request) {
  const auto* found = llvm::find(rate_shape_names, llvm::StringRef(request.shape));
  if (found == std::end(rate_shape_names)) {
    const std::vector<llvm::StringRef> names(std::begin(rate_shape_names), std::end(rate_shape_names));
    return usage_error("learning-rate schedule '" + request.shape + "' is unknown; known are " +
                       llvm::join(names, ", "));
  }
  LearningRateSchedule schedule;
  schedule.shape = static_cast<RateShape>(found - std::begin(rate_shape_names));
  if (Status s = check_use(request, schedule.shape)) return s;
  const bool one_cycle = schedule.shape == RateShape::OneCycle;
  schedule.peak = request.peak;
  schedule.updates = request.updates;
  schedule.power = request.power.value_or(1);
  const double usual_warmup = one_cycle ? 0.3 * static_cast<double>(request.updates) : 0;
  schedule.warmup = request.warmup.value_or(static_cast<int64_t>(usual_warmup));
  schedule.top = (request.warmup ? static_cast<double>(*request.warmup) : usual_warmup) - 1;
  schedule.first = request.first.value_or(RelativeRate{one_cycle ? 1.0 / 25 : 0, true}).of(request.peak);
  schedule.last = request.last ? request.last->of(request.peak) : one_cycle ? schedule.first / 1e4 : 0;
  const bool ends = schedule.shape != RateShape::Constant;
  if (schedule.shape == RateShape::Wsd)
    schedule.decay = request.decay.value_or(std::max<int64_t>(1, request.updates / 10));
  if (ends && schedule.warmup + schedule.decay > schedule.updates)
    return usage_error("the schedule has " + llvm::Twine(schedule.updates) + " updates, and its warm-up" +
                       (schedule.decay > 0 ? " and decay take " : " takes ") +
                       llvm::Twine(schedule.warmup + schedule.decay));
  return schedule;
}

}  // namespace plimsoll
