#include "runtime/data/read_pieces.h"

#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

namespace plimsoll {
namespace {

TEST_SUITE("unit") {
  TEST_CASE("read pieces: each element once, by one thread of a number at a time") {
    std::mutex guard;
    std::set<int64_t> firsts;
    std::vector<std::atomic<int>> calls(static_cast<size_t>(reading_threads()));
    int64_t read = 0;
    llvm::cantFail(read_in_pieces(1003, 10, [&](int64_t first, int64_t count, int thread) {
      REQUIRE(thread < reading_threads());
      const bool is_alone = calls[static_cast<size_t>(thread)]++ == 0;
      std::this_thread::yield();
      --calls[static_cast<size_t>(thread)];
      const std::lock_guard lock(guard);
      CHECK(is_alone);
      CHECK(count == (first == 1000 ? 3 : 10));
      firsts.insert(first);
      read += count;
      return Status::success();
    }));
    CHECK(firsts.size() == 101);
    CHECK(read == 1003);
    llvm::cantFail(read_in_pieces(0, 10, [](int64_t, int64_t, int) { return model_error("nothing to read"); }));
  }

  TEST_CASE("read pieces: the first piece's failure is returned, and pieces of pieces follow each other") {
    for (int64_t failing : {0, 17, 99}) {
      Status failed = read_in_pieces(1000, 10, [&](int64_t first, int64_t, int) -> Status {
        if (first / 10 >= failing) return model_error(llvm::Twine(first / 10));
        return Status::success();
      });
      CHECK(llvm::toString(std::move(failed)) == std::to_string(failing));
    }
    llvm::cantFail(read_in_pieces(40, 10, [](int64_t, int64_t, int) {
      int64_t next = 0;
      return read_in_pieces(7, 2, [&](int64_t first, int64_t count, int thread) {
        CHECK(first == next);
        CHECK(thread == 0);
        next += count;
        return Status::success();
      });
    }));
  }
}

}  // namespace
}  // namespace plimsoll
