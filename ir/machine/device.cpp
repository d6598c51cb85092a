#include "ir/machine/device.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/JSON.h"

#include <algorithm>

// Reads device descriptions. A description is data that people edit, so every field is checked and a
// misspelt one is an error with its place in the file.

namespace plimsoll {
namespace {

namespace json = llvm::json;

constexpr llvm::StringLiteral builtin_devices =
#include "ir/machine/devices_json.inc"
    ;

constexpr llvm::StringLiteral device_fields[] = {"name",
                                                 "title",
                                                 "backend",
                                                 "memory_bytes",
                                                 "reserves",
                                                 "matmul_tflops",
                                                 "vector_tflops",
                                                 "memory_gb_per_s",
                                                 "launch_us",
                                                 "kernel_us",
                                                 "alignment_bytes",
                                                 "compute_capability",
                                                 "multiprocessors",
                                                 "to_host_gb_per_s",
                                                 "from_host_gb_per_s",
                                                 "copy_overhead_us",
                                                 "copy_interference",
                                                 "to_host_both_ways_gb_per_s",
                                                 "from_host_both_ways_gb_per_s",
                                                 "link_gb_per_s",
                                                 "graph_launch_bytes",
                                                 "product_workspace_bytes",
                                                 "convolution_workspace_bytes",
                                                 "efficiency"};

Status field_error(const llvm::Twine& device, llvm::StringRef field, llvm::StringRef expected) {
  return usage_error(device + ": \"" + field + "\" must be " + expected);
}

Status read_text(const json::Object& from, llvm::StringRef device, llvm::StringRef field, std::string& to) {
  auto text = from.getString(field);
  if (!text || text->empty()) return field_error(device, field, "a text");
  to = text->str();
  return Status::success();
}

Status read_bytes(const json::Object& from, llvm::StringRef device, llvm::StringRef field, int64_t& to) {
  auto bytes = from.getInteger(field);
  if (!bytes || *bytes <= 0) return field_error(device, field, "a whole number of bytes above 0");
  to = *bytes;
  return Status::success();
}

Status read_rate(const json::Object& from, llvm::StringRef device, llvm::StringRef field, double& to) {
  auto rate = from.getNumber(field);
  if (!rate || !(*rate > 0)) return field_error(device, field, "a number above 0");
  to = *rate;
  return Status::success();
}

Status read_share(const json::Object& from, llvm::StringRef device, llvm::StringRef field, double& to) {
  auto share = from.getNumber(field);
  if (!share || !(*share >= 0 && *share <= 1)) return field_error(device, field, "a share from 0 to 1");
  to = *share;
  return Status::success();
}

Status read_reserves(const json::Object& from, DeviceDescription& device) {
  const json::Array* list = from.getArray("reserves");
  if (!list) return field_error(device.name, "reserves", "a list of {name, bytes}");
  for (const json::Value& entry : *list) {
    const json::Object* object = entry.getAsObject();
    if (!object) return field_error(device.name, "reserves", "a list of {name, bytes}");
    Reserve& reserve = device.reserves.emplace_back();
    if (Status s = read_text(*object, device.name, "name", reserve.name)) return s;
    if (Status s = read_bytes(*object, device.name, "bytes", reserve.bytes)) return s;
  }
  return Status::success();
}

Status read_matmul_rates(const json::Object& from, DeviceDescription& device) {
  const json::Object* rates = from.getObject("matmul_tflops");
  if (!rates || !rates->get("f32")) return field_error(device.name, "matmul_tflops", "an object with at least \"f32\"");
  for (const auto& entry : *rates)
    if (llvm::StringRef type = entry.first; !parse_dtype(type))
      return usage_error(device.name + ": matmul_tflops: no type \"" + type + "\"");
  // In the order of the types: the order of a JSON object's keys means nothing.
  for (int i = 0; i < dtype_count; ++i) {
    auto dtype = static_cast<DType>(i);
    if (!rates->get(dtype_name(dtype))) continue;
    double tflops = 0;
    if (Status s = read_rate(*rates, device.name, dtype_name(dtype), tflops)) return s;
    device.matmul_tflops.push_back({dtype, tflops});
  }
  return Status::success();
}

Status read_count(const json::Object& from, llvm::StringRef device, llvm::StringRef field, int& to) {
  auto count = from.getInteger(field);
  if (!count || *count <= 0 || *count > 1 << 20) return field_error(device, field, "a whole number above 0");
  to = static_cast<int>(*count);
  return Status::success();
}

Status read_efficiency(const json::Object& shares, llvm::StringRef device,
                       std::vector<std::pair<std::string, double>>& to) {
  to.clear();
  for (const auto& entry : shares) {
    llvm::StringRef op = entry.first;
    auto share = entry.second.getAsNumber();
    if (!share || !(*share > 0 && *share <= 1))
      return field_error(device + ": efficiency", op, "a share of the roofline, above 0 and at most 1");
    to.push_back({op.str(), *share});
  }
  llvm::sort(to);  // the order of a JSON object's keys means nothing
  return Status::success();
}

// What is taken of a backend's devices that do not say it themselves.
struct Usual {
  std::vector<std::pair<std::string, double>> efficiency;
  int64_t graph_launch_bytes = 0;
  double both_ways_share = 1;  // of its speed alone, what a copy keeps while one of the other direction runs
  double kernel_us = 0, copy_overhead_us = 0, copy_interference = 0;
};

// By backend, from the built-in file: what a user's file describes runs the same kernels, behind a bus of the same
// kind.
Result<llvm::StringMap<Usual>> read_usual() {
  llvm::StringMap<Usual> by_backend;
  auto parsed = json::parse(builtin_devices);
  if (!parsed) return system_error("ir/machine/devices.json: " + llvm::toString(parsed.takeError()));
  for (const auto& entry : *parsed->getAsObject()->getObject("usual")) {
    llvm::StringRef backend = entry.first;
    const json::Object& from = *entry.second.getAsObject();
    Usual& usual = by_backend[backend];
    if (Status s = read_efficiency(*from.getObject("efficiency"), backend, usual.efficiency)) return s;
    if (Status s = read_rate(from, backend, "both_ways_share", usual.both_ways_share)) return s;
    if (Status s = read_rate(from, backend, "kernel_us", usual.kernel_us)) return s;
    if (Status s = read_rate(from, backend, "copy_overhead_us", usual.copy_overhead_us)) return s;
    if (Status s = read_share(from, backend, "copy_interference", usual.copy_interference)) return s;
    if (Status s = read_bytes(from, backend, "graph_launch_bytes", usual.graph_launch_bytes)) return s;
  }
  return by_backend;
}

// What only a GPU has; all of it is needed but the link to other cards and what is usual.
Status read_gpu(const json::Object& from, const Usual& usual, DeviceDescription& device) {
  if (Status s = read_count(from, device.name, "compute_capability", device.compute_capability)) return s;
  if (Status s = read_count(from, device.name, "multiprocessors", device.multiprocessors)) return s;
  if (Status s = read_bytes(from, device.name, "product_workspace_bytes", device.product_workspace_bytes)) return s;
  if (Status s = read_bytes(from, device.name, "convolution_workspace_bytes", device.convolution_workspace_bytes))
    return s;
  device.graph_launch_bytes = usual.graph_launch_bytes;
  if (from.get("graph_launch_bytes"))
    if (Status s = read_bytes(from, device.name, "graph_launch_bytes", device.graph_launch_bytes)) return s;
  return from.get("link_gb_per_s") ? read_rate(from, device.name, "link_gb_per_s", device.link_gb_per_s)
                                   : Status::success();
}

Status read_rate_or(const json::Object& from, llvm::StringRef device, llvm::StringRef field, double usual, double& to) {
  to = usual;
  return from.get(field) ? read_rate(from, device, field, to) : Status::success();
}

Status read_both_ways(const json::Object& from, llvm::StringRef device, llvm::StringRef field, double one_way,
                      double usual_share, double& to) {
  to = one_way * usual_share;
  if (!from.get(field)) return Status::success();
  if (Status s = read_rate(from, device, field, to)) return s;
  return to <= one_way ? Status::success() : field_error(device, field, "at most what that way moves alone");
}

// A GPU has memory of its own beside the host's; of another device it may be said, to plan as if it had.
Status read_ways_to_host(const json::Object& from, const Usual& usual, DeviceDescription& device) {
  if (device.backend != "cuda" && !from.get("to_host_gb_per_s")) return Status::success();
  if (Status s = read_rate(from, device.name, "to_host_gb_per_s", device.to_host_gb_per_s)) return s;
  if (Status s = read_rate(from, device.name, "from_host_gb_per_s", device.from_host_gb_per_s)) return s;
  if (Status s = read_rate_or(from, device.name, "copy_overhead_us", usual.copy_overhead_us, device.copy_overhead_us))
    return s;
  device.copy_interference = usual.copy_interference;
  if (from.get("copy_interference"))
    if (Status s = read_share(from, device.name, "copy_interference", device.copy_interference)) return s;
  if (Status s = read_both_ways(from, device.name, "to_host_both_ways_gb_per_s", device.to_host_gb_per_s,
                                usual.both_ways_share, device.to_host_both_ways_gb_per_s))
    return s;
  return read_both_ways(from, device.name, "from_host_both_ways_gb_per_s", device.from_host_gb_per_s,
                        usual.both_ways_share, device.from_host_both_ways_gb_per_s);
}

Result<DeviceDescription> read_device(const json::Object& from, const llvm::StringMap<Usual>& usual_of) {
  DeviceDescription device;
  if (Status s = read_text(from, "a device", "name", device.name)) return s;
  for (const auto& entry : from)
    if (llvm::StringRef field = entry.first; !llvm::is_contained(device_fields, field))
      return usage_error(device.name + ": unknown field \"" + field + "\"");
  if (Status s = read_text(from, device.name, "title", device.title)) return s;
  if (Status s = read_text(from, device.name, "backend", device.backend)) return s;
  if (device.backend != "cpu" && device.backend != "cuda")
    return field_error(device.name, "backend", "\"cpu\" or \"cuda\"");
  if (Status s = read_bytes(from, device.name, "memory_bytes", device.memory_bytes)) return s;
  if (Status s = read_reserves(from, device)) return s;
  if (Status s = read_matmul_rates(from, device)) return s;
  if (Status s = read_rate(from, device.name, "vector_tflops", device.vector_tflops)) return s;
  if (Status s = read_rate(from, device.name, "memory_gb_per_s", device.memory_gb_per_s)) return s;
  if (Status s = read_rate(from, device.name, "launch_us", device.launch_us)) return s;
  const Usual usual = usual_of.lookup(device.backend);
  if (Status s = read_rate_or(from, device.name, "kernel_us", usual.kernel_us, device.kernel_us)) return s;
  if (from.get("alignment_bytes"))
    if (Status s = read_bytes(from, device.name, "alignment_bytes", device.alignment_bytes)) return s;
  if (device.alignment_bytes & (device.alignment_bytes - 1))
    return field_error(device.name, "alignment_bytes", "a power of two");
  if (Status s = read_ways_to_host(from, usual, device)) return s;
  if (device.backend == "cuda")
    if (Status s = read_gpu(from, usual, device)) return s;
  if (const json::Value* shares = from.get("efficiency")) {
    if (!shares->getAsObject()) return field_error(device.name, "efficiency", "an object of shares by op");
    if (Status s = read_efficiency(*shares->getAsObject(), device.name, device.efficiency)) return s;
    return device;
  }
  device.efficiency = usual.efficiency;
  return device;
}

}  // namespace

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

double DeviceDescription::matmul_tflops_for(DType dtype) const {
  double f32 = 0;
  for (const auto& [type, tflops] : matmul_tflops) {
    if (type == dtype) return tflops;
    if (type == DType::F32) f32 = tflops;
  }
  return f32;
}

double DeviceDescription::efficiency_of(llvm::StringRef op) const {
  auto found = llvm::find_if(efficiency, [&](const auto& entry) { return entry.first == op; });
  return found == efficiency.end() ? 1 : found->second;
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

Result<DeviceCatalog> DeviceCatalog::builtin() { return from_json(builtin_devices, "ir/machine/devices.json"); }

Result<DeviceCatalog> DeviceCatalog::from_json(llvm::StringRef text, llvm::StringRef file) {
  auto parsed = json::parse(text);
  if (!parsed) return usage_error(file + ": " + llvm::toString(parsed.takeError()));
  const json::Object* top = parsed->getAsObject();
  const json::Array* list = top ? top->getArray("devices") : nullptr;
  if (!list) return usage_error(file + ": expected {\"devices\": [...]}");
  Result<llvm::StringMap<Usual>> usual = read_usual();
  if (!usual) return usual.takeError();
  DeviceCatalog catalog;
  for (const json::Value& entry : *list) {
    const json::Object* object = entry.getAsObject();
    if (!object) return usage_error(file + ": a device is an object");
    auto device = read_device(*object, *usual);
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
  json::Array reserves;
  for (const Reserve& reserve : device.reserves)
    reserves.push_back(json::Object{{"name", reserve.name}, {"bytes", reserve.bytes}});
  json::Object rates;
  for (const auto& [dtype, tflops] : device.matmul_tflops) rates[dtype_name(dtype)] = tflops;
  json::Object efficiency;
  for (const auto& [op, share] : device.efficiency) efficiency[op] = share;
  json::Object object{{"name", device.name},
                      {"title", device.title},
                      {"backend", device.backend},
                      {"memory_bytes", device.memory_bytes},
                      {"reserves", std::move(reserves)},
                      {"matmul_tflops", std::move(rates)},
                      {"vector_tflops", device.vector_tflops},
                      {"memory_gb_per_s", device.memory_gb_per_s},
                      {"launch_us", device.launch_us},
                      {"alignment_bytes", device.alignment_bytes}};
  // What nobody measured is left to what is usual of the backend.
  if (!device.efficiency.empty()) object["efficiency"] = std::move(efficiency);
  if (device.kernel_us > 0) object["kernel_us"] = device.kernel_us;
  if (device.copy_overhead_us > 0) object["copy_overhead_us"] = device.copy_overhead_us;
  if (device.copy_interference > 0) object["copy_interference"] = device.copy_interference;
  if (device.backend == "cuda") {
    object["compute_capability"] = device.compute_capability;
    object["multiprocessors"] = device.multiprocessors;
    object["to_host_gb_per_s"] = device.to_host_gb_per_s;
    object["from_host_gb_per_s"] = device.from_host_gb_per_s;
    if (device.to_host_both_ways_gb_per_s > 0) object["to_host_both_ways_gb_per_s"] = device.to_host_both_ways_gb_per_s;
    if (device.from_host_both_ways_gb_per_s > 0)
      object["from_host_both_ways_gb_per_s"] = device.from_host_both_ways_gb_per_s;
    if (device.link_gb_per_s > 0) object["link_gb_per_s"] = device.link_gb_per_s;
    if (device.graph_launch_bytes > 0) object["graph_launch_bytes"] = device.graph_launch_bytes;
    object["product_workspace_bytes"] = device.product_workspace_bytes;
    object["convolution_workspace_bytes"] = device.convolution_workspace_bytes;
  }
  std::string text;
  llvm::raw_string_ostream(text) << json::Value(std::move(object));
  return text;
}

Result<DeviceDescription> DeviceCatalog::find(llvm::StringRef name) const {
  for (const DeviceDescription& device : devices_)
    if (device.name == name) return device;
  std::string known = llvm::join(llvm::map_range(devices_, [](const DeviceDescription& d) { return d.name; }), ", ");
  return usage_error("no device is called \"" + name + "\"; known: " + known);
}

}  // namespace plimsoll
