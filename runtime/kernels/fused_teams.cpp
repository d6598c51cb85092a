#include "runtime/kernels/fused_teams.h"

#include "kernels/division.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int64_t block_threads = FusedTeams::block_threads, warp_threads = FusedTeams::warp_threads;
// Blocks that are wanted in flight: four on each multiprocessor of the largest chips.
constexpr int64_t wanted_blocks = 528;
// Bytes of operands that a thread loads before it computes on the first.
constexpr int64_t loaded_bytes = 128;
// Rows that a thread has at most where it has all of its columns.
constexpr int64_t rows_of_thread = 32;
// Runs of a row that a thread of a team has at most, where that leaves it in one block.
constexpr int64_t runs_of_thread = 4;
// Of rows without words, elements that one thread takes at most where threads for all rows fill a card.
constexpr int64_t elements_of_thread = 16;
// Runs side by side, and rows of each lane, up to which a warp takes all of a few columns.
constexpr int64_t runs_of_warp = 16, rows_of_lane = 64;

// A line of `teams.across` threads has the runs of a row side by side, and the lines of a block have rows in turn. Rows
// of many runs are cut into blocks of columns of equal widths, which begin at whole sectors. Where there are few rows
// and threads for all columns fill a card, a thread has all rows of its columns: of blocks for 4 rows of 32 columns
// nearly all lines would wait, 844 us on an H200 for 44 million bf16 numbers. Of few columns a warp has all rows:
// blocks for 196 rows of 4 columns took 210 us for 158 MB.
void cut_columns(FusedTeams& teams, const BodyForm& form, RunBytes run_bytes, bool has_reductions) {
  const int64_t runs = form.inner / teams.n;
  teams.has_whole_columns = form.passes == 1 && has_reductions && form.length <= rows_of_thread &&
                            form.outer * runs >= wanted_blocks * block_threads;
  if (teams.has_whole_columns) {
    teams.across = block_threads;
    teams.blocks = divide_up(form.outer * runs, block_threads);
    return;
  }
  constexpr int64_t warps = block_threads / warp_threads;
  teams.has_warps_of_columns = form.passes == 1 && has_reductions && runs <= runs_of_warp &&
                               form.length <= warp_threads / runs * rows_of_lane && form.outer >= wanted_blocks * warps;
  if (teams.has_warps_of_columns) {
    teams.across = runs;
    teams.blocks = divide_up(form.outer, warps);
    teams.batch = std::clamp<int64_t>(loaded_bytes / run_bytes.read, 1, 8);
    return;
  }
  int64_t widest = warp_threads;
  while (widest < std::min(block_threads, runs) && block_threads / widest * teams.batch > form.length) widest *= 2;
  teams.across = divide_up(runs, divide_up(runs, widest));
  if (teams.across < runs) teams.across = round_up(teams.across, 2);
  teams.column_blocks = divide_up(runs, teams.across);
  const int64_t lines = block_threads / teams.across;
  teams.threads = lines * teams.across;
  teams.parts = std::clamp<int64_t>(wanted_blocks / (form.outer * teams.column_blocks), 1,
                                    divide_up(form.length, lines * teams.batch));
  teams.blocks = form.outer * teams.column_blocks * teams.parts;
}

void cut_rows(FusedTeams& teams, const BodyForm& form, RunBytes run_bytes) {
  const int64_t runs = form.length / teams.n;
  const bool has_row_of_elements =
      teams.n == 1 && runs <= elements_of_thread && form.outer >= wanted_blocks * block_threads;
  const int64_t of_warp =
      has_row_of_elements ? 1 : std::min(warp_threads, static_cast<int64_t>(llvm::PowerOf2Ceil(divide_up(runs, 2))));
  if (form.passes > 1) {
    teams.team =
        runs <= warp_threads * runs_of_thread
            ? of_warp
            : std::clamp<int64_t>(static_cast<int64_t>(llvm::PowerOf2Ceil(divide_up(runs, runs_of_thread))), 64, 512);
    const int64_t of_thread = divide_up(runs, teams.team);
    teams.keeps_rows = of_thread * run_bytes.kept <= FusedTeams::kept_bytes;
    if (teams.keeps_rows) teams.batch = of_thread;
  } else {
    teams.team = runs <= block_threads ? of_warp : block_threads;
    if (teams.team == block_threads)
      teams.parts = std::clamp<int64_t>(wanted_blocks / form.outer, 1, divide_up(runs, teams.team * teams.batch));
    if (has_row_of_elements) teams.batch = runs;
  }
  teams.threads = teams.team <= warp_threads ? block_threads : teams.team;
  teams.blocks = divide_up(form.outer * teams.parts * teams.team, teams.threads);
}

}  // namespace

FusedTeams make_teams(const BodyForm& form, int64_t n, RunBytes run_bytes, bool has_reductions) {
  FusedTeams teams;
  teams.n = n;
  teams.batch = std::clamp<int64_t>(loaded_bytes / std::max<int64_t>(run_bytes.read, 1), 1, 4);
  if (form.inner > 1)
    cut_columns(teams, form, run_bytes, has_reductions);
  else
    cut_rows(teams, form, run_bytes);
  return teams;
}

}  // namespace plimsoll
