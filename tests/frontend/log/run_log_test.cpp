#include "frontend/log/run_log.h"
#include "frontend/log/event.pb.h"
#include "frontend/log/record_frames.h"
#include "ir/support/strings.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

#include <doctest/doctest.h>

#include <cmath>

namespace plimsoll {
namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() { REQUIRE_FALSE(llvm::sys::fs::createUniqueDirectory("logs", path_)); }
  ~TemporaryFolder() { llvm::sys::fs::remove_directories(path_); }
  std::string operator/(llvm::StringRef name) const { return (path_ + "/" + name).str(); }

 private:
  llvm::SmallString<64> path_;
};

std::string text_of(const std::string& path) {
  auto file = llvm::MemoryBuffer::getFile(path);
  REQUIRE(file);
  return (*file)->getBuffer().str();
}

void append(const std::string& path, llvm::StringRef text) {
  std::error_code failure;
  llvm::raw_fd_ostream(path, failure, llvm::sys::fs::OF_Append) << text;
  REQUIRE_FALSE(failure);
}

LogRecord step(int64_t number, double loss) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = loss;
  metrics.step_ms = 2.5;
  metrics.grad_norm = 1;
  return record_of(metrics, 400, 1 << 20);
}

LogRecord evaluation(int64_t number) { return record_of(number, {{{"loss", 0.25}, {"accuracy", 0.5}}, 10, 2}, true); }

LogFields fields() { return {step(0, 0).fields, evaluation(0).fields}; }

void write_run(const LogTargets& targets, int64_t done, llvm::ArrayRef<LogRecord> records) {
  RunLog log;
  llvm::cantFail(log.open(targets, done, fields()));
  for (const LogRecord& record : records) llvm::cantFail(log.write(record));
}

std::vector<std::string> files_in(llvm::StringRef folder) {
  std::vector<std::string> files;
  std::error_code failure;
  for (llvm::sys::fs::directory_iterator at(folder, failure), end; at != end && !failure; at.increment(failure))
    files.push_back(at->path());
  return files;
}

// "1 train/loss 2, 1 ...": the steps, tags and numbers of a folder's only file.
std::vector<std::string> events_in(llvm::StringRef folder) {
  const std::vector<std::string> files = files_in(folder);
  REQUIRE(files.size() == 1);
  const std::string bytes = text_of(files.front());
  llvm::StringRef rest = bytes;
  std::vector<std::string> all;
  while (std::optional<llvm::StringRef> data = take_frame(rest)) {
    events::Event event;
    REQUIRE(event.ParseFromArray(data->data(), static_cast<int>(data->size())));
    if (!event.file_version().empty()) all.push_back(event.file_version());
    for (const events::Summary::Value& value : event.summary().value())
      if (ends_with(value.tag(), "loss"))
        all.push_back(
            std::to_string(event.step()) + " " + value.tag() + " " +
            (std::isnan(value.simple_value()) ? "nan" : std::to_string(std::lround(100 * value.simple_value()))));
  }
  CHECK(rest.empty());
  return all;
}

TEST_SUITE("unit") {
  TEST_CASE("run log: CRC-32C and the frames of TFRecord files") {
    CHECK(crc32c("123456789") == 0xe3069283);            // the check value of the polynomial
    CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);  // RFC 3720, B.4
    std::string bytes;
    llvm::raw_string_ostream out(bytes);
    write_frame(out, "abc");
    write_frame(out, "");
    out.flush();
    CHECK(bytes.size() == 16 + 3 + 16);
    llvm::StringRef rest = bytes;
    CHECK(take_frame(rest) == std::optional<llvm::StringRef>("abc"));
    CHECK(take_frame(rest) == std::optional<llvm::StringRef>(""));
    CHECK_FALSE(take_frame(rest));
    for (size_t wrong : {0, 9, 13, 17}) {
      std::string damaged = bytes;
      damaged[wrong] ^= 1;
      llvm::StringRef at = damaged;
      CHECK_FALSE(take_frame(at));
    }
    llvm::StringRef torn = llvm::StringRef(bytes).take_front(18);
    CHECK_FALSE(take_frame(torn));
  }

  TEST_CASE("run log: a record goes to every writer") {
    TemporaryFolder folder;
    write_run({folder / "m.jsonl", folder / "m.csv", folder / "events"}, 0, {step(1, 2), evaluation(1), step(2, NAN)});
    CHECK(
        text_of(folder / "m.jsonl") ==
        R"({"step":1,"loss":2,"step_ms":2.5,"grad_norm":1,"learning_rate":0,"tokens_or_samples_per_s":400,"device_bytes":1048576}
{"step":1,"evaluation":{"loss":0.25,"accuracy":0.5,"samples":10,"seconds":2,"best":true}}
{"step":2,"loss":null,"step_ms":2.5,"grad_norm":1,"learning_rate":0,"tokens_or_samples_per_s":400,"device_bytes":1048576}
)");
    CHECK(text_of(folder / "m.csv") ==
          "step,loss,step_ms,grad_norm,learning_rate,tokens_or_samples_per_s,device_bytes,evaluation_loss,"
          "evaluation_accuracy,evaluation_samples,evaluation_seconds,evaluation_best\n"
          "1,2,2.5,1,0,400,1048576,,,,,\n1,,,,,,,0.25,0.5,10,2,1\n2,nan,2.5,1,0,400,1048576,,,,,\n");
    CHECK(events_in(folder / "events") ==
          std::vector<std::string>{"brain.Event:2", "1 train/loss 200", "1 evaluation/loss 25", "2 train/loss nan"});
  }

  TEST_CASE("run log: a resumed run drops later records and what was torn, and adds to the others") {
    TemporaryFolder folder;
    const LogTargets targets{folder / "m.jsonl", folder / "m.csv", folder / "events"};
    write_run(targets, 0, {step(1, 1), step(2, 2), evaluation(2), step(3, 3)});
    append(targets.json_lines, R"({"step":4,"lo)");
    append(targets.csv, "4,0.");
    append(files_in(targets.events).front(), "torn");
    write_run(targets, 2, {step(3, 4)});
    CHECK(events_in(targets.events) == std::vector<std::string>{"brain.Event:2", "1 train/loss 100", "2 train/loss 200",
                                                                "2 evaluation/loss 25", "3 train/loss 400"});
    const std::string lines = text_of(targets.json_lines), rows = text_of(targets.csv);
    CHECK(llvm::StringRef(lines).count('\n') == 4);
    CHECK(llvm::StringRef(lines).contains(R"({"step":3,"loss":4,)"));
    CHECK(llvm::StringRef(rows).count('\n') == 5);
    CHECK(ends_with(rows, "3,4,2.5,1,0,400,1048576,,,,,\n"));

    write_run(targets, 0, {step(1, 7)});
    CHECK(events_in(targets.events) == std::vector<std::string>{"brain.Event:2", "1 train/loss 700"});
    CHECK(llvm::StringRef(text_of(targets.csv)).count('\n') == 2);
  }

  TEST_CASE("run log: one run at a time, and none where something else is") {
    TemporaryFolder folder;
    const auto failure = [&](const LogTargets& targets, int64_t done, const LogFields& as) {
      RunLog log;
      Status status = log.open(targets, done, as);
      REQUIRE(bool(status));
      return take_diag(std::move(status)).text();
    };
    const LogTargets targets{folder / "m.jsonl", folder / "m.csv", folder / "events"};
    {
      RunLog log;
      llvm::cantFail(log.open(targets, 0, fields()));
      llvm::cantFail(log.write(step(1, 1)));
      for (const LogTargets& again :
           {LogTargets{targets.json_lines, "", ""}, {"", targets.csv, ""}, {"", "", targets.events}}) {
        const std::string path = again.json_lines + again.csv + again.events;
        CHECK(failure(again, 0, fields()) == path + ": another run writes here");
      }
    }
    CHECK(llvm::StringRef(text_of(targets.csv)).count('\n') == 2);  // nothing was cut off
    CHECK(failure({"", targets.csv, ""}, 1, {step(0, 0).fields, {}}) ==
          targets.csv + ": has other columns than this run writes; give another file");
    append(folder / "events/events.out.tfevents.1.host.2.0", "");
    CHECK(failure({"", "", targets.events}, 1, fields()) ==
          targets.events +
              ": holds events.out.tfevents.1.host.2.0, events of another run; give this run a folder of "
              "its own");
  }
}

}  // namespace
}  // namespace plimsoll
