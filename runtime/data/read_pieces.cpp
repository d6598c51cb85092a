#include "runtime/data/read_pieces.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

namespace plimsoll {

// A disk wants several reads at once, and more than 32 do not make it faster.
int reading_threads() { return std::clamp(omp_get_max_threads(), 8, 32); }

Status read_in_pieces(int64_t count, int64_t piece, ReadPiece read) {
  const int64_t pieces = (count + piece - 1) / piece;
  const auto read_piece = [&](int64_t p, int thread) {
    return read(p * piece, std::min(piece, count - p * piece), thread);
  };
  if (pieces <= 1 || omp_in_parallel()) {
    for (int64_t p = 0; p < pieces; ++p)
      if (Status s = read_piece(p, 0)) return s;
    return Status::success();
  }
  std::atomic<int64_t> failed_piece = pieces;
  std::optional<Status> failure;
  std::mutex guards_failure;
  const int threads = static_cast<int>(std::min<int64_t>(pieces, reading_threads()));
  // Pieces begin in their order, so all before one that failed are read.
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t p = 0; p < pieces; ++p) {
    if (p > failed_piece) continue;
    Status status = read_piece(p, omp_get_thread_num());
    if (!status) continue;
    const std::lock_guard lock(guards_failure);
    if (failure && p > failed_piece) {
      llvm::consumeError(std::move(status));
      continue;
    }
    if (failure) llvm::consumeError(std::move(*failure));
    failure.emplace(std::move(status));
    failed_piece = p;
  }
  return failure ? std::move(*failure) : Status::success();
}

}  // namespace plimsoll
