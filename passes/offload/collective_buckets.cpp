#include "passes/offload/collective_buckets.h"

#include "ir/machine/collective_link.h"
#include "passes/analysis/cost_model.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>

// Buckets are runs of neighbours by the places where they are ready. Each is issued once it is complete, where the
// fewest products run beside it: a product has a block for each multiprocessor, so that beside a sum, which holds some
// of these, it takes a second turn of blocks, where attention and elementwise launches lack a share of them.

namespace plimsoll {
namespace {

constexpr double negligible_us = 1;  // of products: not worth a later sum

// Of matrices, or a convolution: linear in all that it reads, where attention is not, and much to do for an element.
bool is_product(const Graph& graph, const Node& node) {
  constexpr double min_flops = 32;
  const LinearForm& form = node.op->linear.first;
  if (!form.is_open() && (form.empty() || form.terms()[0].factors.size() < 2)) return false;
  if (!form.is_open() && form.terms()[0].summed != SummedDims::Shared)
    for (size_t i = 0; i < node.operands.size(); ++i)
      if (!form.has(node.op->operands, i)) return false;
  return flops_of(graph, node) > min_flops * static_cast<double>(graph.type(node.results[0]).elements());
}

std::vector<CollectiveBucket> make_buckets(const Graph& graph, std::vector<ReadyCollective> collectives,
                                           const DeviceDescription& device,
                                           llvm::function_ref<double(NodeId)> cost_us) {
  llvm::stable_sort(collectives, [](const ReadyCollective& a, const ReadyCollective& b) { return a.ready < b.ready; });
  const CollectiveShares shares = device.collective_shares();
  std::vector<CollectiveBucket> buckets;
  CollectiveLaunch launch(shares);
  int64_t bytes = 0;
  for (const auto& [ready, id] : collectives) {
    const Node& node = graph.node(id);
    const bool joins = !buckets.empty() && bytes < min_bucket_bytes(device) &&
                       graph.node(buckets.back().members.front()).op == node.op;
    if (!joins) buckets.emplace_back(), bytes = 0, launch = CollectiveLaunch(shares);
    launch.add(cost_us(id));
    buckets.back().ready = ready;
    buckets.back().beside_us = launch.us() / shares.link;
    buckets.back().members.push_back(id);
    bytes += graph.type(node.operands[0]).bytes();
  }
  return buckets;
}

// The predicted times of nodes, added up, all of them and those of products; each begins with 0.
struct Times {
  std::vector<double> all_us, products_us;

  // Of products, until `us` of all.
  double products_until(double us) const {
    const auto at = static_cast<size_t>(llvm::lower_bound(all_us, us) - all_us.begin());
    if (at >= all_us.size()) return products_us.back();
    const double beyond_us = all_us[at] - us;
    return products_us[at] - (at > 0 && products_us[at] > products_us[at - 1] ? beyond_us : 0);
  }
};

Times times_of(const Graph& graph, llvm::ArrayRef<NodeId> nodes, llvm::function_ref<double(NodeId)> cost_us) {
  Times times{{0}, {0}};
  for (NodeId id : nodes) {
    const double us = cost_us(id);
    times.all_us.push_back(times.all_us.back() + us);
    times.products_us.push_back(times.products_us.back() + (is_product(graph, graph.node(id)) ? us : 0));
  }
  return times;
}

}  // namespace

int64_t min_bucket_bytes(const DeviceDescription& device) {
  constexpr double least_us = 120;
  const AxisLink link = device.link_of(MeshAxis::Data);
  return static_cast<int64_t>(std::max(least_us, 4 * link.base_us) * link.gb_per_s * 1e3);
}

// A bucket is issued before the next one is complete, and no later than leaves the others their time.
std::vector<CollectiveBucket> choose_buckets(const Graph& graph, std::vector<ReadyCollective> collectives,
                                             llvm::ArrayRef<NodeId> early, const DeviceDescription& device,
                                             llvm::function_ref<double(NodeId)> cost_us) {
  std::vector<CollectiveBucket> buckets = make_buckets(graph, std::move(collectives), device, cost_us);
  const Times times = times_of(graph, early, cost_us);
  double latest_us = times.all_us.back();
  for (size_t b = buckets.size(); b-- > 0;) {
    CollectiveBucket& bucket = buckets[b];
    bucket.issue = bucket.ready;
    latest_us -= bucket.beside_us;
    if (b + 1 == buckets.size()) continue;
    double fewest_us = std::numeric_limits<double>::infinity();
    for (size_t place = bucket.ready; place <= buckets[b + 1].ready && place < early.size(); ++place) {
      const double us = times.all_us[place + 1];
      if (place > bucket.ready && us > latest_us) break;
      const double beside = times.products_until(us + bucket.beside_us) - times.products_us[place + 1];
      if (beside >= fewest_us - negligible_us) continue;
      fewest_us = beside;
      bucket.issue = place;
    }
  }
  return buckets;
}

std::pair<size_t, double> buckets_behind(llvm::ArrayRef<CollectiveBucket> buckets, llvm::ArrayRef<NodeId> early,
                                         llvm::function_ref<double(NodeId)> cost_us) {
  double now_us = 0, link_us = 0;
  size_t first = buckets.size() - 1, bucket = 0;
  std::vector<double> through_us(buckets.size(), 0);
  for (size_t i = 0; i <= early.size(); ++i) {
    if (i < early.size()) now_us += cost_us(early[i]);
    for (; bucket < buckets.size() && (buckets[bucket].issue <= i || i == early.size()); ++bucket)
      through_us[bucket] = link_us = std::max(link_us, now_us) + buckets[bucket].beside_us;
  }
  while (first > 0 && through_us[first - 1] > now_us) --first;
  return {first, std::max(0.0, link_us - now_us)};
}

}  // namespace plimsoll
