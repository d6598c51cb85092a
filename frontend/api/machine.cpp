#include "frontend/api/machine.h"

#include "ir/support/read_file.h"
#include "ir/support/strings.h"
#include "runtime/cuda/loader.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>

namespace plimsoll {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

// Turns "NVIDIA GeForce RTX 4090" into "rtx-4090", which users can type.
std::string short_name(llvm::StringRef title) {
  title.consume_front("NVIDIA ");
  title.consume_front("GeForce ");
  std::string name = title.lower();
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

}  // namespace

Result<DeviceCatalog> known_devices(llvm::StringRef file) {
  Result<DeviceCatalog> devices = DeviceCatalog::builtin();
  if (!devices || file.empty()) return devices;
  Result<std::unique_ptr<llvm::MemoryBuffer>> text = read_file(file);
  if (!text) return text.takeError();
  Result<DeviceCatalog> more = DeviceCatalog::from_json((*text)->getBuffer(), file);
  if (!more) return more.takeError();
  devices->add(*more);
  return devices;
}

Result<DeviceDescription> find_card_here(const DeviceCatalog& devices) {
  Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend();
  if (!backend) return backend.takeError();
  CudaCard card;
  if (Status s = to_status((*backend)->identify_card(card))) return s;
  for (const DeviceDescription& device : devices.all())
    if (device.describes(card.name)) return device;
  return model_error("there is no description of the GPU in this machine, " + card.name +
                     "; make one with `plimsoll devices --measure` and pass it with --device-file");
}

Result<DeviceDescription> find_device(llvm::StringRef name, llvm::StringRef file) {
  Result<DeviceCatalog> devices = known_devices(file);
  if (!devices) return devices.takeError();
  if (name != "auto") return devices->find(name);
  Result<DeviceDescription> card = find_card_here(*devices);
  if (card) return card;
  Diag why = take_diag(card.takeError());
  if (why.fault() != Fault::System) return llvm::make_error<Diag>(std::move(why));
  return devices->find("cpu");
}

Result<std::vector<DeviceDescription>> devices_named(llvm::ArrayRef<std::string> names, llvm::StringRef file) {
  std::vector<DeviceDescription> devices;
  for (const std::string& name : names) {
    Result<DeviceDescription> device = find_device(name, file);
    if (!device) return device.takeError();
    devices.push_back(std::move(*device));
  }
  if (!devices.empty()) return devices;
  Result<DeviceCatalog> known = known_devices(file);
  if (!known) return known.takeError();
  return known->all().vec();
}

std::string processor_here() {
  const auto text = llvm::MemoryBuffer::getFileAsStream("/proc/cpuinfo");
  if (!text) return "unnamed";
  // Each core has a line "model name : NAME" on x86 and none on ARM.
  const llvm::StringRef line = (*text)->getBuffer().split("model name").second.split('\n').first;
  return line.empty() ? "unnamed" : line.ltrim("\t :").rtrim().str();
}

int64_t memory_here() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

// The first number in a file of the system, behind `key` if there is one. None where the file or the number is missing.
static std::optional<int64_t> number_in(const char* file, llvm::StringRef key = "") {
  auto text = llvm::MemoryBuffer::getFileAsStream(file);
  if (!text) return std::nullopt;
  int64_t number = 0;
  llvm::StringRef rest = (*text)->getBuffer();
  const size_t at = rest.find(key);
  if (at == llvm::StringRef::npos || rest.drop_front(at + key.size()).ltrim().consumeInteger(10, number))
    return std::nullopt;
  return number;
}

int64_t available_memory_here() {
  const std::optional<int64_t> kib = number_in("/proc/meminfo", "MemAvailable:");
  int64_t bytes = kib ? *kib * 1024 : memory_here();
  const std::optional<int64_t> limit = number_in("/sys/fs/cgroup/memory.max");
  const std::optional<int64_t> used = number_in("/sys/fs/cgroup/memory.current");
  const int64_t file_pages = number_in("/sys/fs/cgroup/memory.stat", "inactive_file ").value_or(0);  // given back
  if (limit && used) bytes = std::min(bytes, std::max<int64_t>(0, *limit - *used + file_pages));
  // ulimit -v; the first number in statm counts mapped pages.
  struct rlimit mapped = {};
  if (getrlimit(RLIMIT_AS, &mapped) != 0 || mapped.rlim_cur == RLIM_INFINITY) return bytes;
  const int64_t pages = number_in("/proc/self/statm").value_or(0);
  return std::min(bytes, std::max<int64_t>(0, static_cast<int64_t>(mapped.rlim_cur) - pages * sysconf(_SC_PAGESIZE)));
}

Result<DeviceDescription> measure_card_here() {
  Result<std::unique_ptr<CudaBackend>> backend = load_cuda_backend();
  if (!backend) return backend.takeError();
  CudaCard card;
  if (Status s = to_status((*backend)->measure_card(card))) return s;
  DeviceDescription device;
  device.name = short_name(card.name);
  device.title = card.name;
  device.backend = "cuda";
  device.memory_bytes = card.memory_bytes;
  device.reserves = card.reserves;
  device.matmul_tflops = card.matmul_tflops;
  // Outside the matrix units nothing is bound by arithmetic on these GPUs; f32 matmuls give its rate.
  device.vector_tflops = device.matmul_tflops_for(DType::F32);
  device.memory_gb_per_s = card.copy_gb_per_s;
  device.launch_us = card.launch_us;
  device.compute_capability = 10 * card.compute_major + card.compute_minor;
  device.multiprocessors = card.multiprocessors;
  device.to_host_gb_per_s = card.to_host_gb_per_s;
  device.from_host_gb_per_s = card.from_host_gb_per_s;
  device.to_host_both_ways_gb_per_s = card.to_host_both_ways_gb_per_s;
  device.from_host_both_ways_gb_per_s = card.from_host_both_ways_gb_per_s;
  // NVIDIA recommends 32 MiB for matmuls from Hopper on, and 4 MiB before.
  device.product_workspace_bytes = (card.compute_major >= 9 ? 32 : 4) * mib;
  device.convolution_workspace_bytes = 256 * mib;
  return device;
}

}  // namespace plimsoll
