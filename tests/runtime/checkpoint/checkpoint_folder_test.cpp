#include "runtime/checkpoint/checkpoint_folder.h"

#include "llvm/Support/FileSystem.h"

#include <doctest/doctest.h>

#include <fstream>

namespace plimsoll {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() { REQUIRE(!llvm::sys::fs::createUniqueDirectory("checkpoints", path_)); }
  ~TemporaryFolder() { llvm::sys::fs::remove_directories(path_); }
  std::string path() const { return path_.str().str(); }

 private:
  llvm::SmallString<128> path_;
};

void write_step(CheckpointFolder& folder, int64_t step, llvm::StringRef weights = "weights") {
  CheckpointRecord record;
  record.step = step;
  record.sequence = folder.next_sequence();
  Status status = folder.write(record, {{checkpoint_weights_file, weights}, {checkpoint_states_file, "states"}});
  REQUIRE(!status);
}

std::vector<int64_t> steps_of(const CheckpointFolder& folder) {
  std::vector<int64_t> steps;
  for (const Checkpoint& checkpoint : folder.checkpoints()) steps.push_back(checkpoint.record.step);
  return steps;
}

CheckpointFolder opened(const std::string& path) {
  Result<CheckpointFolder> folder = CheckpointFolder::open(path);
  REQUIRE(bool(folder));
  return std::move(*folder);
}

TEST_SUITE("unit") {
  TEST_CASE("checkpoint folder: the newest is the one that was written last") {
    TemporaryFolder temporary;
    {
      CheckpointFolder folder = opened(temporary.path() + "/run");
      write_step(folder, 300);
      write_step(folder, 150);
    }
    CHECK(steps_of(opened(temporary.path() + "/run")) == std::vector<int64_t>{300, 150});
    Result<NewestCheckpoint> newest = newest_checkpoint(temporary.path() + "/run");
    REQUIRE(bool(newest));
    REQUIRE(newest->found);
    CHECK(newest->found->record.step == 150);
  }

  TEST_CASE("checkpoint folder: one of the same step is replaced") {
    TemporaryFolder temporary;
    CheckpointFolder folder = opened(temporary.path());
    write_step(folder, 1, "before");
    write_step(folder, 1, "after.");
    CHECK(steps_of(folder) == std::vector<int64_t>{1});
    std::ifstream file(path_of_checkpoint(temporary.path(), 1) + "/weights.safetensors");
    CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "after.");
    CHECK(bool(open_checkpoint(path_of_checkpoint(temporary.path(), 1), Check::Checksums)));
  }

  TEST_CASE("checkpoint folder: the newest and those that must stay are not removed") {
    TemporaryFolder temporary;
    CheckpointFolder folder = opened(temporary.path());
    for (int64_t step : {1, 2, 3, 4}) write_step(folder, step);
    CHECK(!folder.remove_old(2, {1}));
    CHECK(steps_of(folder) == std::vector<int64_t>{1, 4});
    CHECK(!folder.remove_old(1, {1}));
    CHECK(steps_of(folder) == std::vector<int64_t>{1, 4});
    CHECK(!folder.remove_old(1));
    CHECK(steps_of(folder) == std::vector<int64_t>{4});
  }

  TEST_CASE("checkpoint folder: one run at a time") {
    TemporaryFolder temporary;
    CheckpointFolder folder = opened(temporary.path());
    Result<CheckpointFolder> second = CheckpointFolder::open(temporary.path());
    REQUIRE(!second);
    CHECK(take_diag(second.takeError()).text() == temporary.path() + ": another run writes here");
  }
}

}  // namespace
}  // namespace plimsoll
