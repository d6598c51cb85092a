#pragma once

// Large ranges of a file in pieces, so that the disk reads some while processor cores convert others.

#include "ir/support/status.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>

namespace plimsoll {

// Threads that take pieces. They are more than two cores, since most wait for the disk.
int reading_threads();

// Reads `count` elements from `first` on; `thread` is below reading_threads(), and no other call has it meanwhile.
using ReadPiece = llvm::function_ref<Status(int64_t first, int64_t count, int thread)>;

// Calls `read` for pieces of at most `piece` elements that make up [0, count). One piece is read on the caller's
// thread, and so are the pieces of a piece, one after the other. Of several failures the first piece's is returned.
Status read_in_pieces(int64_t count, int64_t piece, ReadPiece read);

}  // namespace plimsoll
