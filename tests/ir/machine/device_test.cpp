#include "ir/machine/device.h"
#include "ir/builder.h"
#include "ir/machine/common_device.h"
#include "passes/analysis/cost_model.h"

#include <doctest/doctest.h>

namespace plimsoll {

TEST_SUITE_BEGIN("unit");

namespace {

std::string card(const char* more) {
  return std::string(
             R"({"devices": [{"name": "card", "title": "a card", "backend": "cuda", "memory_bytes": 1073741824, "reserves": [],
      "matmul_tflops": {"f32": 10, "bf16": 100}, "vector_tflops": 10, "memory_gb_per_s": 1000, "launch_us": 2, "compute_capability": 90, "multiprocessors": 100,
      "to_host_gb_per_s": 20, "from_host_gb_per_s": 20, "product_workspace_bytes": 1024, "convolution_workspace_bytes": 1024)") +
         more + "}]}";
}

DeviceDescription read(const char* more) {
  Result<DeviceCatalog> catalog = DeviceCatalog::from_json(card(more), "a file");
  REQUIRE(bool(catalog));
  return catalog->all().front();
}

TEST_CASE("device: the roofline is the slower of computing and moving") {
  DeviceDescription device = read("");
  CHECK(device.roofline_us(1e9, 0, DType::BF16) == doctest::Approx(10));
  CHECK(device.roofline_us(1e9, 0, DType::F32) == doctest::Approx(100));
  CHECK(device.roofline_us(1e9, 500'000'000, DType::BF16) == doctest::Approx(500));
  CHECK(device.roofline_us(1e9, 0, std::nullopt) == doctest::Approx(100));
}

TEST_CASE("device: predicted time is the roofline over what the op's kernels reach of it, and the launch") {
  Graph graph;
  ValueId x = graph.add_input("x", Type(DType::F32, {1'000'000}));
  Builder b(graph);
  ValueId y = b.emit("exp", {x});
  const Node& node = graph.node(graph.value(y).producer);
  CHECK(cost_of(graph, node, read("")).predicted_us == doctest::Approx(8 + 2));
  CHECK(cost_of(graph, node, read(R"(, "efficiency": {"exp": 0.5, "tanh": 0.1})")).predicted_us ==
        doctest::Approx(16 + 2));
}

TEST_CASE("device: a slice reads no more than it takes") {
  Graph graph;
  ValueId x = graph.add_input("x", Type(DType::F32, {1'000'000}));
  Builder b(graph);
  ValueId y = b.emit("slice", {x}, {{"starts", Ints{5}}, {"steps", Ints{1}}, {"sizes", Ints{1000}}});
  CHECK(cost_of(graph, graph.node(graph.value(y).producer), read("")).bytes_moved == 2 * 4000);
}

TEST_CASE("device: a card that says nothing of efficiency is taken to run the kernels as the known one does") {
  CHECK(read("").efficiency_of("attention_grad") < 0.5);
  CHECK(read(R"(, "efficiency": {})").efficiency_of("attention_grad") == 1);
  CHECK(read("").kernel_us == 2.5);
  CHECK(read("").copy_overhead_us == 10);
  CHECK(read(R"(, "copy_overhead_us": 4)").copy_overhead_us == 4);
  CHECK(read("").copy_interference > 0);
  CHECK(read(R"(, "copy_interference": 0)").copy_interference == 0);
  CHECK(read("").graph_launch_bytes == 4608);
  CHECK(read("").page_bytes == 2097152);
  CHECK(read(R"(, "page_bytes": 0)").page_bytes == 0);
}

TEST_CASE("device: what nobody measured of a card is not written, and read as usual") {
  DeviceDescription measured = read("");
  measured.efficiency.clear();
  measured.kernel_us = measured.copy_overhead_us = measured.copy_interference = 0;
  measured.graph_launch_bytes = 0;
  Result<DeviceCatalog> again = DeviceCatalog::from_json("{\"devices\": [" + to_json(measured) + "]}", "a file");
  REQUIRE(bool(again));
  CHECK(again->all().front().efficiency == read("").efficiency);
  CHECK(again->all().front().kernel_us == 2.5);
  CHECK(again->all().front().copy_overhead_us == 10);
  CHECK(again->all().front().copy_interference == read("").copy_interference);
  CHECK(again->all().front().graph_launch_bytes == 4608);
}

TEST_CASE("device: ranks that reach into each other's arenas leave NCCL fewer bytes") {
  const char* reserves =
      R"(, "collective_reserve_bytes": 900, "arena_reserve_bytes": 400, "collective_graph_bytes": 1)";
  const auto reserve = [&](const std::string& more, MeshAxis axis, RankTraffic traffic) {
    Mesh mesh;
    mesh[axis] = 2;
    return read((reserves + more).c_str()).with_ranks(mesh, traffic).reserve_bytes();
  };
  const std::string linked = R"(, "link_gb_per_s": 300)";
  RankTraffic buffered{.collectives = 7};
  buffered.needs_buffers[static_cast<size_t>(MeshAxis::Data)] = true;
  CHECK(reserve(linked, MeshAxis::Data, {.collectives = 7}) == 407);
  CHECK(reserve(linked, MeshAxis::Tensor, {.collectives = 7}) == 407);
  CHECK(reserve(linked, MeshAxis::Stage, {.collectives = 7}) == 907);
  CHECK(reserve("", MeshAxis::Data, {.collectives = 7}) == 907);  // through the host
  CHECK(reserve(linked, MeshAxis::Data, buffered) == 907);
  CHECK(reserve(linked + R"(, "axis_links": {"data": {"base_us": 60, "gb_per_s": 40}})", MeshAxis::Data,
                {.collectives = 7}) == 907);  // to other hosts
}

TEST_CASE("device: graphs take a reserve by their launches, where a description says what") {
  DeviceDescription device = read("");
  CHECK(device.with_graphs(1000).reserve_bytes() == device.reserve_bytes() + 4608000);
  device.graph_launch_bytes = 0;
  CHECK(device.with_graphs(1000).reserves.size() == device.reserves.size());
}

TEST_CASE("device: reserves of kernels are read as they are written, and devices that disagree hold them always") {
  DeviceDescription device = read("");
  device.reserves = {{"library", 100, "lib"}, {"context", 7}};
  Result<DeviceDescription> again = device_from_json(to_json(device));
  REQUIRE(bool(again));
  CHECK(again->reserves == device.reserves);
  DeviceDescription other = device;
  other.reserves[0] = {"library", 120};
  CHECK(least_of({device, other}).reserves == std::vector<Reserve>{{"library", 120}, {"context", 7}});
  CHECK(least_of({device, device}).reserves == device.reserves);
}

TEST_CASE("device: a description survives being written and read") {
  DeviceDescription device = read(
      R"(, "efficiency": {"gelu": 0.7}, "kernel_us": 3, "copy_overhead_us": 4, "copy_interference": 0.25, "graph_launch_bytes": 1024, "to_host_both_ways_gb_per_s": 18, "from_host_both_ways_gb_per_s": 15)");
  Result<DeviceCatalog> again = DeviceCatalog::from_json("{\"devices\": [" + to_json(device) + "]}", "a file");
  REQUIRE(bool(again));
  CHECK(again->all().front().efficiency == device.efficiency);
  CHECK(again->all().front().kernel_us == 3);
  CHECK(again->all().front().copy_overhead_us == 4);
  CHECK(again->all().front().copy_interference == 0.25);
  CHECK(again->all().front().graph_launch_bytes == 1024);
  const std::string text = to_json(device);
  Result<DeviceDescription> as_written = device_from_json(text);
  REQUIRE(bool(as_written));
  CHECK(to_json(*as_written) == text);
  CHECK(again->all().front().to_host_both_ways_gb_per_s == device.to_host_both_ways_gb_per_s);
  CHECK(again->all().front().from_host_both_ways_gb_per_s == device.from_host_both_ways_gb_per_s);
}

TEST_CASE("device: copies of both directions at once are as slow as said, or as on the card that was measured") {
  DuplexShares said = read(R"(, "to_host_both_ways_gb_per_s": 18, "from_host_both_ways_gb_per_s": 15)").duplex_shares();
  CHECK(said.to_host == doctest::Approx(0.9));
  CHECK(said.to_device == doctest::Approx(0.75));
  DuplexShares usual = read("").duplex_shares();
  CHECK(usual.to_host == doctest::Approx(0.84));
  CHECK(usual.to_device == doctest::Approx(0.84));
}

TEST_CASE("device: a description without a rate for both directions means no slowing down") {
  DeviceDescription device;
  device.to_host_gb_per_s = device.from_host_gb_per_s = 20;
  CHECK(device.duplex_shares().to_host == 1);
  CHECK(device.duplex_shares().to_device == 1);
}

TEST_CASE("device: a direction that is faster beside the other is refused by name") {
  Result<DeviceCatalog> catalog = DeviceCatalog::from_json(card(R"(, "to_host_both_ways_gb_per_s": 21)"), "a file");
  REQUIRE(!catalog);
  std::string message = take_diag(catalog.takeError()).text();
  CHECK(message.find("\"to_host_both_ways_gb_per_s\" must be at most what that way moves alone") != std::string::npos);
}

TEST_CASE("device: an interference above all of a copy's time is refused by name") {
  Result<DeviceCatalog> catalog = DeviceCatalog::from_json(card(R"(, "copy_interference": 1.5)"), "a file");
  REQUIRE(!catalog);
  CHECK(take_diag(catalog.takeError()).text().find("\"copy_interference\" must be a share from 0 to 1") !=
        std::string::npos);
}

TEST_CASE("device: a share above the roofline is refused by name") {
  Result<DeviceCatalog> catalog = DeviceCatalog::from_json(card(R"(, "efficiency": {"gelu": 1.5})"), "a file");
  REQUIRE(!catalog);
  std::string message = take_diag(catalog.takeError()).text();
  CHECK(message.find("\"gelu\" must be a share of the roofline") != std::string::npos);
}

}  // namespace

TEST_SUITE_END();

}  // namespace plimsoll
