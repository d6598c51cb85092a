#include "frontend/driver/stop_signals.h"

#include "llvm/Support/Signals.h"

#include <csignal>

namespace plimsoll {
namespace {

constexpr int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};

volatile sig_atomic_t requested = 0;
struct sigaction handler_before[NSIG];

// The handlers from before, LLVM's, take unfinished files away and end the program.
extern "C" void on_stop_signal(int) {
  requested = 1;
  for (int signal : stop_signals) sigaction(signal, &handler_before[signal], nullptr);
}

}  // namespace

void catch_stop_signals() {
  llvm::sys::SetInterruptFunction(nullptr);  // LLVM registers its handlers now and not above ours later
  struct sigaction ours = {};
  ours.sa_handler = on_stop_signal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  for (int signal : stop_signals) sigaction(signal, &ours, &handler_before[signal]);
  std::signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested() { return requested != 0; }

}  // namespace plimsoll
