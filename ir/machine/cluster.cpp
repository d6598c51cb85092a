#include "ir/machine/cluster.h"

#include "ir/support/json_text.h"
#include "ir/support/read_file.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>

namespace plimsoll {
namespace {

namespace json = llvm::json;

// Reads one object and knows what it is called in messages.
class Reader {
 public:
  Reader(std::string where, const json::Object& object) : where_(std::move(where)), object_(object) {}

  Status check_names(llvm::ArrayRef<llvm::StringRef> known) const {
    for (const auto& entry : object_)
      if (llvm::StringRef name = entry.first; !llvm::is_contained(known, name))
        return usage_error(where_ + ": unknown field \"" + name + "\"");
    return Status::success();
  }

  Status count(llvm::StringRef name, int64_t& value) const {
    const json::Value* found = object_.get(name);
    if (!found) return Status::success();
    const auto number = found->getAsInteger();
    if (!number || *number < 1) return must_be(name, "a whole number of at least 1");
    value = *number;
    return Status::success();
  }

  Status number(llvm::StringRef name, double& value) const {
    const json::Value* found = object_.get(name);
    if (!found) return Status::success();
    const auto number = found->getAsNumber();
    if (!number || *number < 0) return must_be(name, "a number of at least 0");
    value = *number;
    return Status::success();
  }

  Status share(llvm::StringRef name, double& value) const {
    if (Status s = number(name, value)) return s;
    return value <= 1 ? Status::success() : must_be(name, "a number from 0 to 1");
  }

  Status link(llvm::StringRef name, ClusterLink& link) const {
    const json::Value* found = object_.get(name);
    if (!found) return Status::success();
    const json::Object* object = found->getAsObject();
    if (!object) return must_be(name, "an object with base_us and gb_per_s");
    const Reader reader(where_ + ": " + name.str(), *object);
    if (Status s = reader.check_names({"base_us", "gb_per_s"})) return s;
    if (Status s = reader.number("base_us", link.base_us)) return s;
    return reader.number("gb_per_s", link.gb_per_s);
  }

  Status must_be(llvm::StringRef name, llvm::StringRef what) const {
    return usage_error(where_ + ": " + name + " must be " + what);
  }

 private:
  std::string where_;
  const json::Object& object_;
};

Status read_measured(llvm::StringRef file, const json::Object& object, std::vector<MeasuredCollective>& measured) {
  const json::Array* list = object.getArray("measured");
  if (!list) return Status::success();
  for (const json::Value& value : *list) {
    const json::Object* entry = value.getAsObject();
    if (!entry) return usage_error(file + ": measured must be a list of objects");
    const Reader reader(file.str() + ": measured", *entry);
    MeasuredCollective each;
    each.op = text_field(entry, "op").value_or("").str();
    if (Status s = reader.count("ranks", each.ranks)) return s;
    if (Status s = reader.count("bytes", each.bytes)) return s;
    if (Status s = reader.number("us", each.us)) return s;
    measured.push_back(std::move(each));
  }
  return Status::success();
}

json::Object to_object(const ClusterLink& link) {
  return json::Object{{"base_us", link.base_us}, {"gb_per_s", link.gb_per_s}};
}

}  // namespace

Result<ClusterDescription> read_cluster(llvm::StringRef file) {
  Result<std::unique_ptr<llvm::MemoryBuffer>> text = read_file(file);
  if (!text) return text.takeError();
  Result<json::Value> parsed = parse_json((*text)->getBuffer());
  if (!parsed) return usage_error(file + ": " + take_diag(parsed.takeError()).text());
  const json::Object* object = parsed->getAsObject();
  if (!object) return usage_error(file + ": a cluster is an object");
  const Reader reader(file.str(), *object);
  if (Status s = reader.check_names({"hosts", "cards", "host_memory_bytes", "link", "network", "interference", "share",
                                     "host_copies_gb_per_s", "measured"}))
    return s;
  ClusterDescription cluster;
  if (Status s = reader.count("hosts", cluster.hosts)) return s;
  if (Status s = reader.count("cards", cluster.cards)) return s;
  if (Status s = reader.count("host_memory_bytes", cluster.host_memory_bytes)) return s;
  if (Status s = reader.link("link", cluster.link)) return s;
  if (Status s = reader.link("network", cluster.network)) return s;
  if (Status s = reader.share("interference", cluster.interference)) return s;
  if (Status s = reader.share("share", cluster.share)) return s;
  if (Status s = reader.number("host_copies_gb_per_s", cluster.host_copies_gb_per_s)) return s;
  if (Status s = read_measured(file, *object, cluster.measured)) return s;
  if (cluster.hosts > 1 && cluster.network.gb_per_s == 0)
    return reader.must_be("network", "given where there are several hosts");
  return cluster;
}

std::string to_json(const ClusterDescription& cluster) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  json::OStream out(stream, /*IndentSize=*/1);
  out.object([&] {
    out.attribute("hosts", cluster.hosts);
    out.attribute("cards", cluster.cards);
    if (cluster.host_memory_bytes > 0) out.attribute("host_memory_bytes", cluster.host_memory_bytes);
    if (cluster.link.gb_per_s > 0) out.attribute("link", to_object(cluster.link));
    if (cluster.network.gb_per_s > 0) out.attribute("network", to_object(cluster.network));
    if (cluster.interference > 0) out.attribute("interference", cluster.interference);
    if (cluster.share > 0) out.attribute("share", cluster.share);
    if (cluster.host_copies_gb_per_s > 0) out.attribute("host_copies_gb_per_s", cluster.host_copies_gb_per_s);
    out.attributeArray("measured", [&] {
      for (const MeasuredCollective& each : cluster.measured)
        out.value(json::Object{{"op", each.op}, {"ranks", each.ranks}, {"bytes", each.bytes}, {"us", each.us}});
    });
  });
  return stream.str() + "\n";
}

namespace {

// Are all groups of ranks along the axis within a host each?
bool is_within_hosts(const Mesh& mesh, MeshAxis axis, int64_t cards) {
  if (mesh.ranks() <= cards) return true;
  const std::vector<int64_t> group = mesh.group_of(0, axis);
  const int64_t span = mesh[axis] * (group.size() > 1 ? group[1] - group[0] : 1);
  return cards % span == 0;
}

}  // namespace

Result<DeviceDescription> on_cluster(DeviceDescription device, const ClusterDescription& cluster, const Mesh& mesh) {
  if (mesh.ranks() > cluster.ranks())
    return usage_error("the cluster has " + llvm::Twine(cluster.ranks()) + " cards, the job asks for " +
                       llvm::Twine(mesh.ranks()));
  const ClusterLink &link = cluster.link, &network = cluster.network;
  if (link.gb_per_s > 0) {
    device.link_gb_per_s = link.gb_per_s, device.collective_us = link.base_us;
    device.arena_collective_us = std::min(device.arena_collective_us, link.base_us);
  }
  for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor, MeshAxis::Stage})
    if (mesh[axis] > 1 && network.gb_per_s > 0 && !is_within_hosts(mesh, axis, cluster.cards))
      device.axis_links.push_back({axis, network.base_us, network.gb_per_s});
  if (cluster.interference > 0) device.collective_interference = cluster.interference;
  if (cluster.share > 0) device.collective_share = cluster.share;
  if (cluster.host_copies_gb_per_s > 0) device.host_copies_gb_per_s = cluster.host_copies_gb_per_s;
  return device.with_cards_of_host(std::min(cluster.cards, mesh.ranks()));
}

double bytes_sent(int64_t bytes, int64_t ranks, bool sum_for_all) {
  const auto count = static_cast<double>(ranks);
  return static_cast<double>(bytes) * (count - 1) / count * (sum_for_all ? 2 : 1);
}

ClusterLink fit_link(llvm::ArrayRef<MeasuredCollective> measured) {
  // Each equation base + sent * slope = us is divided by its us.
  double bb = 0, bs = 0, ss = 0, b = 0, s = 0;
  for (const MeasuredCollective& each : measured) {
    const double base = 1 / each.us, sent = bytes_sent(each.bytes, each.ranks, each.op == "reduce_all") / each.us;
    bb += base * base, bs += base * sent, ss += sent * sent, b += base, s += sent;
  }
  const double determinant = bb * ss - bs * bs;
  if (determinant <= 0) return {};
  double base_us = (b * ss - s * bs) / determinant, slope = (s * bb - b * bs) / determinant;
  if (base_us < 0) base_us = 0, slope = s / ss;
  if (slope <= 0) return {};
  return {base_us, 1e-3 / slope};
}

}  // namespace plimsoll
