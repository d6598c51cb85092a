#include "frontend/driver/decode_choice.h"

#include "ir/machine/image_decoding.h"
#include "ir/plan/summary.h"
#include "ir/support/units.h"
#include "runtime/data/image_files.h"

#include "llvm/Support/FileSystem.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace plimsoll {
namespace {

// Rows that a rank reads for one update, a second.
double images_per_s(const Plan& own) {
  if (own.predicted_step_us <= 0) return 0;
  const auto images = static_cast<double>(own.training.batch * own.training.accumulate);
  return images / static_cast<double>(own.mesh[MeshAxis::Data]) * 1e6 / own.predicted_step_us;
}

// Why the card is not for these images at all; empty: it is.
std::string obstacle(const RunOptions& options, const Plan& own, int64_t cache_bytes) {
  if (own.device.backend != "cuda") return "the plan is for " + own.device.name + ", which is no GPU";
  if (own.functions.front().inputs.empty()) return "this rank reads no data";
  if (cache_bytes > 0) return "--cache keeps what the processor decodes";
  if (!llvm::sys::fs::exists(options.data) || !has_images(options.data)) return options.data + " has no images";
  return "";
}

// Why budgets have no room for it; empty: they have.
std::string lacking_room(const Plan& own, const DecodeChoice& choice) {
  const int64_t device_bytes =
      has_budget(own) ? own.arenas.front().budget_bytes : std::max(own.device.memory_bytes, own.promised_bytes());
  const int64_t device_room = device_bytes - own.promised_bytes();
  if (choice.device_bytes > device_room)
    return "it takes " + format_bytes(choice.device_bytes) + " of device memory, and the plan leaves " +
           format_bytes(device_room) + " of " + format_bytes(device_bytes) +
           "; a plan compiled with --for-gpu-decoding has room for it";
  const HostSummary& host = own.host;
  if (host.budget_bytes == 0) return "";
  const int64_t ranks = host.ranks_per_host > 0 ? std::min(host.ranks_per_host, own.mesh.ranks()) : own.mesh.ranks();
  const int64_t host_room = host.budget_bytes / std::max<int64_t>(1, ranks) - own.host_bytes();
  if (choice.pinned_bytes > host_room)
    return "it pins " + format_bytes(choice.pinned_bytes) + " of host memory, and the plan leaves " +
           format_bytes(std::max<int64_t>(0, host_room)) + " of the host budget";
  return "";
}

}  // namespace

Result<DecodeChoice> choose_decoder(const RunOptions& options, const Plan& own, int64_t cache_bytes) {
  const std::string& asked = options.data_request.decode;
  if (Result<size_t> known = read_choice("--decode", asked, {"auto", "cpu", "gpu"}); !known) return known.takeError();
  DecodeChoice choice;
  if (asked == "cpu") return choice;
  choice.was_asked = asked == "gpu";
  if (const std::string why = obstacle(options, own, cache_bytes); !why.empty())
    return choice.was_asked ? Result<DecodeChoice>(usage_error("--decode gpu: " + why)) : choice;
  const auto cores = static_cast<double>(std::max(1U, std::thread::hardware_concurrency()));
  const double wanted = images_per_s(own);
  if (!choice.was_asked && wanted <= cores * images_per_core_and_s) return choice;
  choice.device_bytes = reserves_decoding(own.device) ? 0 : ImageDecodingMemory::device_bytes();
  choice.pinned_bytes = ImageDecodingMemory::pinned_bytes();
  const std::string lack = lacking_room(own, choice);
  choice.on_gpu = lack.empty();
  if (choice.on_gpu) return choice;
  if (choice.was_asked) return budget_error("--decode gpu: " + lack);
  choice = {};
  choice.note = "the predicted step takes " + format_count(std::llround(wanted)) +
                " images/s, more than the cores here may decode; nvJPEG could, but " + lack;
  return choice;
}

}  // namespace plimsoll
