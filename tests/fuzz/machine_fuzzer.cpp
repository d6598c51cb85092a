#include "ir/machine/cluster.h"
#include "ir/machine/device.h"
#include "ir/machine/timing_cache.h"
#include "tests/fuzz/file_of_bytes.h"

// JSON of devices, clusters and times: the first byte says which.

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  if (size == 0) return 0;
  const llvm::StringRef text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const testing::FileOfBytes file(bytes + 1, size - 1);
  switch (bytes[0] % 4) {
    case 0: testing::take(DeviceCatalog::from_json(text, "devices.json")); break;
    case 1: testing::take(device_from_json(text)); break;
    case 2: testing::take(read_cluster(file.path())); break;
    default: testing::take(TimingCache::load(file.path()));
  }
  return 0;
}
