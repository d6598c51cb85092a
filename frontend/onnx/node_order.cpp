#include "frontend/onnx/node_order.h"

#include <functional>
#include <queue>

namespace plimsoll {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

// Sorts as Kahn (1962) does, always taking the ready node that comes first in the file.
Result<std::vector<int>> sort_nodes(const Nodes& nodes, const llvm::StringMap<int>& producer) {
  std::vector<std::vector<int>> readers(nodes.size());
  std::vector<int> waiting(nodes.size(), 0);
  for (int i = 0; i < nodes.size(); ++i) {
    auto visit = [&](const std::string& name) {
      auto at = producer.find(name);
      if (at == producer.end()) return;
      readers[at->second].push_back(i);
      ++waiting[i];
    };
    for_each_read(nodes.Get(i), visit);
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int i = 0; i < nodes.size(); ++i)
    if (waiting[i] == 0) ready.push(i);
  std::vector<int> order;
  while (!ready.empty()) {
    order.push_back(ready.top());
    ready.pop();
    for (int reader : readers[order.back()])
      if (--waiting[reader] == 0) ready.push(reader);
  }
  if (order.size() == waiting.size()) return order;
  int stuck = static_cast<int>(llvm::find_if(waiting, [](int count) { return count > 0; }) - waiting.begin());
  const onnx::NodeProto& node = nodes.Get(stuck);
  return model_error("the nodes form a cycle: " + (node.name().empty() ? node.op_type() : node.name()) +
                     " waits for what depends on it (" + llvm::Twine(waiting.size() - order.size()) +
                     " nodes are caught in it)");
}

}  // namespace

Result<std::vector<int>> order_nodes(const Nodes& nodes) {
  llvm::StringMap<int> producer;
  for (int i = 0; i < nodes.size(); ++i)
    for (const std::string& output : nodes.Get(i).output())
      if (!output.empty()) producer.try_emplace(output, i);
  bool sorted = true;
  std::vector<int> order;
  for (int i = 0; i < nodes.size(); ++i) {
    auto visit = [&](const std::string& name) {
      auto at = producer.find(name);
      sorted &= at == producer.end() || at->second < i;
    };
    for_each_read(nodes.Get(i), visit);
    order.push_back(i);
  }
  if (sorted) return order;
  return sort_nodes(nodes, producer);
}

}  // namespace plimsoll
