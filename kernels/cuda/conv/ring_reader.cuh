#pragma once

// Who reads lines that the copy engine brings to a ring in shared memory.

#include "kernels/cuda/common/block_cluster.cuh"
#include "kernels/cuda/common/box_copy.cuh"

namespace plimsoll::cuda {

// A warp's side: it waits for every stage in turn and gives every one back, so that none of its arrivals is a phase
// early. Barriers has `full` and `empty` of each stage, and Ring says how many stages there are, and lines of each.
template <typename Barriers, typename Ring>
class RingReader {
 public:
  __device__ RingReader(Barriers& barriers, const Ring& ring) : barriers_(barriers), ring_(ring) {}

  __device__ void wait_for(int line) {
    for (; there_ <= line; there_ += ring_.stage_lines, full_.advance(ring_.stages))
      wait_at(&barriers_.full[full_.stage], full_.parity);
  }
  __device__ void give_back_before(int line) {
    for (; returned_ + ring_.stage_lines <= line; returned_ += ring_.stage_lines, empty_.advance(ring_.stages)) {
      wait_for(returned_);
      arrive_as_warp_at(&barriers_.empty[empty_.stage]);
    }
  }

 private:
  Barriers& barriers_;
  const Ring& ring_;
  int there_ = 0, returned_ = 0;
  RingPlace full_, empty_;
};

}  // namespace plimsoll::cuda
