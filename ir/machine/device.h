#pragma once

// What planning needs to know of a device. All descriptions stand in ir/machine/devices.json, which is compiled into
// the program; a file of the same form can replace or extend it.

#include "ir/engine.h"
#include "ir/mesh.h"
#include "ir/type.h"

#include <optional>
#include <vector>

namespace plimsoll {

// Bytes outside our arenas that the job holds all the same: driver context, library handles, modules.
struct Reserve {
  std::string name;
  int64_t bytes = 0;
  std::string kernels{};  // only plans of programs that may call kernels whose names begin so hold it; empty: all do
  friend bool operator==(const Reserve&, const Reserve&) = default;
};

// How ranks along one axis of a mesh talk to each other: a collective takes base_us and, each way, the bytes that a
// rank sends over gb_per_s.
struct AxisLink {
  MeshAxis axis = MeshAxis::Data;
  double base_us = 0, gb_per_s = 0;
  friend bool operator==(const AxisLink&, const AxisLink&) = default;
};

// What a program asks of the library through which ranks talk.
struct RankTraffic {
  int64_t collectives = 0;
  int64_t stages_met = 0;                             // other stages that one sends to or receives from
  std::array<bool, mesh_axis_count> needs_buffers{};  // by axis: it has collectives that NCCL cannot do in the arenas
};

// A new field needs its row in the table of device.cpp besides.
struct DeviceDescription {
  std::string name;     // "h200"
  std::string title;    // "NVIDIA H200 141 GB"
  std::string backend;  // "cpu" or "cuda"
  int64_t memory_bytes = 0;
  std::vector<Reserve> reserves;
  std::vector<std::pair<DType, double>> matmul_tflops;  // dense matmuls by operand dtype, measured where known
  std::vector<std::pair<DType, double>> peak_tflops;    // the same by the data sheet, which utilisation is a share of
  double vector_tflops = 0;                             // f32 outside the matrix units
  double memory_gb_per_s = 0;                           // copy bandwidth: bytes read plus bytes written
  double launch_us = 0;                                 // minimum time from one kernel to the next
  double kernel_us = 0;  // time in which a kernel that waits for its own sums fills and drains the chip
  int64_t alignment_bytes = 256;
  int64_t page_bytes = 0;  // of memory that a second address can show; 0: none can
  // By op: the share of its roofline that its kernels reach, as measured on large calls; 1 if it is not listed.
  std::vector<std::pair<std::string, double>> efficiency;
  // GPUs only.
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  double to_host_gb_per_s = 0, from_host_gb_per_s = 0;  // pinned memory, one way at a time
  // A copy from or to the host, however small, takes this from computing, besides a share of its own time.
  double copy_overhead_us = 0, copy_interference = 0;
  // Each direction while both are at work; 0: as fast as alone.
  double to_host_both_ways_gb_per_s = 0, from_host_both_ways_gb_per_s = 0;
  // What the copies of all cards of a host move together, both directions added up; 0: as much as the cards can.
  double host_copies_gb_per_s = 0;
  // Between the devices of a host, each way, as a collective uses it; 0: through the host's memory.
  double link_gb_per_s = 0;
  double collective_us = 0;              // least time of a collective
  double arena_collective_us = 0;        // the same where ranks reach into each other's arenas; 0: no less
  std::vector<AxisLink> axis_links;      // of axes whose ranks talk over another link
  int64_t collective_reserve_bytes = 0;  // what the library that talks to other ranks holds, per axis of the mesh
  int64_t arena_reserve_bytes = 0;       // the same where ranks reach into each other's arenas
  int64_t transfer_reserve_bytes = 0;    // what it holds besides per stage to send to or to receive from
  int64_t collective_graph_bytes = 0;    // what it holds besides per collective in a CUDA graph
  // Computing loses this share of its speed beside a collective, which reaches this share of the link.
  double collective_interference = 0, collective_share = 1;
  int64_t graph_launch_bytes = 0;           // outside the arenas, per launch in a CUDA graph
  int64_t product_workspace_bytes = 0;      // given to cuBLASLt for a matmul
  int64_t convolution_workspace_bytes = 0;  // the maximum given to cuDNN for a convolution

  int64_t reserve_bytes() const;
  // What an arena with windows takes besides: it is mapped in whole pages, and fills neither the first nor the last.
  int64_t windows_reserve_bytes() const { return 2 * page_bytes; }
  // Can the ranks along an axis reach into each other's arenas?
  bool reaches_arenas(MeshAxis axis) const;
  // Is it what a driver calls so? Titles say the memory besides: "NVIDIA H200 141 GB".
  bool describes(llvm::StringRef card) const;
  // The same device with a reserve for CUDA graphs of so many launches, if launches take bytes.
  DeviceDescription with_graphs(int64_t launches) const;
  // The same device with a reserve for talking to the other ranks of a mesh, if there are any. Its memory has no second
  // addresses then: NCCL reaches into allocations.
  DeviceDescription with_ranks(const Mesh& mesh, const RankTraffic& traffic) const;
  // That one with a reserve for so many collectives more, none of which meets ranks that the others do not.
  DeviceDescription with_more_collectives(int64_t count) const;
  // The same device with its share of the host's copies, where so many cards of a host copy at the same time.
  DeviceDescription with_cards_of_host(int64_t cards) const;
  double matmul_tflops_for(DType dtype) const;  // falls back to f32
  double peak_tflops_for(DType dtype) const;    // falls back to matmul_tflops_for
  double efficiency_of(llvm::StringRef op) const;
  DuplexShares duplex_shares() const;
  // Starting a copy that takes less than a few launches costs more than its bytes are worth.
  double min_copy_us() const { return 4 * launch_us; }
  double link_gb_per_s_used() const;
  AxisLink link_of(MeshAxis axis) const;
  // Time of a collective along the axis for which a rank sends so many bytes.
  double ranks_us(MeshAxis axis, double sent_bytes) const;
  CopyInterference interference_of_copies() const { return {copy_overhead_us, copy_interference}; }
  // Of collectives along the axis data, which are launched together.
  CollectiveShares collective_shares() const {
    return {collective_share, 1 - collective_interference, link_of(MeshAxis::Data).base_us};
  }
  // The minimum time of a call without its launch: the longer of its arithmetic, in the matrix units where `matrix` is
  // the operands' type, and of moving its bytes.
  double roofline_us(double flops, int64_t bytes_moved, std::optional<DType> matrix) const;
  // What a kernel takes beside so many microseconds of its roofline: small ones fill and drain little of the chip.
  double beside_us(double roofline_us) const;
};

// One entry of a device file; what nobody measured is left out.
std::string to_json(const DeviceDescription& device);
// Takes the text as it stands: what it leaves out is 0 and not what is usual of the backend.
Result<DeviceDescription> device_from_json(llvm::StringRef text);

class DeviceCatalog {
 public:
  static Result<DeviceCatalog> builtin();
  static Result<DeviceCatalog> from_json(llvm::StringRef text, llvm::StringRef file);

  // Descriptions of `other` come before those of the same name here.
  void add(const DeviceCatalog& other);
  // The error lists the known names.
  Result<DeviceDescription> find(llvm::StringRef name) const;
  llvm::ArrayRef<DeviceDescription> all() const { return devices_; }

 private:
  std::vector<DeviceDescription> devices_;
};

}  // namespace plimsoll
