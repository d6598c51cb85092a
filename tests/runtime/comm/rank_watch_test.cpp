#include "runtime/comm/rank_watch.h"
#include "tests/support/ranks_on_threads.h"

#include <doctest/doctest.h>
#include <atomic>

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  TEST_CASE("a watch names a rank that stands still, one that fails and one that goes") {
    enum class End { StandsStill, Fails, Goes };
    for (End end : {End::StandsStill, End::Fails, End::Goes}) {
      auto ranks = tcp_ranks(3, 2 + static_cast<int>(end));
      std::vector<RankProgress> progress(3);
      std::vector<std::string> failures(3), told(3);
      on_ranks(ranks, [&](Communicator& own) {
        const auto rank = static_cast<size_t>(own.rank());
        std::atomic<bool> interrupted{false};
        WatchOptions options;
        options.patience_s = 1;
        options.describe = [](int64_t, int32_t function, int32_t instruction) {
          return "place " + std::to_string(function) + "." + std::to_string(instruction);
        };
        options.interrupt = [&] { interrupted = true; };
        options.tell = [&](const std::string& failure) { told[rank] = failure; };
        std::unique_ptr<RankWatch> watch = llvm::cantFail(RankWatch::start(own, progress[rank], std::move(options)));
        progress[rank].function = 0;
        progress[rank].instruction = rank == 2 ? 7 : 8;  // the others wait for rank 2
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        CHECK_FALSE(interrupted);
        if (rank == 2 && end == End::Fails) {
          watch->report_own_failure(Fault::Model);
          CHECK(watch->tells_own_failure());
          return;
        }
        if (rank == 2 && end == End::Goes) return watch.reset();  // in good order: not noticed
        for (int i = 0; i < 3000 && !interrupted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (Status s = watch->failure()) failures[rank] = take_diag(std::move(s)).text();
      });
      const std::string still = "rank 2 has stood still for 1 s, last seen at place 0.7",
                        failed = "rank 2 has failed, last seen at place 0.7",
                        waits = "rank 0 has stood still for 1 s, last seen at place 0.8";
      const std::string want = end == End::StandsStill ? still : end == End::Fails ? failed : waits;
      CHECK(failures[0] == want);
      CHECK(failures[1] == want);
      CHECK(failures[2] == (end == End::StandsStill ? still : ""));
      // One rank tells people: rank 0 of another, a rank that failed by itself.
      CHECK(told[0] == (end == End::StandsStill ? still : ""));
      CHECK(told[1] == (end == End::Goes ? waits : ""));
      CHECK(told[2] == "");
    }
  }

  TEST_CASE("of ranks that fail at once one tells it") {
    auto ranks = tcp_ranks(4, 5);
    std::vector<RankProgress> progress(4);
    std::vector<int> tells(4, -1);
    std::vector<int> faults(4, -1);
    on_ranks(ranks, [&](Communicator& own) {
      const auto rank = static_cast<size_t>(own.rank());
      WatchOptions options;
      options.patience_s = 20;
      options.describe = [](int64_t, int32_t, int32_t) { return "a place"; };
      std::atomic<bool> interrupted{false};
      options.interrupt = [&] { interrupted = true; };
      std::unique_ptr<RankWatch> watch = llvm::cantFail(RankWatch::start(own, progress[rank], std::move(options)));
      if (rank != 1) {
        watch->report_own_failure(Fault::Model);
        tells[rank] = watch->tells_own_failure();
        return;
      }
      for (int i = 0; i < 1000 && !interrupted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (Status s = watch->failure()) faults[rank] = static_cast<int>(take_diag(std::move(s)).fault());
    });
    CHECK(tells[0] + tells[2] + tells[3] == 1);
    CHECK(faults[1] == static_cast<int>(Fault::Model));
  }
}

}  // namespace
}  // namespace plimsoll
