#pragma once

// Which threads of the kernel of a fused op with reductions have which of its elements.

#include "ir/fused_form.h"

namespace plimsoll {

// Elements come in runs of `n`, words of memory side by side. Of rows, `team` threads have a row's runs in turn. Of
// columns, a line of `across` threads has the runs of a row side by side, and the lines of a block have rows in turn.
struct FusedTeams {
  static constexpr int64_t block_threads = 256, warp_threads = 32;
  static constexpr int64_t kept_bytes = 256;  // of a row in registers of a thread

  int64_t n = 1;
  int64_t batch = 1;  // runs that are loaded before the first is computed on
  int64_t across = 1, column_blocks = 1, team = warp_threads;
  int64_t parts = 1;  // of each total
  int64_t threads = block_threads, blocks = 1;
  bool keeps_rows = false;            // whole rows are in registers, and are read once
  bool has_whole_columns = false;     // a thread has all rows of its columns
  bool has_warps_of_columns = false;  // a warp has all rows of a few columns
};

// Bytes of all operands that a run is read from, and of those that whole rows keep.
struct RunBytes {
  int64_t read = 0, kept = 0;
};

// For runs of `n` elements. A thread or a warp has all rows of its columns only where the body has reductions.
FusedTeams make_teams(const BodyForm& form, int64_t n, RunBytes run_bytes, bool has_reductions);

}  // namespace plimsoll
