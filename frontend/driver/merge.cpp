#include "frontend/api/merge_adapter.h"
#include "frontend/driver/commands.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

Status merge_command(const MergeCommandOptions& options, Console& console) {
  console.progress.phase("merge");
  MergeRequest request = options.request;
  if (Status s = read_dims(options.dims, request.import)) return s;
  Result<MergeResult> result = merge_adapter(request);
  if (!result) return result.takeError();
  console.progress.finish();
  console.out << request.output << ": " << result->modules << (result->modules == 1 ? " adapter" : " adapters")
              << " merged";
  if (result->whole > 0) console.out << ", " << result->whole << " weights replaced whole";
  if (!result->most_changed.empty())
    console.out << ", the largest change is " << llvm::format("%.3g", result->largest_change) << ", in "
                << result->most_changed;
  console.out << "\n";
  return Status::success();
}

}  // namespace plimsoll
