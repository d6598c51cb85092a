#include "frontend/log/run_log.h"

#include "frontend/log/log_folder.h"

namespace plimsoll {

Status RunLog::open(const LogTargets& targets, int64_t done, const LogFields& fields, const RunFacts& facts) {
  const auto add = [&](Result<std::unique_ptr<LogWriter>> writer) -> Status {
    if (!writer) return writer.takeError();
    writers_.push_back(std::move(*writer));
    return Status::success();
  };
  if (!targets.json_lines.empty())
    if (Status s = add(open_json_lines(targets.json_lines, done))) return s;
  if (!targets.csv.empty())
    if (Status s = add(open_csv(targets.csv, done, fields))) return s;
  if (!targets.events.empty())
    if (Status s = add(open_events(targets.events, done))) return s;
  if (!targets.folder.empty())
    if (Status s = add(open_log_folder(targets.folder, done, facts))) return s;
  return Status::success();
}

Status RunLog::write(const LogRecord& record) {
  for (const std::unique_ptr<LogWriter>& writer : writers_)
    if (Status s = writer->write(record)) return s;
  return Status::success();
}

}  // namespace plimsoll
