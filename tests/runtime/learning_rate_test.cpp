#include "runtime/learning_rate.h"

#include <doctest/doctest.h>

// Rates beside those of PyTorch 2.15 and transformers 5.23, with a peak of 0.5 and mostly 10 updates.

namespace plimsoll {
namespace {

void check_rates(const ScheduleRequest& request, llvm::ArrayRef<double> expected) {
  Result<LearningRateSchedule> schedule = make_schedule(request);
  REQUIRE(bool(schedule));
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(schedule->rate(static_cast<int64_t>(i)) == doctest::Approx(expected[i]).epsilon(1e-10));
  }
}

std::string refusal(const ScheduleRequest& request) {
  Result<LearningRateSchedule> schedule = make_schedule(request);
  REQUIRE(!schedule);
  return take_diag(schedule.takeError()).text();
}

TEST_SUITE("unit") {
  TEST_CASE("learning rates without a warm-up are those of PyTorch's schedulers") {
    ScheduleRequest request{.shape = "linear", .peak = 0.5, .updates = 10};
    request.last = RelativeRate{0.1, true};  // LinearLR(1.0, 0.1, 10)
    check_rates(request, {0.5, 0.455, 0.41, 0.365, 0.32, 0.275, 0.23, 0.185, 0.14, 0.095, 0.05, 0.05});
    request.shape = "cosine";  // CosineAnnealingLR(10, 0.05)
    check_rates(request, {0.5, 0.488987716166, 0.457028823734, 0.407251681766, 0.344528823734, 0.275, 0.205471176266,
                          0.142748318234, 0.0929711762656, 0.0610122838336, 0.05});
    request = {.shape = "polynomial", .peak = 0.5, .updates = 10};
    request.power = 2;  // PolynomialLR(10, 2.0)
    check_rates(request, {0.5, 0.405, 0.32, 0.245, 0.18, 0.125, 0.08, 0.045, 0.02, 0.005, 0, 0});
    // OneCycleLR(max_lr=0.5, total_steps=10, cycle_momentum=False)
    check_rates({.shape = "one-cycle", .peak = 0.5, .updates = 10},
                {0.02, 0.26, 0.5, 0.475242316007, 0.405872826975, 0.305631010968, 0.194370989032, 0.0941291730251,
                 0.0247596839933, 2e-06});
    // OneCycleLR(max_lr=0.5, total_steps=6, cycle_momentum=False), whose peak lies between two updates
    check_rates({.shape = "one-cycle", .peak = 0.5, .updates = 6},
                {0.02, 0.497207717725, 0.405872826975, 0.231318551333, 0.0667387650944, 2e-06});
  }

  TEST_CASE("learning rates with a warm-up are those of transformers") {
    ScheduleRequest request{.shape = "constant", .peak = 0.5, .updates = 10};
    request.warmup = 4;
    check_rates(request, {0, 0.125, 0.25, 0.375, 0.5, 0.5, 0.5});
    request.warmup = 3;
    request.shape = "linear";
    check_rates(request, {0, 0.166666666667, 0.333333333333, 0.5, 0.428571428571, 0.357142857143, 0.285714285714,
                          0.214285714286, 0.142857142857, 0.0714285714286, 0, 0});
    request.shape = "cosine";
    check_rates(request, {0, 0.166666666667, 0.333333333333, 0.5, 0.475242216976, 0.405872450465, 0.305630233489,
                          0.194369766511, 0.0941275495353, 0.0247577830244, 0});
    request.shape = "polynomial";
    request.power = 3;
    request.last = RelativeRate{0.02};
    check_rates(request, {0, 0.166666666667, 0.333333333333, 0.5, 0.322274052478, 0.194927113703, 0.109562682216,
                          0.0577842565598, 0.031195335277, 0.0213994169096, 0.02, 0.02});
    // get_wsd_schedule(2, 4, num_stable_steps=4, decay_type="linear", min_lr_ratio=0.1), which also starts at that
    // ratio
    request = {.shape = "wsd", .peak = 0.5, .updates = 10};
    request.warmup = 2;
    request.decay = 4;
    request.first = request.last = RelativeRate{0.1, true};
    check_rates(request, {0.05, 0.275, 0.5, 0.5, 0.5, 0.5, 0.5, 0.3875, 0.275, 0.1625, 0.05, 0.05});
    // SequentialLR([LinearLR(0.1, 1.0, 3), CosineAnnealingLR(7)], [3])
    request = {.shape = "cosine", .peak = 0.5, .updates = 10};
    request.warmup = 3;
    request.first = RelativeRate{0.1, true};
    check_rates(request, {0.05, 0.2, 0.35, 0.5, 0.475242216976, 0.405872450465, 0.305630233489, 0.194369766511,
                          0.0941275495353, 0.0247577830244});
  }

  TEST_CASE("a schedule refuses what it cannot follow or would not use") {
    CHECK(refusal({.shape = "cosin"}) ==
          "learning-rate schedule 'cosin' is unknown; known are constant, linear, cosine, polynomial, wsd, one-cycle");
    ScheduleRequest request{.shape = "wsd", .peak = 0.5, .updates = 10};
    request.warmup = 8;
    request.decay = 3;
    CHECK(refusal(request) == "the schedule has 10 updates, and its warm-up and decay take 11");
    request.shape = "cosine";
    CHECK(refusal(request) == "only the schedule wsd takes a number of decay updates, not cosine");
    request = {.shape = "constant", .peak = 0.5};
    request.last = RelativeRate{0.1};
    CHECK(refusal(request) == "a constant learning rate has no end to go to");
    for (const char* text : {"", "x", "fast", "-1", "nan", "1e-3y"}) {
      Result<RelativeRate> rate = parse_relative_rate(text);
      CHECK(!rate);
      if (!rate) llvm::consumeError(rate.takeError());
    }
  }
}

}  // namespace
}  // namespace plimsoll
