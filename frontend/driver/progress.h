#pragma once

// Shows progress: one moving line on a terminal, one line per phase in a log. Short work shows nothing, so that a
// command that fails at once prints one line.

#include "llvm/Support/raw_ostream.h"

#include <chrono>
#include <string>

namespace plimsoll {

// "45 s", "12 min", "3.4 h"
std::string describe_duration(double seconds);

class Progress {
 public:
  Progress(llvm::raw_ostream& err, bool terminal, int columns) : err_(err), terminal_(terminal), columns_(columns) {}
  ~Progress() { finish(); }

  // Begins a new phase and ends the one before.
  void phase(llvm::StringRef name);
  // Reports that step `done` of `all` is over, and how long the others will take. `text` shows the loss and the speed.
  void step(int64_t done, int64_t all, llvm::StringRef text);
  // Writes a line that stays, such as a warning.
  void note(llvm::StringRef text);
  // Ends the last phase and removes the moving line.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void end_phase();
  void draw(llvm::StringRef line);

  llvm::raw_ostream& err_;
  bool terminal_;
  int columns_;
  std::string phase_;
  std::string held_back_;  // lines of short phases; they are printed with the next long one
  Clock::time_point start_ = Clock::now(), phase_start_ = start_, last_line_ = start_;
  int64_t done_before_ = -1;  // steps before the phase; -1: it has none yet
  bool line_drawn_ = false;
};

}  // namespace plimsoll
