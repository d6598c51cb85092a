#include "ir/support/parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace plimsoll {

void parallel_for(size_t n, llvm::function_ref<void(size_t)> f) {
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i = next++; i < n; i = next++) f(i);
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < std::min<size_t>(n, std::thread::hardware_concurrency()); ++t) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace plimsoll
