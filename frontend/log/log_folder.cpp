#include "frontend/log/log_folder.h"

#include "ir/plan/serialize.h"
#include "ir/support/file_lock.h"
#include "ir/support/output_file.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"

#include <chrono>

namespace plimsoll {
namespace {

Status write_facts(const std::string& path, const RunFacts& facts) {
  return write_output_file(path, [&](llvm::raw_ostream& out) {
    llvm::json::OStream to(out, /*IndentSize=*/1);
    to.object([&] {
      to.attribute("model", facts.plan->model);
      to.attribute("device", facts.plan->device.name);
      to.attribute("steps", facts.steps);
      to.attribute("items", facts.items);
      to.attribute("promised_bytes", facts.plan->promised_bytes());
      to.attribute("predicted_step_us", facts.plan->predicted_step_us);
      to.attribute("started_unix_s",
                   std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                       .count());
    });
    out << "\n";
    return Status::success();
  });
}

class LogFolder : public LogWriter {
 public:
  LogFolder(FolderLock lock, std::unique_ptr<LogWriter> lines) : lock_(std::move(lock)), lines_(std::move(lines)) {}
  Status write(const LogRecord& record) override { return lines_->write(record); }

 private:
  FolderLock lock_;
  std::unique_ptr<LogWriter> lines_;
};

}  // namespace

std::string path_in_log(llvm::StringRef folder, llvm::StringRef file) {
  llvm::SmallString<128> path(folder);
  llvm::sys::path::append(path, file);
  return path.str().str();
}

Result<std::unique_ptr<LogWriter>> open_log_folder(llvm::StringRef folder, int64_t done, const RunFacts& facts) {
  if (std::error_code failure = llvm::sys::fs::create_directories(folder))
    return system_error(folder + ": " + failure.message());
  Result<FolderLock> lock = FolderLock::take(folder);
  if (!lock) return lock.takeError();
  Result<std::unique_ptr<LogWriter>> lines = open_json_lines(path_in_log(folder, log_records_file), done);
  if (!lines) return lines.takeError();
  if (done == 0) llvm::sys::fs::remove(path_in_log(folder, log_times_file));
  if (Status s = save_plan(*facts.plan, path_in_log(folder, log_plan_file))) return s;
  if (Status s = write_facts(path_in_log(folder, log_facts_file), facts)) return s;
  return std::make_unique<LogFolder>(std::move(*lock), std::move(*lines));
}

}  // namespace plimsoll
