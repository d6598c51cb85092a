#include "runtime/comm/thread_ranks.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

namespace plimsoll {
namespace {

// What one rank has for another until that one has taken it.
struct Letter {
  const std::byte* bytes = nullptr;
  bool is_there = false;
};

// Every rank shows where its bytes are; between two meetings all may read them.
struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<const std::byte*> shown;
  std::vector<Letter> letters;  // by sender * ranks + receiver
  int64_t came = 0, meeting = 0;
  bool broken = false;
};

class ThreadRank : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Board> board, int64_t rank, double patience_s)
      : board_(std::move(board)), rank_(rank), patience_s_(patience_s) {}
  ~ThreadRank() override { abort(); }

  int64_t rank() const override { return rank_; }
  int64_t ranks() const override { return static_cast<int64_t>(board_->shown.size()); }

  Status gather_all(const void* own, void* all, int64_t bytes) override {
    return meet(own, [&](const std::byte* theirs, int64_t rank) {
      std::memcpy(static_cast<std::byte*>(all) + rank * bytes, theirs, static_cast<size_t>(bytes));
    });
  }

  Status exchange(const void* own, void* got, int64_t bytes) override {
    return meet(own, [&](const std::byte* theirs, int64_t rank) {
      std::memcpy(static_cast<std::byte*>(got) + rank * bytes, theirs + rank_ * bytes, static_cast<size_t>(bytes));
    });
  }

  Status transfer(const Message& own, const Message& got) override {
    std::unique_lock lock(board_->mutex);
    if (own.peer >= 0) {
      letter(rank_, own.peer) = {static_cast<const std::byte*>(own.bytes), true};
      board_->changed.notify_all();
    }
    if (got.peer >= 0) {
      Letter& theirs = letter(got.peer, rank_);
      if (Status s = wait(lock, [&] { return theirs.is_there; })) return s;
      const std::byte* bytes = theirs.bytes;
      lock.unlock();
      std::memcpy(got.bytes, bytes, static_cast<size_t>(got.count));
      lock.lock();
      theirs.is_there = false;
      board_->changed.notify_all();
    }
    if (own.peer < 0) return Status::success();
    return wait(lock, [&] { return !letter(rank_, own.peer).is_there; });
  }

  void interrupt() override { abort(); }
  bool are_processes() const override { return false; }
  void abort() override {
    std::lock_guard lock(board_->mutex);
    board_->broken = true;
    board_->changed.notify_all();
  }

 private:
  template <typename Take>
  Status meet(const void* own, Take take) {
    board_->shown[static_cast<size_t>(rank_)] = static_cast<const std::byte*>(own);
    if (Status s = wait_for_all()) return s;
    for (int64_t rank = 0; rank < ranks(); ++rank) take(board_->shown[static_cast<size_t>(rank)], rank);
    return wait_for_all();
  }

  Status wait_for_all() {
    std::unique_lock lock(board_->mutex);
    const int64_t meeting = board_->meeting;
    if (++board_->came == ranks()) {
      board_->came = 0;
      ++board_->meeting;
      board_->changed.notify_all();
      return Status::success();
    }
    return wait(lock, [&] { return board_->meeting != meeting; });
  }

  template <typename Condition>
  Status wait(std::unique_lock<std::mutex>& lock, Condition holds) {
    const bool in_time = board_->changed.wait_for(lock, std::chrono::duration<double>(patience_s_),
                                                  [&] { return holds() || board_->broken; });
    if (in_time && holds()) return Status::success();
    return system_error("rank " + llvm::Twine(rank_) + ": " +
                        (in_time ? "another rank has gone" : "the other ranks did not come in time"));
  }

  Letter& letter(int64_t from, int64_t to) { return board_->letters[static_cast<size_t>(from * ranks() + to)]; }

  std::shared_ptr<Board> board_;
  int64_t rank_;
  double patience_s_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int64_t count, double patience_s) {
  auto board = std::make_shared<Board>();
  board->shown.resize(static_cast<size_t>(count));
  board->letters.resize(static_cast<size_t>(count * count));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int64_t rank = 0; rank < count; ++rank) ranks.push_back(std::make_unique<ThreadRank>(board, rank, patience_s));
  return ranks;
}

}  // namespace plimsoll
