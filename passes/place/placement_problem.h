#pragma once

// What the placement stages hand to each other: one independent piece of the
// problem over compressed time, the best packing so far, and the work left.

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace plimsoll::placement {

struct Buffer {
  int64_t bytes;
  int32_t first, last;  // sections, inclusive
  int32_t steps;        // of the schedule
};

// Time is compressed to sections, the steps at which the set of live buffers is
// maximal. Two buffers are alive together exactly if they share a section.
struct Piece {
  std::vector<Buffer> buffers;
  int32_t sections = 0;
  int64_t lower_bound = 0;
};

struct Packing {
  std::vector<int64_t> offsets;
  int64_t height = std::numeric_limits<int64_t>::max();
  std::string method;
};

// Work is counted in elementary steps so that the answer never depends on a clock.
class Effort {
 public:
  explicit Effort(int64_t steps) : left_(steps) {}
  void spend(int64_t steps) { left_ -= steps; }
  bool spent() const { return left_ <= 0; }
  int64_t left() const { return left_; }

 private:
  int64_t left_;
};

// Fourteen static orders; keeps the lowest packing in `best`. At least one is run to its end.
void try_static_orders(const Piece& piece, int64_t target, Effort& effort, Packing& best);

// Likewise three orders that begin with what is alive at the peak; `best` must hold a packing.
void try_peak_orders(const Piece& piece, int64_t target, Effort& effort, Packing& best);

// Tells the packing of each of these and of the peak orders, as long as there is work left.
void visit_orders(const Piece& piece, Effort& effort, llvm::function_ref<void(Packing)> tell);

// Gives the buffers whose offset is below 0 the lowest holes below `limit`, larger ones first; false where one finds
// none.
bool fill_holes(const Piece& piece, llvm::ArrayRef<int64_t> offsets, int64_t limit, Effort& effort, Packing& out);

// A piece whose small buffers are joined with others that end or begin with them, as far as its bound stays.
struct Blocks {
  Piece piece;
  std::vector<int32_t> block_of;     // by buffer of the piece that it comes from,
  std::vector<int64_t> begin_bytes;  // and where in the block it lies
};
Blocks blocks_of(const Piece& piece, int64_t max_bytes);

// Halves the way from `best`, which must hold a packing, to `target` where the largest buffers can be brought apart
// within that. Does nothing for pieces with too many pairs of large buffers.
void search_by_conflicts(const Piece& piece, int64_t target, Effort& effort, Packing& best);

// Halves the way from `best`, which must hold a packing, to `target` where that is found. For any number of buffers.
void search_by_ejection(const Piece& piece, int64_t target, Effort& effort, Packing& best);

// The same from `best` itself: what is above a lower capacity looks for a place among all others.
void press_together(const Piece& piece, int64_t target, Effort& effort, Packing& best);

// Halves the way from `best`, which must hold a packing, to `target`: from `best`, from greedy orders of blocks, and
// from scratch where these leave it more than 1/500 above the bound. For any number of buffers, with work of its own.
void come_near(const Piece& piece, int64_t target, Packing& best);

class ExactSearch {
 public:
  explicit ExactSearch(const Piece& piece);  // outlives it
  ~ExactSearch();

  // Lowers `best`, which must hold a packing, towards `target` while effort lasts. What was tried in vain before is not
  // done again.
  void lower(int64_t target, Effort& effort, Packing& best);

 private:
  class Trials;
  const Piece& piece_;
  std::unique_ptr<Trials> trials_;  // null: nothing was tried
};

}  // namespace plimsoll::placement
