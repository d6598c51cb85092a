#include "frontend/driver/job_ranks.h"

#include "frontend/driver/command_line.h"
#include "ir/support/strings.h"

#include "llvm/Support/Signals.h"

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace plimsoll {
namespace {

// Launchers end a job with its first rank, so those without words give the one that has them time.
constexpr std::chrono::seconds time_to_tell{1};

// For a rank that a lost one keeps from ending: on a GPU it may not come back from the device.
[[noreturn]] void give_up() {
  llvm::sys::RunInterruptHandlers();  // takes unfinished files away
  _exit(exit_code(Fault::System));
}

}  // namespace

Status JobRanks::run(Console& console, double patience_s, llvm::function_ref<Status(JobRanks& ranks)> work) {
  Result<std::unique_ptr<Communicator>> connected = connect_ranks(patience_s);
  if (!connected) return connected.takeError();
  JobRanks ranks(std::move(*connected));
  if (Status s = ranks.watch(patience_s)) return s;
  Status result = work(ranks);
  return !result || !ranks.are_several() ? std::move(result) : ranks.ended(std::move(result), console);
}

Status JobRanks::agreed(Status own) {
  if (!are_several()) return own;
  constexpr int8_t fine = -1;
  Diag failure = own ? take_diag(std::move(own)) : Diag(Fault::System, "");
  const int8_t said = failure.text().empty() ? fine : static_cast<int8_t>(failure.fault());
  std::vector<int8_t> all(static_cast<size_t>(count()));
  if (Status s = ranks_->gather_all(&said, all.data(), sizeof said))
    return watch_ ? watch_->agreed(std::move(s)) : std::move(s);
  const auto first = std::find_if(all.begin(), all.end(), [](int8_t each) { return each != fine; });
  if (first == all.end()) return Status::success();
  has_told_ = true;
  watch_.reset();  // it would take the end of the first of them for a loss
  if (first - all.begin() == rank()) return llvm::make_error<Diag>(std::move(failure));
  return llvm::make_error<Diag>(static_cast<Fault>(*first), "");
}

std::function<void(const std::string& failure)> JobRanks::teller() const {
  return [name = own_name()](const std::string& failure) { print_error(name + ": " + failure); };
}

Status JobRanks::watch(double patience_s) {
  if (!are_several()) return Status::success();
  WatchOptions options;
  options.patience_s = patience_s;
  options.describe = [](int64_t, int32_t, int32_t) { return std::string("outside a step"); };
  options.interrupt = [this] { ranks_->interrupt(); };
  options.tell = teller();
  options.give_up = [] { give_up(); };
  Result<std::unique_ptr<RankWatch>> started = RankWatch::start(*ranks_, progress_, std::move(options));
  if (!started) return started.takeError();
  watch_ = std::move(*started);
  return Status::success();
}

Result<Session*> JobRanks::open_session(Plan plan, ExecutorOptions options) {
  options.ranks = ranks_.get();
  options.tell = teller();
  options.give_up = [] { give_up(); };
  watch_.reset();
  Result<std::unique_ptr<Session>> session = Session::create(std::move(plan), options);
  if (!session) return session.takeError();
  session_ = std::move(*session);
  return session_.get();
}

Status JobRanks::abandoned(Status result) {
  if (!result || std::exchange(has_told_, true)) return result;
  if (session_) return session_->abandoned(std::move(result));
  return watch_ ? watch_->agreed(std::move(result)) : std::move(result);
}

Status JobRanks::ended(Status failure, Console& console) {
  Diag own = take_diag(abandoned(std::move(failure)));
  console.after_error = [ranks = ranks_] { ranks->abort(); };
  if (own.text().empty()) std::this_thread::sleep_for(time_to_tell);
  const bool is_plain = own.text().empty() || starts_with(own.text(), own_name() + ": ");
  Status told = llvm::make_error<Diag>(std::move(own));
  return is_plain ? std::move(told) : in_context(own_name(), std::move(told));
}

}  // namespace plimsoll
