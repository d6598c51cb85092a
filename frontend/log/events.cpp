#include "frontend/log/event.pb.h"
#include "frontend/log/record_frames.h"
#include "frontend/log/run_log.h"
#include "ir/support/file_lock.h"
#include "ir/support/output_file.h"
#include "ir/support/strings.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

#include <unistd.h>
#include <chrono>

// A folder with one event file for TensorBoard. A run that is resumed writes a new file, which begins with the events
// that stay, and removes the old one: TensorBoard may be reading that while it runs, and would stumble over a file that
// becomes shorter.

namespace plimsoll {
namespace {

namespace fs = llvm::sys::fs;
namespace path = llvm::sys::path;

constexpr llvm::StringLiteral name_prefix = "events.out.tfevents.", own_suffix = ".plimsoll";

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// TensorBoard reads a folder's files in the order of their names. A folder has one run; its restarts have names that
// sort behind those before.
std::string new_name(llvm::ArrayRef<std::string> old) {
  auto time = static_cast<int64_t>(now_s());
  std::string name;
  do {
    name = name_prefix.str() + std::to_string(time++) + own_suffix.str();
  } while (!old.empty() && name <= path::filename(old.back()));
  return name;
}

// Files of earlier parts of the run, in the order of their names. Those of other programs are an error: TensorBoard
// would join them with this run's.
Result<std::vector<std::string>> event_files(llvm::StringRef folder) {
  std::vector<std::string> files;
  std::error_code failure;
  for (fs::directory_iterator at(folder, failure), end; at != end && !failure; at.increment(failure)) {
    const llvm::StringRef name = path::filename(at->path());
    if (!name.contains("tfevents") || ends_with(name, ".part")) continue;
    if (!starts_with(name, name_prefix) || !ends_with(name, own_suffix))
      return usage_error(folder + ": holds " + name + ", events of another run; give this run a folder of its own");
    files.push_back(at->path());
  }
  if (failure) return system_error(folder + ": " + failure.message());
  llvm::sort(files);
  return files;
}

std::string first_event() {
  events::Event event;
  event.set_wall_time(now_s());
  event.set_file_version("brain.Event:2");
  return event.SerializeAsString();
}

std::string event_of(const LogRecord& record) {
  events::Event event;
  event.set_wall_time(now_s());
  event.set_step(record.step);
  for (const LogField& field : record.fields) {
    events::Summary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag((record.is_evaluation ? "evaluation/" : "train/") + field.name);
    value.set_simple_value(std::visit([](auto number) { return static_cast<float>(number); }, field.value));
  }
  return event.SerializeAsString();
}

// Copies the events up to step `done`; a torn or damaged end is left out.
Status copy_events(llvm::StringRef from, int64_t done, llvm::raw_ostream& out) {
  auto bytes = llvm::MemoryBuffer::getFile(from, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!bytes) return system_error(from + ": " + bytes.getError().message());
  llvm::StringRef rest = (*bytes)->getBuffer();
  while (std::optional<llvm::StringRef> data = take_frame(rest)) {
    events::Event event;
    if (!event.ParseFromArray(data->data(), static_cast<int>(data->size())) || event.step() > done) break;
    if (event.has_summary()) write_frame(out, *data);
  }
  return Status::success();
}

class Events : public LogWriter {
 public:
  static Result<std::unique_ptr<LogWriter>> open(llvm::StringRef folder, int64_t done) {
    if (std::error_code failure = fs::create_directories(folder))
      return system_error(folder + ": " + failure.message());
    Result<FolderLock> lock = FolderLock::take(folder);
    if (!lock) return lock.takeError();
    Result<std::vector<std::string>> old = event_files(folder);
    if (!old) return old.takeError();
    llvm::SmallString<128> file(folder);
    path::append(file, new_name(*old));
    if (Status s = write_output_file(file, [&](llvm::raw_ostream& out) {
          write_frame(out, first_event());
          return done > 0 && !old->empty() ? copy_events(old->back(), done, out) : Status::success();
        }))
      return s;
    for (const std::string& each : *old) fs::remove(each);
    auto events = std::make_unique<Events>();
    events->lock_ = std::move(*lock);
    events->path_ = file.str().str();
    std::error_code failure;
    events->out_ = std::make_unique<llvm::raw_fd_ostream>(file, failure, fs::OF_Append);
    if (failure) return system_error(file + ": " + failure.message());
    return events;
  }

  Status write(const LogRecord& record) override {
    write_frame(*out_, event_of(record));
    out_->flush();
    if (!out_->has_error()) return Status::success();
    const std::error_code failure = out_->error();
    out_->clear_error();
    return system_error(path_ + ": " + failure.message());
  }

 private:
  FolderLock lock_;
  std::string path_;
  std::unique_ptr<llvm::raw_fd_ostream> out_;
};

}  // namespace

Result<std::unique_ptr<LogWriter>> open_events(llvm::StringRef folder, int64_t done) {
  return Events::open(folder, done);
}

}  // namespace plimsoll
