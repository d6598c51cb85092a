#pragma once

// The folder of `run --log`, which `watch` shows: the plan, what is known of the run from the start, and a line of JSON
// per record.

#include "frontend/log/run_log.h"

namespace plimsoll {

inline constexpr llvm::StringLiteral log_plan_file = "model.plan", log_facts_file = "run.json",
                                     log_records_file = "metrics.jsonl", log_times_file = "profile.jsonl";

std::string path_in_log(llvm::StringRef folder, llvm::StringRef file);

// As open_json_lines, with the other files; measured times of an earlier run are removed where `done` is 0.
Result<std::unique_ptr<LogWriter>> open_log_folder(llvm::StringRef folder, int64_t done, const RunFacts& facts);

}  // namespace plimsoll
