#include "frontend/driver/limit_spinning.h"

#include <unistd.h>
#include <cstdlib>

namespace plimsoll {

void limit_spinning(char** argv) {
  if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
  // About 20 us: longer than the gap between two parallel loops, and what the library itself takes where it knows of
  // more threads than cores.
  setenv("GOMP_SPINCOUNT", "1000", 1);
  execv("/proc/self/exe", argv);  // returns only where it cannot; the threads then wait as they do
}

}  // namespace plimsoll
