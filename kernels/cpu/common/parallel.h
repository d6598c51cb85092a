#pragma once

// How kernels use threads: independent tasks, or one long range cut into pieces. What a piece computes never
// depends on how many threads there are, so results do not either.

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace plimsoll::cpu {

// Below this many element operations a parallel region costs more than it gains.
inline constexpr int64_t parallel_grain = 16384;

// body(task) for every task, in parallel when all of them together are `work` >= parallel_grain.
template <typename Body>
void parallel_tasks(int64_t tasks, int64_t work, Body&& body) {
  if (tasks <= 1 || work < parallel_grain || omp_in_parallel()) {
    for (int64_t task = 0; task < tasks; ++task) body(task);
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < tasks; ++task) body(task);
}

// body(begin, end) over pieces of [0, n); `work` is the cost of one element in element operations.
template <typename Body>
void parallel_ranges(int64_t n, int64_t work, Body&& body) {
  if (n <= 0) return;
  constexpr int64_t alignment = 64;  // pieces start on the vector grid of the whole
  const int64_t wanted = std::min<int64_t>(omp_get_max_threads(), n * work / parallel_grain);
  if (wanted <= 1 || omp_in_parallel()) return body(int64_t{0}, n);
  const int64_t piece = (n + wanted * alignment - 1) / (wanted * alignment) * alignment;
  parallel_tasks((n + piece - 1) / piece, n * work,
                 [&](int64_t task) { body(task * piece, std::min(n, (task + 1) * piece)); });
}

// Rows instead of elements: pieces of whole rows, each row `width` elements long.
template <typename Body>
void parallel_rows(int64_t rows, int64_t width, Body&& body) {
  if (rows <= 0) return;
  const int64_t wanted = std::min<int64_t>({omp_get_max_threads(), rows, rows * width / parallel_grain});
  if (wanted <= 1 || omp_in_parallel()) return body(int64_t{0}, rows);
  const int64_t piece = (rows + wanted - 1) / wanted;
  parallel_tasks((rows + piece - 1) / piece, rows * width,
                 [&](int64_t task) { body(task * piece, std::min(rows, (task + 1) * piece)); });
}

}  // namespace plimsoll::cpu
