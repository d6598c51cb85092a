#include "ir/machine/cluster.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

// Written to a file and read back.
Result<ClusterDescription> read_text(llvm::StringRef text) {
  llvm::SmallString<64> path;
  REQUIRE_FALSE(llvm::sys::fs::createTemporaryFile("cluster", "json", path));
  std::error_code failure;
  llvm::raw_fd_ostream(path, failure) << text;
  Result<ClusterDescription> cluster = read_cluster(path);
  llvm::sys::fs::remove(path);
  return cluster;
}

std::string refusal(llvm::StringRef text) {
  Result<ClusterDescription> cluster = read_text(text);
  REQUIRE_FALSE(bool(cluster));
  return take_diag(cluster.takeError()).text();
}

bool ends_in(llvm::StringRef text, llvm::StringRef end) { return text.take_back(end.size()) == end; }

TEST_SUITE("unit") {
  TEST_CASE("a cluster survives its file") {
    ClusterDescription cluster;
    cluster.hosts = 2, cluster.cards = 4, cluster.host_memory_bytes = int64_t{1} << 40;
    cluster.link = {47, 333}, cluster.network = {60, 40};
    cluster.interference = 0.25, cluster.share = 0.67, cluster.host_copies_gb_per_s = 175;
    cluster.measured = {{"reduce_all", 8, 4096, 61.5}};
    Result<ClusterDescription> again = read_text(to_json(cluster));
    REQUIRE_MESSAGE(bool(again), llvm::toString(again.takeError()));
    CHECK(again->ranks() == 8);
    CHECK(again->host_memory_bytes == int64_t{1} << 40);
    CHECK(to_json(*again) == to_json(cluster));
  }

  TEST_CASE("base and rate come back from the times that they make") {
    std::vector<MeasuredCollective> measured;
    for (const char* op : {"reduce_all", "gather_pieces"})
      for (int64_t bytes : {4096, 1 << 20, 64 << 20}) {
        const double sent = bytes_sent(bytes, 4, op == llvm::StringRef("reduce_all"));
        measured.push_back({op, 4, bytes, 30 + sent / 100e3});
      }
    const ClusterLink link = fit_link(measured);
    CHECK(link.base_us == doctest::Approx(30));
    CHECK(link.gb_per_s == doctest::Approx(100));
  }

  TEST_CASE("ranks on several hosts talk over the network") {
    ClusterDescription cluster;
    cluster.hosts = 2, cluster.cards = 4;
    cluster.link = {47, 333}, cluster.network = {60, 40};
    DeviceDescription device;
    const auto rate_of = [&](llvm::StringRef mesh, MeshAxis axis) {
      return llvm::cantFail(on_cluster(device, cluster, llvm::cantFail(parse_mesh(mesh)))).link_of(axis).gb_per_s;
    };
    CHECK(rate_of("data=4", MeshAxis::Data) == 333);
    CHECK(rate_of("data=8", MeshAxis::Data) == 40);
    // Ranks 0 to 3 are one host: parts of tensors stay within it, stages and rows do not.
    CHECK(rate_of("tensor=4,stage=2", MeshAxis::Tensor) == 333);
    CHECK(rate_of("tensor=4,stage=2", MeshAxis::Stage) == 40);
    CHECK(rate_of("tensor=2,data=4", MeshAxis::Tensor) == 333);
    CHECK(rate_of("tensor=2,data=4", MeshAxis::Data) == 40);
    CHECK(rate_of("tensor=2,data=2,stage=2", MeshAxis::Data) == 333);
    // A group of three lies across the border behind rank 3.
    CHECK(rate_of("tensor=3,stage=2", MeshAxis::Tensor) == 40);
    Result<DeviceDescription> too_many = on_cluster(device, cluster, llvm::cantFail(parse_mesh("data=9")));
    REQUIRE_FALSE(bool(too_many));
    CHECK(take_diag(too_many.takeError()).text() == "the cluster has 8 cards, the job asks for 9");
  }

  TEST_CASE("the cards of a host share its copies") {
    DeviceDescription device;
    device.to_host_gb_per_s = device.from_host_gb_per_s = 50;
    device.to_host_both_ways_gb_per_s = 44, device.from_host_both_ways_gb_per_s = 36;
    device.host_copies_gb_per_s = 160;
    ClusterDescription cluster;
    cluster.hosts = 2, cluster.cards = 8, cluster.network = {60, 40};
    const auto on = [&](llvm::StringRef mesh) {
      return llvm::cantFail(on_cluster(device, cluster, llvm::cantFail(parse_mesh(mesh))));
    };
    CHECK(on("data=2").to_host_gb_per_s == 50);
    CHECK(on("data=2").to_host_both_ways_gb_per_s == 44);
    CHECK(on("data=4").from_host_gb_per_s == 40);
    CHECK(on("data=4").to_host_both_ways_gb_per_s == 22);
    CHECK(on("data=4").from_host_both_ways_gb_per_s == 18);
    CHECK(on("data=8").to_host_gb_per_s == 20);
    CHECK(on("data=16").to_host_gb_per_s == 20);  // two hosts
    cluster.host_copies_gb_per_s = 400;           // as it was measured
    CHECK(on("data=8").to_host_gb_per_s == 50);
    CHECK(on("data=8").from_host_both_ways_gb_per_s == doctest::Approx(22.5));
  }

  TEST_CASE("mistakes in a cluster's file are named") {
    CHECK(ends_in(refusal(R"({"hosts": 0})"), "hosts must be a whole number of at least 1"));
    CHECK(ends_in(refusal(R"({"cads": 2})"), "unknown field \"cads\""));
    CHECK(ends_in(refusal(R"({"link": {"base_us": -1}})"), "base_us must be a number of at least 0"));
    CHECK(ends_in(refusal(R"({"share": 2})"), "share must be a number from 0 to 1"));
    CHECK(ends_in(refusal(R"({"hosts": 2})"), "network must be given where there are several hosts"));
  }
}

}  // namespace
}  // namespace plimsoll
