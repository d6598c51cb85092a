#include "frontend/log/record_frames.h"
#include "frontend/log/run_log.h"
#include "ir/support/json_text.h"
#include "runtime/checkpoint/record.h"
#include "tests/fuzz/file_of_bytes.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/xxhash.h"

// Files that a run finds of the run before it, checkpoints' records and logs: the first byte says which.

namespace plimsoll {
namespace {

// With the right checksum, so that damage gets behind it.
std::string with_checksum(llvm::StringRef text) {
  Result<llvm::json::Value> json = parse_json(text);
  if (!json) return llvm::consumeError(json.takeError()), "";
  llvm::json::Object* object = json->getAsObject();
  if (!object) return "";
  object->erase("checksum");
  const std::string sum = llvm::utohexstr(llvm::xxHash64(llvm::formatv("{0}", *json).str()), /*LowerCase=*/true);
  (*object)["checksum"] = std::string(16 - sum.size(), '0') + sum;
  return llvm::formatv("{0}", *json).str();
}

// Each frame is written anew, so that damage gets behind the checksums.
std::string framed(llvm::StringRef events) {
  std::string text;
  llvm::raw_string_ostream out(text);
  while (!events.empty()) {
    const auto [event, rest] = events.split('\n');
    write_frame(out, event);
    events = rest;
  }
  return out.str();
}

}  // namespace
}  // namespace plimsoll

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  if (size == 0) return 0;
  const llvm::StringRef text(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  const testing::FileOfBytes file(bytes + 1, size - 1);
  const testing::FolderOfFiles folder;
  constexpr llvm::StringLiteral events_file = "events.out.tfevents.1.plimsoll";
  constexpr int64_t done = 5;
  switch (bytes[0] % 6) {
    case 0: testing::take(parse_checkpoint_record(text)); break;
    case 1: testing::take(parse_checkpoint_record(with_checksum(text))); break;
    case 2: testing::take(open_json_lines(file.path(), done)); break;
    case 3: testing::take(open_csv(file.path(), done, {{{"loss", 0.0}}, {{"accuracy", 0.0}}})); break;
    default:
      folder.add(events_file.str(), bytes[0] % 6 == 4 ? text.str() : framed(text));
      testing::take(open_events(folder.path(), done));
  }
  return 0;
}
