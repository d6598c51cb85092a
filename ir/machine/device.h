#pragma once

// What planning needs to know of a device. All descriptions stand in ir/machine/devices.json, which is
// compiled into the program; a file of the same form can replace or extend it.

#include "ir/machine/engine.h"
#include "ir/type.h"

#include <optional>
#include <vector>

namespace plimsoll {

// Bytes outside our arenas that the job holds all the same: driver context, library handles, modules.
struct Reserve {
  std::string name;
  int64_t bytes = 0;
};

struct DeviceDescription {
  std::string name;     // "h200"
  std::string title;    // "NVIDIA H200 141 GB"
  std::string backend;  // "cpu" or "cuda"
  int64_t memory_bytes = 0;
  std::vector<Reserve> reserves;
  std::vector<std::pair<DType, double>> matmul_tflops;  // dense products by operand dtype, measured where known
  double vector_tflops = 0;                             // f32 outside the matrix units
  double memory_gb_per_s = 0;                           // copy bandwidth: bytes read plus bytes written
  double launch_us = 0;                                 // least time from one kernel to the next
  double kernel_us = 0;  // what a kernel takes beside that and its roofline: filling the chip and draining it
  int64_t alignment_bytes = 256;
  // By op: the share of its roofline that its kernels reach, as measured on large calls; 1 for ops that are not listed.
  std::vector<std::pair<std::string, double>> efficiency;
  // GPUs only.
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  double to_host_gb_per_s = 0, from_host_gb_per_s = 0;  // pinned memory, one way at a time
  double copy_overhead_us =
      0;  // what computing loses to a copy from or to the host, however small, beside waiting for it
  double copy_interference = 0;  // and of the time that the copy takes, a share from 0 to 1
  double to_host_both_ways_gb_per_s = 0,
         from_host_both_ways_gb_per_s = 0;  // each, while both are at work; 0: as fast as one way at a time
  double link_gb_per_s = 0;                 // to one other card, each way; 0: through the host
  int64_t graph_launch_bytes = 0;           // outside the arenas, for each launch in a CUDA graph
  int64_t product_workspace_bytes = 0;      // what cuBLASLt is given for a matrix product
  int64_t convolution_workspace_bytes = 0;  // what cuDNN is given at most for a convolution

  int64_t reserve_bytes() const;
  // With a reserve for graphs of so many launches, where those take any.
  DeviceDescription with_graphs(int64_t launches) const;
  double matmul_tflops_for(DType dtype) const;  // falls back to f32
  double efficiency_of(llvm::StringRef op) const;
  DuplexShares duplex_shares() const;
  CopyInterference interference_of_copies() const { return {copy_overhead_us, copy_interference}; }
  // The least time of a call: of computing in the matrix units (of `matrix` operands) or beside them, and of its bytes.
  // Without the launch.
  double roofline_us(double flops, int64_t bytes_moved, std::optional<DType> matrix) const;
};

// One entry of a device file, as DeviceCatalog reads it.
std::string to_json(const DeviceDescription& device);

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
