#include "ir/machine/device.h"

#include "ir/machine/common_device.h"
#include "ir/support/json_text.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <variant>

// Reads and writes device descriptions. People edit them, so every field is checked, and a misspelt one is an error
// that names the device and the field.

namespace plimsoll {
namespace {

namespace json = llvm::json;

constexpr llvm::StringLiteral builtin_devices =
#include "ir/machine/devices_json.inc"
    ;

using Rates = std::vector<std::pair<DType, double>>;
using Shares = std::vector<std::pair<std::string, double>>;

template <typename T>
using Member = T DeviceDescription::*;

// Whose description has to say it.
enum class Needed : uint8_t { OfAll, OfGpus, OfNone };

struct Field {
  llvm::StringLiteral name;
  std::variant<Member<std::string>, Member<int>, Member<int64_t>, Member<double>, Member<std::vector<Reserve>>,
               Member<Rates>, Member<Shares>, Member<std::vector<AxisLink>>>
      member;
  Needed needed = Needed::OfNone;
  bool is_share = false;  // from 0 to 1; other numbers are above 0
  bool is_cost = false;   // the device with the larger number can do less
  bool is_limit = false;  // 0 says that there is none
};

// Reading and writing follow from this table. A field that may be left out keeps the default of the struct, unless the
// built-in file says what is usual of the backend.
constexpr Field fields[] = {
    {"name", &DeviceDescription::name, Needed::OfAll},
    {"title", &DeviceDescription::title, Needed::OfAll},
    {"backend", &DeviceDescription::backend, Needed::OfAll},
    {"memory_bytes", &DeviceDescription::memory_bytes, Needed::OfAll},
    {"reserves", &DeviceDescription::reserves, Needed::OfAll, false, true},
    {"matmul_tflops", &DeviceDescription::matmul_tflops, Needed::OfAll},
    {"peak_tflops", &DeviceDescription::peak_tflops},
    {"vector_tflops", &DeviceDescription::vector_tflops, Needed::OfAll},
    {"memory_gb_per_s", &DeviceDescription::memory_gb_per_s, Needed::OfAll},
    {"launch_us", &DeviceDescription::launch_us, Needed::OfAll, false, true},
    {"kernel_us", &DeviceDescription::kernel_us, Needed::OfNone, false, true},
    {"alignment_bytes", &DeviceDescription::alignment_bytes, Needed::OfNone, false, true},
    {"page_bytes", &DeviceDescription::page_bytes, Needed::OfNone, false, true, true},
    {"efficiency", &DeviceDescription::efficiency},
    {"compute_capability", &DeviceDescription::compute_capability, Needed::OfGpus},
    {"multiprocessors", &DeviceDescription::multiprocessors, Needed::OfGpus},
    {"to_host_gb_per_s", &DeviceDescription::to_host_gb_per_s, Needed::OfGpus},
    {"from_host_gb_per_s", &DeviceDescription::from_host_gb_per_s, Needed::OfGpus},
    {"copy_overhead_us", &DeviceDescription::copy_overhead_us, Needed::OfNone, false, true},
    {"copy_interference", &DeviceDescription::copy_interference, Needed::OfNone, true, true},
    {"to_host_both_ways_gb_per_s", &DeviceDescription::to_host_both_ways_gb_per_s},
    {"from_host_both_ways_gb_per_s", &DeviceDescription::from_host_both_ways_gb_per_s},
    {"host_copies_gb_per_s", &DeviceDescription::host_copies_gb_per_s, Needed::OfNone, false, false, true},
    {"link_gb_per_s", &DeviceDescription::link_gb_per_s},
    {"collective_us", &DeviceDescription::collective_us, Needed::OfNone, false, true},
    {"arena_collective_us", &DeviceDescription::arena_collective_us, Needed::OfNone, false, true},
    {"axis_links", &DeviceDescription::axis_links},
    {"collective_reserve_bytes", &DeviceDescription::collective_reserve_bytes, Needed::OfNone, false, true},
    {"arena_reserve_bytes", &DeviceDescription::arena_reserve_bytes, Needed::OfNone, false, true},
    {"transfer_reserve_bytes", &DeviceDescription::transfer_reserve_bytes, Needed::OfNone, false, true},
    {"collective_graph_bytes", &DeviceDescription::collective_graph_bytes, Needed::OfNone, false, true},
    {"collective_interference", &DeviceDescription::collective_interference, Needed::OfNone, true, true},
    {"collective_share", &DeviceDescription::collective_share, Needed::OfNone, true},
    {"graph_launch_bytes", &DeviceDescription::graph_launch_bytes, Needed::OfNone, false, true},
    {"product_workspace_bytes", &DeviceDescription::product_workspace_bytes, Needed::OfGpus, false, true},
    {"convolution_workspace_bytes", &DeviceDescription::convolution_workspace_bytes, Needed::OfGpus, false, true},
};

constexpr int64_t max_bytes = int64_t{1} << 50;  // keeps sums of sizes from overflowing
constexpr int64_t max_alignment_bytes = int64_t{1} << 20, max_page_bytes = int64_t{1} << 30;

// Reads one field of one device, each type of value in its own way.
class FieldReader {
 public:
  FieldReader(const llvm::Twine& device, llvm::StringRef field, bool is_share = false, bool is_limit = false)
      : device_(device.str()), field_(field), is_share_(is_share), is_limit_(is_limit) {}

  Status read(const json::Value& from, std::string& to) const {
    auto text = from.getAsString();
    if (!text || text->empty()) return must_be("a text");
    to = text->str();
    return Status::success();
  }

  Status read(const json::Value& from, int64_t& to) const {
    auto bytes = from.getAsInteger();
    if (!bytes || *bytes < 0 || (*bytes == 0 && !is_limit_) || *bytes > max_bytes)
      return must_be(is_limit_ ? "a whole number of bytes, up to 1 PiB"
                               : "a whole number of bytes above 0, up to 1 PiB");
    to = *bytes;
    return Status::success();
  }

  Status read(const json::Value& from, int& to) const {
    auto count = from.getAsInteger();
    if (!count || *count <= 0 || *count > 1 << 20) return must_be("a whole number above 0");
    to = static_cast<int>(*count);
    return Status::success();
  }

  Status read(const json::Value& from, double& to) const {
    auto number = from.getAsNumber();
    if (is_share_ && !(number && *number >= 0 && *number <= 1)) return must_be("a share from 0 to 1");
    if (is_limit_ && !(number && *number >= 0)) return must_be("0, or a number above 0");
    if (!is_share_ && !is_limit_ && !(number && *number > 0)) return must_be("a number above 0");
    to = *number;
    return Status::success();
  }

  Status read(const json::Value& from, std::vector<Reserve>& to) const {
    constexpr llvm::StringLiteral expected = "a list of {name, bytes} or {name, bytes, kernels}";
    const json::Array* list = from.getAsArray();
    if (!list) return must_be(expected);
    for (const json::Value& entry : *list) {
      const json::Object* object = entry.getAsObject();
      if (!object || !object->get("name") || !object->get("bytes")) return must_be(expected);
      Reserve& reserve = to.emplace_back();
      if (Status s = FieldReader(device_, "name").read(*object->get("name"), reserve.name)) return s;
      if (Status s = FieldReader(device_, "bytes").read(*object->get("bytes"), reserve.bytes)) return s;
      if (const json::Value* kernels = object->get("kernels"))
        if (Status s = FieldReader(device_, "kernels").read(*kernels, reserve.kernels)) return s;
    }
    return Status::success();
  }

  Status read(const json::Value& from, Rates& to) const {
    const json::Object* rates = from.getAsObject();
    if (!rates) return must_be("an object with at least \"f32\"");
    for (const auto& [type, rate] : *rates) {
      const auto dtype = parse_dtype(llvm::StringRef(type));
      if (!dtype) return usage_error(device_ + ": " + field_ + ": no type \"" + llvm::StringRef(type) + "\"");
      to.push_back({*dtype, 0});
      if (Status s = FieldReader(device_, type).read(rate, to.back().second)) return s;
    }
    llvm::sort(to);  // the order of a JSON object's keys means nothing
    return Status::success();
  }

  Status read(const json::Value& from, Shares& to) const {
    const json::Object* shares = from.getAsObject();
    if (!shares) return must_be("an object of shares by op");
    for (const auto& [op, value] : *shares) {
      auto share = value.getAsNumber();
      if (!share || !(*share > 0 && *share <= 1))
        return FieldReader(device_ + ": " + field_, op).must_be("a share of the roofline, above 0 and at most 1");
      to.push_back({llvm::StringRef(op).str(), *share});
    }
    llvm::sort(to);
    return Status::success();
  }

  Status read(const json::Value& from, std::vector<AxisLink>& to) const {
    const json::Object* links = from.getAsObject();
    if (!links) return must_be("an object of {base_us, gb_per_s} by axis");
    for (const auto& [axis, value] : *links) {
      const json::Object* link = value.getAsObject();
      const auto known = parse_axis(llvm::StringRef(axis));
      const auto base_us = number_field(link, "base_us"), gb_per_s = number_field(link, "gb_per_s");
      if (!known || !base_us || !gb_per_s || *base_us < 0 || *gb_per_s <= 0)
        return FieldReader(device_ + ": " + field_, llvm::StringRef(axis))
            .must_be("an axis of a mesh with base_us of at least 0 and gb_per_s above 0");
      to.push_back({*known, *base_us, *gb_per_s});
    }
    llvm::sort(to, [](const AxisLink& a, const AxisLink& b) { return a.axis < b.axis; });
    return Status::success();
  }

  Status must_be(llvm::StringRef expected) const {
    return usage_error(device_ + ": \"" + field_ + "\" must be " + expected);
  }

 private:
  std::string device_;
  llvm::StringRef field_;
  bool is_share_, is_limit_;
};

// `usual` has values for what `from` leaves out. What is needed is looked at where `is_complete`.
Status read_fields(const json::Object& from, const json::Object& usual, bool is_complete, DeviceDescription& device) {
  for (const Field& field : fields) {
    const json::Value* value = from.get(field.name);
    if (!value) value = usual.get(field.name);
    const bool needed = field.needed == Needed::OfAll || (field.needed == Needed::OfGpus && device.backend == "cuda");
    if (!value && !(is_complete && needed)) continue;
    const FieldReader reader(device.name.empty() ? "a device" : device.name, field.name, field.is_share,
                             field.is_limit);
    const json::Value missing = nullptr;
    if (Status s = std::visit([&](auto member) { return reader.read(value ? *value : missing, device.*member); },
                              field.member))
      return s;
  }
  return Status::success();
}

Status check_both_ways(const DeviceDescription& device, llvm::StringRef field, double both_ways, double one_way) {
  return both_ways <= one_way ? Status::success()
                              : FieldReader(device.name, field).must_be("at most what that way moves alone");
}

// What only the fields together say.
Status check_fields(const DeviceDescription& device) {
  const auto must_be = [&](llvm::StringRef field, llvm::StringRef expected) {
    return FieldReader(device.name, field).must_be(expected);
  };
  if (device.backend != "cpu" && device.backend != "cuda") return must_be("backend", "\"cpu\" or \"cuda\"");
  if (!llvm::isPowerOf2_64(static_cast<uint64_t>(device.alignment_bytes)) ||
      device.alignment_bytes > max_alignment_bytes)
    return must_be("alignment_bytes", "a power of two, up to 1 MiB");
  if (device.page_bytes > 0 && (!llvm::isPowerOf2_64(static_cast<uint64_t>(device.page_bytes)) ||
                                device.page_bytes < device.alignment_bytes || device.page_bytes > max_page_bytes))
    return must_be("page_bytes", "0, or a power of two from alignment_bytes up to 1 GiB");
  if (device.matmul_tflops_for(DType::F32) == 0) return must_be("matmul_tflops", "an object with at least \"f32\"");
  if (device.collective_share == 0) return must_be("collective_share", "a number above 0, up to 1");
  if (device.collective_interference == 1) return must_be("collective_interference", "a number from 0, below 1");
  if (device.to_host_gb_per_s > 0 && device.from_host_gb_per_s == 0)
    return must_be("from_host_gb_per_s", "a number above 0");
  if (Status s = check_both_ways(device, "to_host_both_ways_gb_per_s", device.to_host_both_ways_gb_per_s,
                                 device.to_host_gb_per_s))
    return s;
  return check_both_ways(device, "from_host_both_ways_gb_per_s", device.from_host_both_ways_gb_per_s,
                         device.from_host_gb_per_s);
}

// `usual` is the built-in file's: by backend, fields as of a device, and how fast copies are in both directions at once
// as a share of their speed alone. A device that a user's file describes runs the same kernels, behind a bus of the
// same kind.
Result<DeviceDescription> read_device(const json::Object& from, const json::Object& usual) {
  DeviceDescription device;
  const json::Value* name = from.get("name");
  if (Status s = FieldReader("a device", "name").read(name ? *name : json::Value(nullptr), device.name)) return s;
  for (const auto& entry : from)
    if (llvm::StringRef key = entry.first; llvm::none_of(fields, [&](const Field& field) { return field.name == key; }))
      return usage_error(device.name + ": unknown field \"" + key + "\"");
  const json::Object nothing;
  const json::Object* of_backend = usual.getObject(text_field(&from, "backend").value_or(""));
  if (!of_backend) of_backend = &nothing;
  if (Status s = read_fields(from, *of_backend, true, device)) return s;
  const double both_ways_share = number_field(of_backend, "both_ways_share").value_or(1);
  if (device.to_host_both_ways_gb_per_s == 0)
    device.to_host_both_ways_gb_per_s = device.to_host_gb_per_s * both_ways_share;
  if (device.from_host_both_ways_gb_per_s == 0)
    device.from_host_both_ways_gb_per_s = device.from_host_gb_per_s * both_ways_share;
  if (Status s = check_fields(device)) return s;
  return device;
}

json::Value written(const std::string& text) { return text; }
json::Value written(int number) { return number; }
json::Value written(int64_t number) { return number; }
json::Value written(double number) { return number; }

json::Value written(const std::vector<Reserve>& reserves) {
  json::Array list;
  for (const Reserve& reserve : reserves) {
    json::Object entry{{"name", reserve.name}, {"bytes", reserve.bytes}};
    if (!reserve.kernels.empty()) entry["kernels"] = reserve.kernels;
    list.push_back(std::move(entry));
  }
  return list;
}

json::Value written(const Rates& rates) {
  json::Object object;
  for (const auto& [dtype, tflops] : rates) object[dtype_name(dtype)] = tflops;
  return object;
}

json::Value written(const Shares& shares) {
  json::Object object;
  for (const auto& [op, share] : shares) object[op] = share;
  return object;
}

json::Value written(const std::vector<AxisLink>& links) {
  json::Object object;
  for (const AxisLink& link : links)
    object[axis_name(link.axis)] = json::Object{{"base_us", link.base_us}, {"gb_per_s", link.gb_per_s}};
  return object;
}

// What the least of two devices has in one field.
template <typename T>
T least(const Field& field, T a, T b) {
  if (field.is_limit && (a == 0 || b == 0)) return std::max(a, b);
  return field.is_cost ? std::max(a, b) : std::min(a, b);
}

std::string least(const Field&, const std::string& a, const std::string& b) { return a == b ? a : a + "+" + b; }

std::vector<Reserve> least(const Field&, std::vector<Reserve> a, const std::vector<Reserve>& b) {
  for (const Reserve& other : b) {
    const auto own = llvm::find_if(a, [&](const Reserve& each) { return each.name == other.name; });
    if (own == a.end())
      a.push_back(other);
    else
      *own = {own->name, std::max(own->bytes, other.bytes), own->kernels == other.kernels ? own->kernels : ""};
  }
  return a;
}

// Types that one of the devices does not multiply are left out.
Rates least(const Field&, const Rates& a, const Rates& b) {
  Rates both;
  for (const auto& [type, rate] : a)
    for (const auto& [other, other_rate] : b)
      if (type == other) both.push_back({type, std::min(rate, other_rate)});
  return both;
}

// An op that is not listed reaches all of its roofline.
Shares least(const Field&, Shares a, const Shares& b) {
  for (const auto& [op, share] : b) {
    const auto own = llvm::find_if(a, [op = llvm::StringRef(op)](const auto& each) { return each.first == op; });
    if (own == a.end())
      a.push_back({op, share});
    else
      own->second = std::min(own->second, share);
  }
  llvm::sort(a);
  return a;
}

// By axis the slower link; an axis that one of the devices does not list goes over the link of both.
std::vector<AxisLink> least(const Field&, std::vector<AxisLink> a, const std::vector<AxisLink>& b) {
  for (const AxisLink& other : b) {
    const auto own = llvm::find_if(a, [&](const AxisLink& each) { return each.axis == other.axis; });
    if (own == a.end())
      a.push_back(other);
    else
      *own = {own->axis, std::max(own->base_us, other.base_us), std::min(own->gb_per_s, other.gb_per_s)};
  }
  llvm::sort(a, [](const AxisLink& x, const AxisLink& y) { return x.axis < y.axis; });
  return a;
}

}  // namespace

DeviceDescription least_of(llvm::ArrayRef<DeviceDescription> devices) {
  DeviceDescription all = devices.front();
  for (const DeviceDescription& device : devices.drop_front())
    for (const Field& field : fields)
      std::visit([&](auto member) { all.*member = least(field, all.*member, device.*member); }, field.member);
  return all;
}

bool DeviceDescription::describes(llvm::StringRef card) const {
  return title == card || starts_with(title, (card + " ").str());
}

int64_t DeviceDescription::reserve_bytes() const {
  int64_t sum = 0;
  for (const Reserve& reserve : reserves) sum += reserve.bytes;
  return sum;
}

DeviceDescription DeviceDescription::with_graphs(int64_t launches) const {
  DeviceDescription device = *this;
  if (graph_launch_bytes > 0) device.reserves.push_back({"CUDA graphs", graph_launch_bytes * launches});
  return device;
}

constexpr const char* nccl_reserve = "NCCL";

// Four ranks with parts of tensors held up to a third more than four ranks that share a batch.
constexpr int64_t tensor_reserve_divisor = 3;

// NCCL without buffers of its own: by direct links within a host, and never between stages.
bool DeviceDescription::reaches_arenas(MeshAxis axis) const {
  const bool leaves_host = llvm::any_of(axis_links, [&](const AxisLink& link) { return link.axis == axis; });
  return arena_reserve_bytes > 0 && link_gb_per_s > 0 && axis != MeshAxis::Stage && !leaves_host;
}

DeviceDescription DeviceDescription::with_ranks(const Mesh& mesh, const RankTraffic& traffic) const {
  DeviceDescription device = *this;
  int64_t bytes = traffic.stages_met * transfer_reserve_bytes;
  for (size_t i = 0; i < mesh_axis_count; ++i) {
    const auto axis = static_cast<MeshAxis>(i);
    if (mesh[axis] == 1) continue;
    const bool in_arenas = reaches_arenas(axis) && !traffic.needs_buffers[i];
    const int64_t axis_bytes = in_arenas ? arena_reserve_bytes : collective_reserve_bytes;
    bytes += axis_bytes;
    if (axis == MeshAxis::Tensor && mesh[axis] > 2) bytes += axis_bytes / tensor_reserve_divisor;
  }
  if (mesh.ranks() > 1) {
    bytes += traffic.collectives * collective_graph_bytes;
    device.page_bytes = 0;
  }
  if (bytes > 0) device.reserves.push_back({nccl_reserve, bytes});
  return device;
}

DeviceDescription DeviceDescription::with_more_collectives(int64_t count) const {
  DeviceDescription device = *this;
  for (Reserve& reserve : device.reserves)
    if (reserve.name == nccl_reserve) reserve.bytes += count * collective_graph_bytes;
  return device;
}

double DeviceDescription::matmul_tflops_for(DType dtype) const {
  double f32 = 0;
  for (const auto& [type, tflops] : matmul_tflops) {
    if (type == dtype) return tflops;
    if (type == DType::F32) f32 = tflops;
  }
  return f32;
}

double DeviceDescription::peak_tflops_for(DType dtype) const {
  auto found = llvm::find_if(peak_tflops, [&](const auto& entry) { return entry.first == dtype; });
  return found == peak_tflops.end() ? matmul_tflops_for(dtype) : found->second;
}

// Without a link bytes go to the host's memory and back, both ways at once.
double DeviceDescription::link_gb_per_s_used() const {
  if (link_gb_per_s > 0) return link_gb_per_s;
  const double through_host = std::min(to_host_gb_per_s, from_host_gb_per_s) / 2;
  return through_host > 0 ? through_host : memory_gb_per_s / 4;
}

AxisLink DeviceDescription::link_of(MeshAxis axis) const {
  for (const AxisLink& link : axis_links)
    if (link.axis == axis) return link;
  const bool in_arenas = arena_collective_us > 0 && reaches_arenas(axis);
  return {axis, in_arenas ? arena_collective_us : collective_us, link_gb_per_s_used()};
}

double DeviceDescription::ranks_us(MeshAxis axis, double sent_bytes) const {
  const AxisLink link = link_of(axis);
  return link.base_us + sent_bytes / (link.gb_per_s * 1e3);
}

double DeviceDescription::efficiency_of(llvm::StringRef op) const {
  auto found = llvm::find_if(efficiency, [&](const auto& entry) { return entry.first == op; });
  return found == efficiency.end() ? 1 : found->second;
}

DeviceDescription DeviceDescription::with_cards_of_host(int64_t cards) const {
  DeviceDescription shared = *this;
  if (host_copies_gb_per_s <= 0) return shared;
  const double own = host_copies_gb_per_s / static_cast<double>(cards);
  shared.to_host_gb_per_s = std::min(to_host_gb_per_s, own);
  shared.from_host_gb_per_s = std::min(from_host_gb_per_s, own);
  const double both_ways = to_host_both_ways_gb_per_s + from_host_both_ways_gb_per_s;
  if (both_ways <= own) return shared;
  shared.to_host_both_ways_gb_per_s *= own / both_ways, shared.from_host_both_ways_gb_per_s *= own / both_ways;
  return shared;
}

DuplexShares DeviceDescription::duplex_shares() const {
  auto share = [](double both_ways, double one_way) {
    return both_ways > 0 && both_ways < one_way ? both_ways / one_way : 1;
  };
  return {share(to_host_both_ways_gb_per_s, to_host_gb_per_s), share(from_host_both_ways_gb_per_s, from_host_gb_per_s)};
}

double DeviceDescription::roofline_us(double flops, int64_t bytes_moved, std::optional<DType> matrix) const {
  const double tflops = matrix ? matmul_tflops_for(*matrix) : vector_tflops;
  const double compute_us = tflops > 0 ? flops / (tflops * 1e6) : 0;
  const double memory_us = memory_gb_per_s > 0 ? static_cast<double>(bytes_moved) / (memory_gb_per_s * 1e3) : 0;
  return std::max(compute_us, memory_us);
}

// Fitted to the kernels of an LSTM's step in a CUDA graph on an H100: copies of 80 KB take 1.9 us from one to the next,
// elementwise kernels of some hundred KB 3.
double DeviceDescription::beside_us(double roofline_us) const {
  constexpr double least_us = 0.4, times = 1.5;
  return launch_us + std::min(kernel_us, least_us + times * roofline_us);
}

Result<DeviceCatalog> DeviceCatalog::builtin() { return from_json(builtin_devices, "ir/machine/devices.json"); }

Result<DeviceCatalog> DeviceCatalog::from_json(llvm::StringRef text, llvm::StringRef file) {
  Result<json::Value> parsed = parse_json(text);
  if (!parsed) return usage_error(file + ": " + take_diag(parsed.takeError()).text());
  const json::Object* top = parsed->getAsObject();
  const json::Array* list = top ? top->getArray("devices") : nullptr;
  if (!list) return usage_error(file + ": expected {\"devices\": [...]}");
  auto builtin = json::parse(builtin_devices);
  if (!builtin) return system_error("ir/machine/devices.json: " + llvm::toString(builtin.takeError()));
  const json::Object& usual = *builtin->getAsObject()->getObject("usual");
  DeviceCatalog catalog;
  for (const json::Value& entry : *list) {
    const json::Object* object = entry.getAsObject();
    if (!object) return usage_error(file + ": a device is an object");
    auto device = read_device(*object, usual);
    if (!device) return in_context(file, device.takeError());
    for (const DeviceDescription& other : catalog.devices_)
      if (other.name == device->name) return usage_error(file + ": " + device->name + " stands there twice");
    catalog.devices_.push_back(std::move(*device));
  }
  return catalog;
}

void DeviceCatalog::add(const DeviceCatalog& other) {
  for (const DeviceDescription& device : other.devices_) {
    auto same = llvm::find_if(devices_, [&](const DeviceDescription& d) { return d.name == device.name; });
    if (same == devices_.end())
      devices_.push_back(device);
    else
      *same = device;
  }
}

std::string to_json(const DeviceDescription& device) {
  const DeviceDescription unsaid;
  json::Object object;
  for (const Field& field : fields)
    std::visit(
        [&](auto member) {
          constexpr bool may_be_empty = std::is_same_v<decltype(member), Member<std::vector<Reserve>>>;
          if (may_be_empty || device.*member != unsaid.*member) object[field.name] = written(device.*member);
        },
        field.member);
  std::string text;
  llvm::raw_string_ostream(text) << json::Value(std::move(object));
  return text;
}

Result<DeviceDescription> device_from_json(llvm::StringRef text) {
  Result<json::Value> parsed = parse_json(text);
  if (!parsed) return usage_error("a device: " + take_diag(parsed.takeError()).text());
  if (!parsed->getAsObject()) return usage_error("a device is an object");
  DeviceDescription device;
  if (Status s = read_fields(*parsed->getAsObject(), {}, false, device)) return s;
  return device;
}

Result<DeviceDescription> DeviceCatalog::find(llvm::StringRef name) const {
  for (const DeviceDescription& device : devices_)
    if (device.name == name) return device;
  std::string known = llvm::join(llvm::map_range(devices_, [](const DeviceDescription& d) { return d.name; }), ", ");
  return usage_error("no device is called \"" + name + "\"; known: " + known);
}

}  // namespace plimsoll
