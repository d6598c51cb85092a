#pragma once

// What group norms take, fitted to 140 calls on an H200 (2026-11-30), in the time of a copy of x: reading and
// writing as much. The kernels that take whole groups are quick where slabs fit the shared memory of a block or a
// cluster, and far from it where these are few and large; those that take parts do not care, but have more launches.

#include "kernels/cuda/norm/group_parts.h"
#include "kernels/cuda/norm/group_slabs.h"
#include "runtime/kernels/norm.h"

#include <cmath>

namespace plimsoll {

// A call as its prices see it.
struct GroupNormPrice {
  const OpCall& call;
  const DeviceDescription& device;
  cuda::ChannelShape shape = channels_of(call);
  int64_t groups = call.get_int("groups"), element_bytes = dtype_bytes(call["x"].dtype);
  bool is_backward = call.op.name == "group_norm_grad";

  double moved_us(double bytes) const { return bytes / (device.memory_gb_per_s * 1e3); }
  double copy_us() const { return moved_us(2.0 * static_cast<double>(call["x"].bytes())); }
  bool is_short() const { return element_bytes == 2; }
  int64_t run() const { return shape.channels / groups; }
  int64_t rows() const { return shape.batch * groups; }

  // Three tensors pass forward, five backward, beside the launches. Channels that are no whole accesses are read one by
  // one, and a part costs some time beside its elements.
  double parts_us() const {
    constexpr double forward_us = 12.5, backward_us = 11, of_wave_us = 3.8;
    const cuda::GroupParts p(shape, element_bytes, is_backward ? cuda::group_part_grad_bytes : cuda::group_part_bytes);
    const double spread = std::pow(p.threads_per_column(), 0.6);
    const double single = is_backward ? 1.4 : is_short() ? 1.9 : 1.55;
    const auto blocks = static_cast<double>(p.planes * p.column_blocks * p.parts);
    const double more_waves = std::max(0.0, blocks / static_cast<double>(cuda::one_wave) - 1);
    return (is_backward ? backward_us : forward_us) + more_waves * of_wave_us +
           (is_backward ? 2.45 : 1.57) * copy_us() * spread * (p.is_whole() ? 1 : single);
  }

  double groups_us() const { return shape.channels_last ? groups_last_us() : groups_first_us(); }

 private:
  // Slabs that wait in shared memory, of a block or of a cluster; then those that are read again.
  double groups_last_us() const {
    const bool is_hopper = device.compute_capability == 90;
    const cuda::GroupSlab slab(shape, groups, element_bytes, is_backward ? 2 : 1,
                               is_hopper ? cuda::most_slab_parts : 1);
    if (slab.channels > 0 && slab.parts == 1 && slab.kept_bytes > 0)
      return is_backward ? 7 + 1.85 * copy_us() : 4 + 1.22 * copy_us();
    if (is_hopper && fits_ring()) {
      if (is_backward) return 11 + 3 * copy_us();
      if (slab.channels * element_bytes >= 64) return 11 + 2 * copy_us();
      return is_short() ? 9.5 + 2.6 * copy_us() : 7 + 2.05 * copy_us();
    }
    if (slab.channels > 0) return is_backward ? 14 + (is_short() ? 3.4 : 4) * copy_us() : 6 + 2.75 * copy_us();
    return few_groups_us();
  }

  // Is there a slab of rows of 32 bytes whose part fits the ring of each block of a cluster?
  bool fits_ring() const {
    constexpr int64_t least_bytes = 32, ring_bytes = int64_t{200} << 10, most_channels = 256;
    const int64_t n = cuda::vector_bytes / element_bytes, positions = divide_up(shape.inner, cuda::most_slab_parts);
    for (int64_t some = 1; some <= groups && some * run() <= most_channels; ++some) {
      const int64_t row_bytes = some * run() * element_bytes;
      if (groups % some == 0 && some * run() % n == 0 && row_bytes >= least_bytes)
        return row_bytes * positions * (is_backward ? 2 : 1) <= ring_bytes;
    }
    return false;
  }

  // A block a group, which reads x three times and writes y: sectors of memory of which it needs a part, or one access
  // after the other. Backward, the sums are those of a block for 32 channels of a sample.
  double few_groups_us() const {
    constexpr int64_t sector = 32;
    constexpr double access_us = 1.7e-3, sums_us = 0.405, rows_at_once = 16;
    const auto inner = static_cast<double>(shape.inner);
    const auto run_bytes = static_cast<double>(round_up(run() * element_bytes, sector));
    const double sectors_us = moved_us(static_cast<double>(rows()) * inner * run_bytes);
    if (!is_backward) {
      const int64_t n = cuda::vector_bytes / element_bytes;
      const auto accesses = static_cast<double>(run() % n == 0 ? run() / n : run() % 2 == 0 ? run() / 2 : run());
      return 6 + std::max(4 * sectors_us, access_us * accesses * inner);
    }
    const auto tiles = static_cast<double>(shape.batch * divide_up(shape.channels, 32));
    const double waves = std::max(1.0, tiles / static_cast<double>(4 * device.multiprocessors));
    return 10 + 3 * sectors_us + waves * inner / rows_at_once * sums_us;
  }

  // A block a group, which has consecutive elements: what all of them keep busy is read again from memory where it is
  // more than the cache holds, and few are as quick as one block is. A block takes the group's channels one after the
  // other.
  double groups_first_us() const {
    constexpr int64_t cache_bytes = int64_t{25} << 20, blocks_at_once = 8;
    constexpr double of_channel_us = 1, of_channel_back_us = 2.7;
    const int64_t group_bytes = run() * shape.inner * element_bytes;
    const auto bytes = static_cast<double>(group_bytes);
    const auto channels_of_block =
        static_cast<double>(run() * divide_up(rows(), blocks_at_once * std::max(device.multiprocessors, 1)));
    if (is_backward)
      return 6 + of_channel_back_us * channels_of_block +
             std::max(2.7 * copy_us(), bytes / (is_short() ? 4.3e3 : 5.2e3));
    const bool is_cached = group_bytes * std::min<int64_t>(rows(), 2 * device.multiprocessors) <= cache_bytes;
    return 4 + of_channel_us * channels_of_block +
           std::max((is_cached ? 1.45 : 2) * copy_us(), bytes / (is_short() ? 10.2e3 : 13.6e3));
  }
};

}  // namespace plimsoll
