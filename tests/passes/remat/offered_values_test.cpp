#include "ir/text.h"
#include "passes/remat/remat_problem.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// Which values a search may let wait on the host.

namespace plimsoll {
namespace {

using namespace testing;

// Layers of a product and a GELU, both saved for backward and equally large, behind a sum over two ranks.
std::string layers(int count) {
  const std::string type = "f32[256,256]";
  std::string text = "graph @layers(%x: " + type + ") state(%w: " + type +
                     " parameter) {\n  %g = reduce_all(%x) {axis=\"data\", ranks=2} : " + type + "\n";
  std::string last = "%g", reads;
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    text += "  %h" + n + " = linear(" + last + ", %w) : " + type + "\n";
    text += "  %g" + n + " = gelu(%h" + n + ") {approximate=\"tanh\"} : " + type + "\n";
    reads += "  %r" + n + " = mul(%h" + n + ", %g" + n + ") : " + type + " phase=backward\n";
    last = "%g" + n;
  }
  return text + reads + "  return " + last + "\n}\n";
}

// The gradient %g of 256 KiB waits for `count` instructions, the last of which works on `side` x `side` numbers. Its
// squares may be summed right behind it.
std::string waiting_gradient(int count, int side, bool is_summed = false) {
  const std::string type = "f32[256,256]", last_type = "f32[" + std::to_string(side) + "," + std::to_string(side) + "]";
  std::string text =
      "graph @waits(%x: " + type + ", %y: " + last_type + ") {\n  %g = mul(%x, %x) : " + type + " phase=backward\n";
  if (is_summed) text += "  %q = sum_squares(%g) : f32[] phase=update\n";
  text += "  %h0 = exp(%x) : " + type + " phase=backward\n";
  for (int i = 1; i < count - 1; ++i)
    text += "  %h" + std::to_string(i) + " = exp(%h" + std::to_string(i - 1) + ") : " + type + " phase=backward\n";
  return text + "  %z = mul(%y, %y) : " + last_type + " phase=backward\n  %s = add(%g, %h" + std::to_string(count - 2) +
         ") : " + type + " phase=backward\n  return %s, %z" + (is_summed ? ", %q" : "") + "\n}\n";
}

TEST_SUITE("unit") {
  TEST_CASE("values of backward may wait on the host where they wait long and are much of what is alive") {
    const CpuCatalog catalog;
    DeviceDescription device = cpu_device();
    device.to_host_gb_per_s = device.from_host_gb_per_s = 12;
    const auto offered = [&](int count, int side, Offered asked, bool is_summed = false) {
      const Graph graph = parsed(waiting_gradient(count, side, is_summed));
      const GraphRematProblem made = graph_remat_problem(graph, {}, device, catalog, int64_t{1} << 40, asked);
      std::string names;
      for (const OffloadOption& option : made.problem.offloads)
        names += graph.value(made.values[static_cast<size_t>(option.value)]).name;
      return names;
    };
    CHECK(offered(32, 256, Offered::AlsoOfBackward) == "g");
    CHECK(offered(32, 256, Offered::SavedAlone).empty());
    CHECK(offered(31, 256, Offered::AlsoOfBackward).empty());
    CHECK(offered(32, 256, Offered::AlsoOfBackward, true) == "g");
    CHECK(offered(31, 256, Offered::AlsoOfBackward, true).empty());
    // The product of 512 x 512 numbers reads and writes 2 MiB, of which 256 KiB are no quarter.
    CHECK(offered(32, 512, Offered::AlsoOfBackward).empty());
  }

  TEST_CASE("of many values of several ranks those that cost most to make again may wait on the host") {
    const CpuCatalog catalog;
    DeviceDescription device = cpu_device();
    device.to_host_gb_per_s = device.from_host_gb_per_s = 12;
    const Graph graph = parsed(layers(150));
    const GraphRematProblem made = graph_remat_problem(graph, {}, device, catalog, int64_t{1} << 40);
    int products = 0;
    for (const OffloadOption& option : made.problem.offloads)
      products += graph.value(made.values[static_cast<size_t>(option.value)]).name[0] == 'h';
    CHECK(made.problem.offloads.size() == 200);
    CHECK(products == 150);
  }
}

}  // namespace
}  // namespace plimsoll
