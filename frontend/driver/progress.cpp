#include "frontend/driver/progress.h"

#include "frontend/inspect/text_table.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

constexpr double quiet_seconds = 2;  // a shorter command prints no phases
constexpr double redraw_seconds = 0.05, log_seconds = 10;

}  // namespace

std::string describe_duration(double seconds) {
  constexpr double minute = 60, hour = 3600;
  if (seconds < 2 * minute) return format_us(1e6 * seconds);
  if (seconds < 2 * hour) return std::to_string(std::llround(seconds / minute)) + " min";
  return llvm::formatv("{0:f1} h", seconds / hour).str();
}

void Progress::draw(llvm::StringRef line) {
  err_ << "\r\x1b[2K" << clipped(line, columns_ - 1);
  err_.flush();
  line_drawn_ = true;
}

void Progress::end_phase() {
  if (phase_.empty()) return;
  llvm::raw_string_ostream(held_back_) << "plimsoll: " << left(phase_, 10)
                                       << llvm::format(" %7.2f s\n", seconds_since(phase_start_));
  phase_.clear();
  if (terminal_ || seconds_since(start_) < quiet_seconds) return;
  err_ << held_back_;
  held_back_.clear();
}

void Progress::phase(llvm::StringRef name) {
  end_phase();
  phase_ = name.str();
  phase_start_ = last_line_ = Clock::now();
  done_before_ = -1;
  if (terminal_) draw("  " + phase_ + " ...");
}

void Progress::step(int64_t done, int64_t all, llvm::StringRef text) {
  const bool begins = done_before_ < 0, ends = done == all;
  if (begins) done_before_ = done - 1;
  if (seconds_since(last_line_) < (terminal_ ? redraw_seconds : log_seconds) && !ends && !begins) return;
  last_line_ = Clock::now();
  const double step_s = seconds_since(phase_start_) / static_cast<double>(done - done_before_);
  const std::string time_left =
      ends ? "" : "  " + describe_duration(step_s * static_cast<double>(all - done)) + " left";
  if (!terminal_) {
    err_ << held_back_ << "plimsoll: step " << done << " of " << all << "  " << text << time_left << "\n";
    held_back_.clear();
    return;
  }
  // The bar has the columns that the numbers leave.
  constexpr int most_columns = 24;
  const std::string numbers = std::to_string(done) + "/" + std::to_string(all) + time_left + "  " + text.str();
  const int bar_columns = std::min(columns_ - width_of(numbers) - 4, most_columns);
  const std::string filled =
      bar_columns < 4 ? ""
                      : left(bar(static_cast<double>(done) / static_cast<double>(all), bar_columns), bar_columns) + " ";
  draw("  " + filled + numbers);
}

void Progress::note(llvm::StringRef text) {
  if (line_drawn_) err_ << "\r\x1b[2K";
  line_drawn_ = false;
  err_ << held_back_ << "plimsoll: " << text << "\n";
  held_back_.clear();
  err_.flush();
}

void Progress::finish() {
  end_phase();
  if (line_drawn_) err_ << "\r\x1b[2K";
  err_.flush();
  line_drawn_ = false;
}

}  // namespace plimsoll
