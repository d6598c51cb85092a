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

TEST_SUITE("unit") {
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
