#pragma once

// How the devices of a job hang together: a small JSON file that `devices --measure` writes on several ranks, or that
// is written by hand.
//
//   {"hosts": 2, "cards": 8, "host_memory_bytes": 1000000000000,
//    "link": {"base_us": 47, "gb_per_s": 333}, "network": {"base_us": 60, "gb_per_s": 40}}

#include "ir/machine/device.h"

namespace plimsoll {

// A collective takes base_us and, each way, the bytes that a rank sends over gb_per_s.
struct ClusterLink {
  double base_us = 0, gb_per_s = 0;
};

// One measurement, as it was taken.
struct MeasuredCollective {
  std::string op;
  int64_t ranks = 0;
  int64_t bytes = 0;  // of the whole that is summed or gathered
  double us = 0;
};

struct ClusterDescription {
  int64_t hosts = 1, cards = 1;   // cards of each host
  int64_t host_memory_bytes = 0;  // of each host, that its ranks may hold together; 0: not limited
  ClusterLink link;               // between the cards of one host; gb_per_s 0: as the device's description has it
  ClusterLink network;            // between hosts
  // Computing loses this share of a collective's time beside it, and the collective reaches this share of the link; 0:
  // as the device's description has them.
  double interference = 0, share = 0;
  // What the copies of all cards of a host move together, both directions added up; 0: as the device's description
  // says.
  double host_copies_gb_per_s = 0;
  std::vector<MeasuredCollective> measured;

  int64_t ranks() const { return hosts * cards; }
};

// Errors name the file and the field.
Result<ClusterDescription> read_cluster(llvm::StringRef file);
std::string to_json(const ClusterDescription& cluster);

// The device with the links that the mesh's ranks talk over along each axis: the network's where a group of them is not
// within one host; and with its share of the host's copies. Ranks fill the hosts one after the other. The error says
// that the cluster has too few cards.
Result<DeviceDescription> on_cluster(DeviceDescription device, const ClusterDescription& cluster, const Mesh& mesh);

// Bytes that each rank sends in a collective whose whole has `bytes`: for every other rank what that one does not have,
// twice in a sum that all get.
double bytes_sent(int64_t bytes, int64_t ranks, bool sum_for_all);

// The line us = base + sent / rate through measurements, by least squares of relative errors.
ClusterLink fit_link(llvm::ArrayRef<MeasuredCollective> measured);

}  // namespace plimsoll
