#pragma once

// How the ranks along one axis of the mesh divide a tensor: each of them holds a piece.

#include "ir/attrs.h"
#include "ir/mesh.h"
#include "ir/type.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace plimsoll {

// A dimension is made of `blocks`, sizes that add up to it, and each rank has its part of every block, in the order of
// the ranks. Mostly there is one block; q, k and v side by side are three. Parts of a block are equally long, with
// zeros behind its end.
struct Cut {
  static constexpr int64_t flat = -1;  // in place of a dimension: all elements in memory order, without blocks

  int64_t dim = flat;
  Shape blocks;
  // By block, what a rank has of it, where that is not what the sizes say: whole heads, say.
  Shape parts = {};
  friend bool operator==(const Cut&, const Cut&) = default;
};

// With these parts of the blocks, which are left out where the sizes say the same.
Cut cut_in_parts(int64_t dim, Shape blocks, Shape parts, int64_t ranks);
// May ranks divide it so? Where parts are not given, blocks of several divide evenly, and of one that does not every
// rank has at least one element. Given parts may leave the last ranks nothing but zeros.
bool can_divide(const Cut& cut, int64_t ranks);
bool divides_evenly(const Cut& cut, int64_t ranks);
// What a rank has of the dimension, and of one of its blocks.
int64_t part_size(const Cut& cut, int64_t ranks);
int64_t part_of_block(const Cut& cut, size_t block, int64_t ranks);

struct Division {
  MeshAxis axis = MeshAxis::Data;
  Shape whole;  // the shape of what is divided
  Cut cut;
  friend bool operator==(const Division&, const Division&) = default;
};
// One after the other: the piece along the first one's axis of its whole, the piece of that along the second's, ...
using Divisions = llvm::SmallVector<Division, 1>;
bool has_axis(llvm::ArrayRef<Division> divisions, MeshAxis axis);
// The shape of what is divided first; `own` where nothing is.
Shape whole_shape(llvm::ArrayRef<Division> divisions, llvm::ArrayRef<int64_t> own);

// "[768,2304] along data"; "[768,2304] along tensor in dim 1 of [768,768,768]"; several joined by " then ".
std::string to_string(llvm::ArrayRef<Division> divisions);

// The attributes of a collective of `ranks` along an axis; a sum of wholes has no {shape}.
Attrs collective_attrs(MeshAxis axis, int64_t ranks, llvm::ArrayRef<int64_t> shape = {});

// Consecutive elements that the whole and the piece of one rank share.
struct PieceRun {
  int64_t whole_at, piece_at, count;
};
void for_each_run(const Type& whole, const Type& piece, const Cut& cut, int64_t coordinate,
                  llvm::function_ref<void(const PieceRun&)> visit);

// The piece of the rank at that coordinate of the axis. What it has beyond the end of the whole is zero.
void copy_to_piece(const TensorView& piece, const TensorView& whole, const Cut& cut, int64_t coordinate);
// Puts a piece in its place in the whole.
void copy_from_piece(const TensorView& whole, const TensorView& piece, const Cut& cut, int64_t coordinate);

// The piece of a rank after all divisions.
Tensor piece_of(Tensor whole, llvm::ArrayRef<Division> divisions, const Mesh& mesh, int64_t rank,
                llvm::ArrayRef<int64_t> own_shape);

}  // namespace plimsoll
