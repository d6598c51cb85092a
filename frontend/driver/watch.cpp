#include "frontend/driver/commands.h"
#include "frontend/driver/local_server.h"
#include "frontend/inspect/print.h"
#include "frontend/log/log_folder.h"
#include "ir/machine/timing_cache.h"
#include "ir/plan/serialize.h"
#include "ir/support/output_file.h"
#include "ir/support/read_file.h"
#include "ir/support/strings.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

// A run as a page: the curves of the log over the plan's own page.

namespace plimsoll {
namespace {

// The page of the run as its files are now. With `records` it has the steps so far, else it asks the server for them.
enum class Records : bool { Asked, Inside };
Result<std::string> page_of(const std::string& folder, Records records) {
  Result<Plan> plan = load_plan(path_in_log(folder, log_plan_file));
  if (!plan) return plan.takeError();
  Result<std::unique_ptr<llvm::MemoryBuffer>> facts = read_file(path_in_log(folder, log_facts_file));
  if (!facts) return facts.takeError();
  Result<TimingCache> times = TimingCache::load_if_there(path_in_log(folder, log_times_file));
  if (!times) return times.takeError();
  RunOnPage run{.facts_json = (*facts)->getBuffer().str()};
  if (records == Records::Inside) {
    Result<std::unique_ptr<llvm::MemoryBuffer>> lines = read_file(path_in_log(folder, log_records_file));
    if (!lines) return lines.takeError();
    run.records = (*lines)->getBuffer().str();
  }
  std::string text;
  llvm::raw_string_ostream out(text);
  print_plan_html(out, *plan, {.run = &run, .times = &*times});
  return out.str();
}

// A longer log comes in parts.
constexpr size_t most_answered_bytes = 4 << 20;

// What the run wrote behind the first `from` bytes. A file that grows is read at its size of now.
std::string records_behind(const std::string& folder, uint64_t from) {
  auto lines = llvm::MemoryBuffer::getFile(path_in_log(folder, log_records_file), /*IsText=*/false,
                                           /*RequiresNullTerminator=*/false, /*IsVolatile=*/true);
  if (!lines) return "";
  const llvm::StringRef all = (*lines)->getBuffer();
  return from > all.size() ? "anew" : all.substr(from, most_answered_bytes).str();
}

std::optional<HttpAnswer> answer(const std::string& folder, llvm::StringRef path, llvm::StringRef query) {
  if (path == "/") {
    Result<std::string> page = page_of(folder, Records::Asked);
    if (!page) return HttpAnswer{"text/plain", take_diag(page.takeError()).text() + "\n"};
    return HttpAnswer{"text/html", std::move(*page)};
  }
  uint64_t from = 0;
  if (path != "/metrics" || !starts_with(query, "from=") || query.drop_front(5).getAsInteger(10, from))
    return std::nullopt;
  return HttpAnswer{"text/plain", records_behind(folder, from)};
}

}  // namespace

Status watch_command(const WatchCommandOptions& options, Console& console) {
  if (!llvm::sys::fs::exists(path_in_log(options.folder, log_facts_file)))
    return system_error(options.folder + ": has no log of a run; run --log DIR and train --log DIR write one");
  if (!options.html.empty()) {
    if (Status s = check_output_file(options.html)) return in_context("--html", std::move(s));
    Result<std::string> page = page_of(options.folder, Records::Inside);
    if (!page) return page.takeError();
    return write_output_file(options.html, [&](llvm::raw_ostream& out) { return out << *page, Status::success(); });
  }
  if (Result<std::string> page = page_of(options.folder, Records::Asked); !page) return page.takeError();
  const auto started = [&](const std::string& address) {
    console.out << address << "\n";
    console.out.flush();
    llvm::outs().flush();
    console.progress.note("open this address in a browser on this machine; Ctrl-C ends");
  };
  return serve_locally(options.port, started, [folder = options.folder](llvm::StringRef path, llvm::StringRef query) {
    return answer(folder, path, query);
  });
}

}  // namespace plimsoll
