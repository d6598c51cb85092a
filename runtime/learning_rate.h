#pragma once

// The learning rate as a pure function of the update's number, so that a run that is resumed goes on where it stopped.

#include "ir/support/status.h"

#include <optional>

namespace plimsoll {

// How the rate goes from its peak, behind the warm-up, to its end.
enum class RateShape : uint8_t {
  Constant,
  Linear,
  Cosine,
  Polynomial,
  Wsd,      // warm-up, stable, decay: constant, then linear over the last updates (Hu et al. 2024)
  OneCycle  // half a cosine up and half a cosine down (Smith and Topin 2019)
};
inline constexpr llvm::StringLiteral rate_shape_names[] = {"constant",   "linear", "cosine",
                                                           "polynomial", "wsd",    "one-cycle"};  // by shape

struct LearningRateSchedule {
  RateShape shape = RateShape::Constant;
  double peak = 0;
  double first = 0;     // rate of update 0, where there is a warm-up
  double last = 0;      // rate of update `updates` and of all behind it; Constant has none
  int64_t updates = 0;  // in all
  int64_t warmup = 0;   // updates before the one that has the peak
  double top = 0;  // OneCycle: the update with the peak, which PyTorch puts between two where 30 % are no whole number
  int64_t decay = 0;  // Wsd: updates of the decay
  double power = 1;   // Polynomial

  // `update` counts from 0.
  double rate(int64_t update) const;
};

// A rate as a number, or as a multiple of another one.
struct RelativeRate {
  double value = 0;
  bool relative = false;
  double of(double rate) const { return relative ? value * rate : value; }
};
// Reads "1e-5" or "0.1x"; an error where it is neither or negative.
Result<RelativeRate> parse_relative_rate(llvm::StringRef text);

// The schedule as a caller asks for it. What is not given is chosen as PyTorch and transformers do.
struct ScheduleRequest {
  std::string shape = "constant";
  double peak = 0;
  int64_t updates = 0;                // of the whole schedule
  std::optional<int64_t> warmup;      // default: none; one-cycle: 30 % of the updates
  std::optional<RelativeRate> first;  // default: 0; one-cycle: a 25th of the peak
  std::optional<RelativeRate> last;   // default: 0; one-cycle: a 10000th of the first rate
  std::optional<int64_t> decay;       // default: a tenth of the updates
  std::optional<double> power;        // default: 1
};
// Errors (Fault::Usage) where the shape is unknown, has no use for what was given, or is shorter than its warm-up and
// decay.
Result<LearningRateSchedule> make_schedule(const ScheduleRequest& request);

}  // namespace plimsoll
