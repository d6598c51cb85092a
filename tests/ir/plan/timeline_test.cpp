#include "ir/plan/timeline.h"

#include <doctest/doctest.h>

// Tests a plan's timeline with copies in both directions.

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

namespace {

Instruction instruction(const char* op, double us, int32_t done = -1) {
  Instruction result;
  result.op = op;
  result.predicted_us = us;
  result.done = done;
  return result;
}

// One copy per direction runs in parallel to 40 us of computing, which then waits for the one to the device. The end
// waits for the one to the host.
PlanFunction both_ways() {
  PlanFunction function;
  function.instructions = {instruction("to_host", 30, 5), instruction("exp", 10), instruction("to_device", 20, 4),
                           instruction("exp", 30), instruction("exp", 2)};
  return function;
}

}  // namespace

TEST_CASE("timeline: directions that do not slow each other down") {
  DeviceDescription device;
  device.to_host_gb_per_s = device.from_host_gb_per_s = 10;
  Timeline time = predict_timeline(both_ways(), device);
  CHECK(time.total_us == 42);
  CHECK(time.stalled_us == 0);
  CHECK(time.to_host_us == 30);
  CHECK(time.to_device_us == 20);
}

TEST_CASE("timeline: each direction is slower while both run") {
  DeviceDescription device;
  device.to_host_gb_per_s = device.from_host_gb_per_s = 10;
  device.to_host_both_ways_gb_per_s = 5;
  device.from_host_both_ways_gb_per_s = 4;
  // Both run from 10 on. The copy to the host has done 10 of its 30 and needs 20 / 0.5 = 40 more, until 50. The other
  // one would take 20 / 0.4 = 50; by 50 it has done 40 * 0.4 = 16, and it does the last 4 alone, until 54. Computing
  // needs it at 40 and ends at 56.
  Timeline time = predict_timeline(both_ways(), device);
  CHECK(time.end_us[0] == doctest::Approx(50));
  CHECK(time.start_us[2] == 10);
  CHECK(time.end_us[2] == doctest::Approx(54));
  CHECK(time.start_us[4] == doctest::Approx(54));
  CHECK(time.total_us == doctest::Approx(56));
  CHECK(time.stalled_us == doctest::Approx(14));
  CHECK(time.to_host_us == doctest::Approx(50));
  CHECK(time.to_device_us == doctest::Approx(44));
}

TEST_CASE("timeline: a longer copy takes more from computing") {
  DeviceDescription device;
  device.to_host_gb_per_s = device.from_host_gb_per_s = 10;
  device.copy_overhead_us = 1;
  device.copy_interference = 0.1;
  Timeline time = predict_timeline(both_ways(), device);
  CHECK(time.start_us[1] == doctest::Approx(1 + 3));
  CHECK(time.start_us[3] == doctest::Approx(4 + 10 + 1 + 2));
  CHECK(time.total_us == doctest::Approx(17 + 30 + 2));
}

TEST_CASE("timeline: a copy holds computing up where it is issued, and does not wait for that itself") {
  DeviceDescription device;
  device.to_host_gb_per_s = device.from_host_gb_per_s = 10;
  device.copy_overhead_us = 3;
  Timeline time = predict_timeline(both_ways(), device);
  CHECK(time.start_us[0] == 0);
  CHECK(time.start_us[1] == 3);
  CHECK(time.start_us[2] == 13);
  CHECK(time.start_us[3] == 16);
  CHECK(time.total_us == 48);
  CHECK(time.stalled_us == 0);
}

TEST_SUITE_END();

}  // namespace plimsoll
