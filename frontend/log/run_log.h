#pragma once

// The logs of a run: one place takes a record per step and per evaluation, and hands it to every writer.

#include "frontend/log/log_targets.h"
#include "frontend/log/record.h"

#include <memory>

namespace plimsoll {

// What is known before the first step.
struct RunFacts {
  const Plan* plan = nullptr;
  int64_t steps = 0;  // that the whole run will have done
  std::string items;  // "tokens" or "samples"
};

class LogWriter {
 public:
  virtual ~LogWriter() = default;
  // The record is in the file when this returns.
  virtual Status write(const LogRecord& record) = 0;
};

// A run that is resumed after step `done` adds to what is there, and records of later steps are dropped. With `done` 0
// what is there is replaced. Each fails where another run writes.
Result<std::unique_ptr<LogWriter>> open_json_lines(llvm::StringRef path, int64_t done);
Result<std::unique_ptr<LogWriter>> open_csv(llvm::StringRef path, int64_t done, const LogFields& fields);
Result<std::unique_ptr<LogWriter>> open_events(llvm::StringRef folder, int64_t done);

class RunLog {
 public:
  // `facts` are for the run's folder alone.
  Status open(const LogTargets& targets, int64_t done, const LogFields& fields, const RunFacts& facts = {});
  Status write(const LogRecord& record);

 private:
  std::vector<std::unique_ptr<LogWriter>> writers_;
};

}  // namespace plimsoll
