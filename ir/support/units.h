#pragma once

// Sizes as people write them ("24GiB" is 24 * 2^30 bytes, "512MB" is 512 * 10^6), and numbers as reports show them.

#include "ir/support/status.h"

#include <cstdint>
#include <string>

namespace plimsoll {

// "1.5GiB", "512 MB", "4096": a number, perhaps a fraction, with B, KiB..TiB (powers of 1024) or kB/KB..TB
// (powers of 1000); a bare number is bytes. Negative and unreadable sizes are usage errors.
Result<int64_t> parse_bytes(llvm::StringRef text);

// In powers of 1024 with three digits: "0 B", "512 B", "1.5 KiB", "23.4 GiB". For people; rounded.
std::string format_bytes(int64_t bytes);

// A little more than `bytes`, or as many: a size that format_bytes writes without rounding, so that it can be typed
// again.
int64_t round_up_readable(int64_t bytes);

std::string format_us(double us);         // "812 us", "12.3 ms", "4.5 s"
std::string format_share(double share);   // "24.6 %"
std::string format_count(int64_t count);  // "1,234,567"

}  // namespace plimsoll
