#include "frontend/api/rank_devices.h"

#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// Which devices the stages of a mesh get, and what is said where they cannot.

namespace plimsoll {
namespace {

KnownDevice named(const std::string& name, const std::string& backend = "cpu") {
  DeviceDescription device = testing::cpu_device();
  device.name = name;
  device.backend = backend;
  return {device, std::make_shared<CpuCatalog>()};
}

Mesh mesh_of(llvm::StringRef text) { return llvm::cantFail(parse_mesh(text)); }

std::string refusal(const RankDevices& devices, llvm::StringRef mesh) {
  Result<StageDevices> stages = devices.on(mesh_of(mesh));
  REQUIRE_FALSE(bool(stages));
  return take_diag(stages.takeError()).text();
}

TEST_SUITE("unit") {
  TEST_CASE("stages have their ranks' devices, and ranks without stages what all can do") {
    const RankDevices devices = llvm::cantFail(RankDevices::of_ranks({named("big"), named("small")}, {0, 0, 1, 1}));
    const StageDevices two = llvm::cantFail(devices.on(mesh_of("data=2,stage=2")));
    CHECK(two.device(0).name == "big");
    CHECK(two.device(1).name == "small");
    const StageDevices four = llvm::cantFail(devices.on(mesh_of("stage=4")));
    CHECK(four.are_alike(0, 1));
    CHECK_FALSE(four.are_alike(1, 2));
    CHECK(llvm::cantFail(devices.on(mesh_of("data=4"))).device(0).name == "big+small");
    CHECK(devices.kinds_of_ranks({}, {}).size() == 2);
    const RankDevices alike = llvm::cantFail(RankDevices::of_ranks({named("big")}, {0, 0}));
    CHECK(llvm::cantFail(alike.on(mesh_of("stage=8"))).device(7).name == "big");
    CHECK(alike.kinds_of_ranks({}, {}).empty());
  }

  TEST_CASE("a stage of unlike devices is refused with the order that works") {
    const RankDevices mixed = llvm::cantFail(RankDevices::of_ranks({named("big"), named("small")}, {0, 1, 0, 1}));
    CHECK(refusal(mixed, "data=2,stage=2") ==
          "stage 0 of data=2,stage=2 has big and small, and ranks of one stage run one plan; list the devices as "
          "big,big,small,small");
    const RankDevices odd = llvm::cantFail(RankDevices::of_ranks({named("big"), named("small")}, {0, 0, 0, 1}));
    CHECK(
        refusal(odd, "data=2,stage=2") ==
        "stage 1 of data=2,stage=2 has big and small, and ranks of one stage run one plan; in no order of the devices "
        "is each stage of one kind: take a stage for each rank, or none");
    CHECK(refusal(odd, "stage=3") == "the mesh stage=3 has 3 ranks, there are 4 devices");
    Result<RankDevices> backends = RankDevices::of_ranks({named("big"), named("card", "cuda")}, {0, 1});
    REQUIRE_FALSE(bool(backends));
    CHECK(take_diag(backends.takeError()).text() == "big and card cannot share a job: one is a GPU and one is not");
  }

  TEST_CASE("ranks of a stage have the least of their budgets") {
    TrainingRequest request;
    request.mesh = mesh_of("data=2,stage=2");
    CHECK(llvm::cantFail(with_rank_budgets(request, {9, 8, 7, 6})).stage_budgets == std::vector<int64_t>{8, 6});
    CHECK(llvm::cantFail(with_rank_budgets(request, {})).stage_budgets.empty());
    request.mesh = mesh_of("data=4");
    CHECK(llvm::cantFail(with_rank_budgets(request, {9, 8, 7, 6})).budget_bytes == 6);
    Result<TrainingRequest> wrong = with_rank_budgets(request, {9, 8});
    REQUIRE_FALSE(bool(wrong));
    CHECK(take_diag(wrong.takeError()).text() == "there are 2 budgets, and 4 ranks");
  }
}

}  // namespace
}  // namespace plimsoll
