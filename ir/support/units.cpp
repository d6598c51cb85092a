#include "ir/support/units.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

#include <charconv>
#include <cmath>

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral binary_units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
constexpr llvm::StringLiteral decimal_units[] = {"B", "KB", "MB", "GB", "TB"};

double unit_factor(llvm::StringRef unit) {
  if (unit.empty()) return 1;
  for (size_t i = 0; i < std::size(binary_units); ++i) {
    if (unit.equals_insensitive(binary_units[i])) return std::pow(1024.0, static_cast<double>(i));
    if (unit.equals_insensitive(decimal_units[i])) return std::pow(1000.0, static_cast<double>(i));
  }
  return 0;
}

std::string printed(const char* form, double value) {
  char text[48];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

}  // namespace

Result<int64_t> parse_bytes(llvm::StringRef text) {
  llvm::StringRef trimmed = text.trim();
  double number = 0;
  auto [end, error] = std::from_chars(trimmed.begin(), trimmed.end(), number, std::chars_format::fixed);
  double factor = unit_factor(llvm::StringRef(end, trimmed.end() - end).trim());
  if (error != std::errc() || !std::isfinite(number) || factor == 0)
    return usage_error("'" + text + "' is not a size; write bytes or a number with a unit, as 24GiB or 512MB");
  double bytes = number * factor;
  if (bytes < 0 || bytes > 9e18) return usage_error("the size '" + text + "' is out of range");
  return static_cast<int64_t>(std::llround(bytes));
}

std::string format_bytes(int64_t bytes) {
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::fabs(value) >= 1023.5 && unit + 1 < std::size(binary_units)) {
    value /= 1024;
    ++unit;
  }
  // Three digits, and no ".0" behind a whole number.
  int decimals = std::fabs(value) < 9.995 ? 2 : std::fabs(value) < 99.95 ? 1 : 0;
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.*f", unit == 0 ? 0 : decimals, value);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text + " " + binary_units[unit].str();
}

int64_t round_up_readable(int64_t bytes) {
  for (int64_t size = bytes;; size += std::max<int64_t>(size / 1000, 1))
    if (int64_t read = llvm::cantFail(parse_bytes(format_bytes(size))); read >= bytes) return read;
}

std::string format_us(double us) {
  if (us >= 1e6) return printed(us >= 1e8 ? "%.0f s" : us >= 1e7 ? "%.1f s" : "%.2f s", us / 1e6);
  if (us >= 1e3) return printed(us >= 1e5 ? "%.0f ms" : us >= 1e4 ? "%.1f ms" : "%.2f ms", us / 1e3);
  return printed(us >= 100 ? "%.0f us" : "%.1f us", us);
}

std::string format_share(double share) { return printed("%.1f %%", 100 * share); }

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (count < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

}  // namespace plimsoll
