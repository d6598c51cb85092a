#pragma once

// How long work shows itself: one moving line on a terminal, a line a phase in a log. Work that is over at
// once shows nothing, so that a failing command says one line.

#include "llvm/Support/raw_ostream.h"

#include <chrono>
#include <string>

namespace plimsoll {

class Progress {
 public:
  Progress(llvm::raw_ostream& err, bool terminal, int columns) : err_(err), terminal_(terminal), columns_(columns) {}
  ~Progress() { finish(); }

  // A new phase begins; the one before is over.
  void phase(llvm::StringRef name);
  // Step `done` of `all` is over. `text` is for people: the loss and how fast.
  void step(int64_t done, int64_t all, llvm::StringRef text);
  // Nothing more comes; the moving line is taken away.
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
  std::string held_back_;  // phases so short that they wait for a long one before they are told
  Clock::time_point start_ = Clock::now(), phase_start_ = start_, last_line_ = start_;
  bool line_drawn_ = false;
};

}  // namespace plimsoll
