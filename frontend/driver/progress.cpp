#include "frontend/driver/progress.h"

#include "frontend/inspect/text_table.h"

#include "llvm/Support/Format.h"

namespace plimsoll {
namespace {

constexpr double quiet_seconds = 2;  // a shorter command prints no phases
constexpr double redraw_seconds = 0.05, log_seconds = 10;

}  // namespace

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
  if (terminal_) draw("  " + phase_ + " ...");
}

void Progress::step(int64_t done, int64_t all, llvm::StringRef text) {
  bool ends = done == all;
  if (seconds_since(last_line_) < (terminal_ ? redraw_seconds : log_seconds) && !ends && done != 1) return;
  last_line_ = Clock::now();
  double passed = seconds_since(phase_start_);
  if (!terminal_) {
    err_ << held_back_ << "plimsoll: step " << done << " of " << all << "  " << text << "\n";
    held_back_.clear();
    return;
  }
  constexpr int bar_columns = 24;
  std::string filled = bar(static_cast<double>(done) / static_cast<double>(all), bar_columns);
  std::string line =
      "  " + left(filled, bar_columns) + " " + std::to_string(done) + "/" + std::to_string(all) + "  " + text.str();
  if (!ends)
    line += "  " + format_us(1e6 * passed / static_cast<double>(done) * static_cast<double>(all - done)) + " left";
  draw(line);
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
