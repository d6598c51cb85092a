#include "frontend/api/machine.h"
#include "frontend/api/measure_links.h"
#include "frontend/driver/job_ranks.h"
#include "frontend/inspect/text_table.h"
#include "ir/support/units.h"

#include "llvm/Support/Threading.h"

namespace plimsoll {
namespace {

std::string rates_of(const DeviceDescription& device) {
  std::string text;
  for (const auto& [dtype, tflops] : device.matmul_tflops) {
    char rate[48];
    std::snprintf(rate, sizeof rate, "%s%s %g", text.empty() ? "" : ", ", dtype_name(dtype).str().c_str(), tflops);
    text += rate;
  }
  return text;
}

Status print_measured(Console& console) {
  console.progress.phase("measure");
  Result<DeviceDescription> device = measure_card_here();
  if (!device) return device.takeError();
  console.progress.finish();
  console.out << "{\"devices\": [\n" << to_json(*device) << "\n]}\n";
  return Status::success();
}

// The first rank prints.
Status print_links(JobRanks& ranks, const DevicesOptions& options, Console& console) {
  if (ranks.is_first()) console.progress.phase("measure");
  Result<DeviceDescription> device = find_device(options.device, options.device_file);
  if (Status s = ranks.agreed(device ? Status::success() : device.takeError())) return s;
  Result<ClusterDescription> cluster = measure_links(*ranks.communicator(), *device);
  if (!cluster) return cluster.takeError();
  console.progress.finish();
  if (ranks.is_first()) console.out << to_json(*cluster);
  return Status::success();
}

Status measure(const DevicesOptions& options, Console& console) {
  return JobRanks::run(console, default_patience_s, [&](JobRanks& ranks) {
    return ranks.are_several() ? print_links(ranks, options, console) : print_measured(console);
  });
}

}  // namespace

Status devices_command(const DevicesOptions& options, Console& console) {
  if (options.measure) return measure(options, console);
  Result<DeviceCatalog> catalog = known_devices(options.device_file);
  if (!catalog) return catalog.takeError();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  table.line(table.styled(Style::Strong, left("name", 10) + left("device", 32) + right("memory", 10) +
                                             right("reserved", 10) + right("GB/s", 7) + "  matmul TFLOP/s"));
  for (const DeviceDescription& device : catalog->all()) {
    // A processor has the machine's memory; its description has only reserves and rates.
    bool here = device.backend == "cpu";
    table.line(left(device.name, 10) + left(device.title, 32) +
               right(here ? "" : format_bytes(device.memory_bytes), 10) +
               right(format_bytes(device.reserve_bytes()), 10) +
               right(std::to_string(static_cast<int64_t>(device.memory_gb_per_s)), 7) + "  " +
               table.styled(Style::Quiet, rates_of(device)));
  }
  table.heading("in this machine");
  table.line("cpu       " + processor_here() + ", " +
             std::to_string(llvm::hardware_concurrency().compute_thread_count()) + " threads, " +
             format_bytes(memory_here()) + " of memory");
  Result<DeviceDescription> card = find_card_here(*catalog);
  table.line(card ? left(card->name, 10) + card->title : left("gpu", 10) + take_diag(card.takeError()).text());
  return Status::success();
}

}  // namespace plimsoll
