#include "runtime/comm/rank_watch.h"

#include "runtime/comm/host_name.h"
#include "runtime/comm/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double longest_interval_s = 0.5;
constexpr double connect_patience_s = default_patience_s;
constexpr double verdict_patience_s = 1;
constexpr double patience_outside_steps = 10;  // times the patience within a step

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Where rank 0 listens.
struct Address {
  HostName host{};
  int32_t port = 0;
};

enum class Kind : int32_t {
  Alive,
  Done,   // the rank ends in good order
  Lost,   // about `rank`: its connection is closed
  Still,  // about `rank`: it stopped, or its work did
  Failed  // about `rank`: it reported a failure of its own
};

struct Sign {
  Kind kind = Kind::Alive;
  int32_t rank = 0;
  int32_t function = -1, instruction = -1;
  int64_t runs = 0;
  Fault fault = Fault::System;  // of a rank that failed

  bool same_place(const Sign& other) const {
    return function == other.function && instruction == other.instruction && runs == other.runs;
  }
  auto order() const { return std::tuple(runs, function, instruction); }
};

// The time that patience is counted in, in seconds. It goes on while the watch's thread does: a rank that was itself
// stopped, such as a job that its cluster suspends, or that waited long for a processor, blames no other for it.
class WatchTime {
 public:
  double seconds() const { return seconds_; }
  void advance(double at_most_s) {
    seconds_ += std::min(at_most_s, seconds_since(last_));
    last_ = Clock::now();
  }

 private:
  Clock::time_point last_ = Clock::now();
  double seconds_ = 0;
};

// One connection as its reader sees it.
struct Peer {
  Socket socket;
  Sign last;
  double heard_s = 0, moved_s = 0;  // times of the watch
  bool done = false;
  bool still = false;  // it gave no sign of life, and does not answer either
  std::array<char, sizeof(Sign)> partial{};
  size_t received = 0;
};

class SocketWatch : public RankWatch {
 public:
  SocketWatch(int64_t rank, int64_t ranks, const RankProgress& progress, WatchOptions options)
      : rank_(rank), ranks_(ranks), progress_(progress), options_(std::move(options)) {}

  ~SocketWatch() override {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    drain();
  }

  Status connect(Communicator& ranks) {
    Address own;
    Socket listener;
    if (rank_ == 0)
      if (Status s = listen(listener, own)) return s;
    std::vector<Address> all(static_cast<size_t>(ranks_));
    if (Status s = ranks.gather_all(&own, all.data(), sizeof own)) return s;
    Status connected = rank_ == 0 ? accept_all(listener) : join(all.front());
    // All ranks go on with a watch, or none does.
    char fine = connected ? 0 : 1;
    std::string failure = connected ? take_diag(std::move(connected)).text() : "";
    std::vector<char> fines(static_cast<size_t>(ranks_));
    if (Status s = ranks.gather_all(&fine, fines.data(), sizeof fine)) return s;
    if (!fine) return system_error(failure);
    if (std::find(fines.begin(), fines.end(), 0) != fines.end())
      return system_error("another rank cannot reach rank 0 to watch it");
    thread_ = std::thread([this] { watch(); });
    return Status::success();
  }

  Status failure() const override {
    std::lock_guard lock(mutex_);
    return failure_.empty() ? Status::success() : llvm::make_error<Diag>(end_.fault, failure_);
  }

  void report_own_failure(Fault fault) override {
    own_fault_ = fault;
    own_failure_ = true;
  }

  bool tells_own_failure() override {
    const Clock::time_point start = Clock::now();
    while (!thread_ends_ && seconds_since(start) < 2 * verdict_patience_s)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::lock_guard lock(mutex_);
    return end_.kind == Kind::Alive || tells(end_);
  }

 protected:
  bool one_rank_tells() const override { return static_cast<bool>(options_.tell); }

 private:
  static Status listen(Socket& listener, Address& own) {
    listener = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof address;
    if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener.fd(), 1024) != 0 ||
        getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      return system_error(llvm::Twine("rank 0 cannot listen for signs of life: ") + std::strerror(errno));
    own.host = host_name();
    own.port = ntohs(address.sin_port);
    return Status::success();
  }

  Status accept_all(const Socket& listener) {
    peers_.resize(static_cast<size_t>(ranks_));
    const Clock::time_point start = Clock::now();
    for (int64_t joined = 1; joined < ranks_;) {
      pollfd ready{listener.fd(), POLLIN, 0};
      const double left = connect_patience_s - seconds_since(start);
      if (left <= 0 || poll(&ready, 1, static_cast<int>(1e3 * left)) <= 0)
        return system_error("a rank does not connect to be watched");
      Socket peer(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      const timeval longest{5, 0};  // a stranger that says nothing is let go
      if (peer) setsockopt(peer.fd(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
      int32_t rank = 0;
      if (!peer || recv(peer.fd(), &rank, sizeof rank, MSG_WAITALL) != sizeof rank || rank < 1 || rank >= ranks_ ||
          peers_[static_cast<size_t>(rank)].socket)
        continue;
      peers_[static_cast<size_t>(rank)].socket = std::move(peer);
      ++joined;
    }
    return Status::success();
  }

  Status join(const Address& first) {
    const char* host = host_name() == first.host ? "127.0.0.1" : first.host.data();
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, std::to_string(first.port).c_str(), &hints, &found) != 0 || !found)
      return system_error(llvm::Twine("the address of rank 0's host ") + host + " is not known");
    peers_.resize(1);
    peers_[0].socket = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int joined = ::connect(peers_[0].socket.fd(), found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    const auto rank = static_cast<int32_t>(rank_);
    if (joined != 0 || send(peers_[0].socket.fd(), &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank)
      return system_error(llvm::Twine("rank 0 cannot be reached at ") + host + ":" + llvm::Twine(first.port));
    return Status::success();
  }

  // ---- The thread ----

  void watch() {
    const double interval_s = std::min(longest_interval_s, options_.patience_s / 4);
    time_ = WatchTime();
    while (!stop_ && !own_failure_) {
      const Sign own = sign(Kind::Alive);
      if (!own.same_place(own_)) own_moved_s_ = time_.seconds();
      own_ = own;
      for (Peer& peer : peers_) send_sign(peer, own);
      const bool has_to_end = listen_for(interval_s);
      time_.advance(1.5 * interval_s);
      if (has_to_end || check_times()) return end();
    }
    say_last(sign(own_failure_ ? Kind::Failed : Kind::Done));
    if (own_failure_ && rank_ != 0) listen_for_verdict();
    thread_ends_ = true;
  }

  // Rank 0 passes on the first failure that it hears of, this one or another.
  void listen_for_verdict() {
    Peer& first = peers_.front();
    awaits_verdict_ = true;
    const Clock::time_point start = Clock::now();
    for (double left = verdict_patience_s; left > 0 && !stop_; left = verdict_patience_s - seconds_since(start)) {
      pollfd ready{first.socket.fd(), POLLIN, 0};
      if (poll(&ready, 1, 50) > 0 && read_signs(first, 0)) return;
    }
  }

  // Is this rank the one that tells why the job ends?
  bool tells(const Sign& end) const { return rank_ == (end.kind == Kind::Failed ? end.rank : end.rank == 0 ? 1 : 0); }

  void say_last(const Sign& sign) {
    for (const Peer& peer : peers_) send_sign(peer, sign);
    end_sending();
  }

  // The other ends need not wait for more.
  void end_sending() {
    for (const Peer& peer : peers_)
      if (peer.socket) shutdown(peer.socket.fd(), SHUT_WR);
  }

  Sign sign(Kind kind) const {
    Sign sign{kind, static_cast<int32_t>(rank_), progress_.function, progress_.instruction, progress_.runs};
    const volatile int32_t* on_device = progress_.on_device;
    const int32_t place = on_device ? *on_device : -1;
    if (sign.function >= 0 && place >= 0) sign.function = place >> 24, sign.instruction = place & 0xffffff;
    if (kind == Kind::Failed) sign.fault = own_fault_;
    return sign;
  }

  // A connection that takes no more bytes belongs to a rank that stands still; its end is seen when reading.
  static void send_sign(const Peer& peer, const Sign& sign) {
    if (peer.socket && !peer.done) (void)send(peer.socket.fd(), &sign, sizeof sign, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Reads signs for a while; true once the job has to end.
  bool listen_for(double seconds) {
    const Clock::time_point start = Clock::now();
    for (double left = seconds; left > 0 && !stop_ && !own_failure_; left = seconds - seconds_since(start)) {
      std::vector<pollfd> ready;
      for (const Peer& peer : peers_) ready.push_back({peer.done ? -1 : peer.socket.fd(), POLLIN, 0});
      // Short, so that the destructor and a failure of this rank are noticed soon.
      constexpr double longest_poll_ms = 50;
      if (poll(ready.data(), ready.size(), static_cast<int>(std::min(1e3 * left, longest_poll_ms)) + 1) <= 0) continue;
      for (size_t i = 0; i < peers_.size(); ++i)
        if (ready[i].revents != 0 && read_signs(peers_[i], static_cast<int32_t>(i))) return true;
    }
    return false;
  }

  bool read_signs(Peer& peer, int32_t rank) {
    for (;;) {
      const ssize_t got = recv(peer.socket.fd(), peer.partial.data() + peer.received,
                               peer.partial.size() - peer.received, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (got <= 0) return lost(peer, rank);
      peer.received += static_cast<size_t>(got);
      if (peer.received < peer.partial.size()) continue;
      peer.received = 0;
      Sign sign;
      std::memcpy(&sign, peer.partial.data(), sizeof sign);
      peer.heard_s = time_.seconds();
      if (sign.kind == Kind::Done) {
        // It waits until this rank sends no more, and this rank may go on for long.
        shutdown(peer.socket.fd(), SHUT_WR);
        peer.done = true;
        return false;
      }
      if (sign.kind != Kind::Alive) return found(sign);
      if (!sign.same_place(peer.last)) peer.moved_s = peer.heard_s;
      peer.last = sign;
    }
  }

  bool lost(const Peer& peer, int32_t rank) {
    Sign sign = peer.last;
    sign.kind = Kind::Lost;
    sign.rank = rank;
    return found(sign);
  }

  // Rank 0 knows of all ranks, the others of rank 0 alone.
  bool check_times() {
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      if (!peer.socket || peer.done || time_.seconds() - peer.heard_s < options_.patience_s) continue;
      peer.still = true;
      Sign sign = peer.last;
      sign.kind = Kind::Still;
      sign.rank = static_cast<int32_t>(i);
      return found(sign);
    }
    return rank_ == 0 && check_progress();
  }

  // All ranks stand still, one of them within a step: the one that is least far holds up the others. Outside a step it
  // may be reading data, which nobody predicts.
  bool check_progress() {
    Sign least = own_;
    bool in_step = own_.function >= 0;
    double moved_s = own_moved_s_;
    for (size_t i = 1; i < peers_.size(); ++i) {
      const Peer& peer = peers_[i];
      if (peer.done) continue;
      moved_s = std::max(moved_s, peer.moved_s);
      in_step = in_step || peer.last.function >= 0;
      if (peer.last.order() < least.order()) least = peer.last;
    }
    const double patience_s = options_.patience_s * (least.function < 0 ? patience_outside_steps : 1);
    if (!in_step || time_.seconds() - moved_s < patience_s) return false;
    least.kind = Kind::Still;
    return found(least);
  }

  bool found(const Sign& sign) {
    {
      std::lock_guard lock(mutex_);
      if (awaits_verdict_ && sign.kind == Kind::Lost) return true;  // rank 0 ended without one
      end_ = sign;
      if (sign.kind == Kind::Failed && sign.rank == rank_) return true;
    }
    // Rank 0 waits until the others have read why the job ends; they have nothing more to say.
    if (rank_ == 0)
      say_last(sign);
    else
      end_sending();
    std::string text = name_of(sign.rank);
    switch (sign.kind) {
      case Kind::Lost: text += " has gone"; break;
      case Kind::Failed: text += " has failed"; break;
      default: text += " has stood still for " + std::to_string(static_cast<int64_t>(options_.patience_s)) + " s";
    }
    text += ", last seen " + (sign.function >= 0 ? "at " + options_.describe(sign.rank, sign.function, sign.instruction)
                                                 : "outside a step");
    std::lock_guard lock(mutex_);
    failure_ = text;
    return true;
  }

  static std::string name_of(int64_t rank) { return "rank " + std::to_string(rank); }

  void end() {
    if (options_.tell && end_.kind != Kind::Failed) tell();
    options_.interrupt();
    thread_ends_ = true;
    wait_for_end(RankWatch::grace_s);
    if (!stop_ && options_.give_up) options_.give_up();
  }

  void tell() const {
    if (tells(end_)) return options_.tell(failure_);
    if (end_.rank == 0 && rank_ != 0) options_.tell("ends with rank 0");  // the next one may be gone too
  }

  // A connection that is closed with bytes unread takes those on their way with it, the reason of an end among them. So
  // each end waits until the other has read its last sign, which on a busy machine takes a while.
  void drain() {
    constexpr double longest_s = 3;
    const Clock::time_point start = Clock::now();
    end_sending();
    std::array<char, 1024> unread;
    for (Peer& peer : peers_)
      while (peer.socket && !peer.still) {
        pollfd ready{peer.socket.fd(), POLLIN, 0};
        const double left = longest_s - seconds_since(start);
        if (left <= 0 || poll(&ready, 1, static_cast<int>(1e3 * left)) <= 0) return;
        if (recv(peer.socket.fd(), unread.data(), unread.size(), MSG_DONTWAIT) <= 0) break;
      }
  }

  void wait_for_end(double seconds) const {
    const Clock::time_point start = Clock::now();
    while (!stop_ && seconds_since(start) < seconds) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  const int64_t rank_, ranks_;
  const RankProgress& progress_;
  WatchOptions options_;
  std::vector<Peer> peers_;  // on rank 0 by rank, without its own; elsewhere rank 0 alone
  WatchTime time_;
  Sign own_;
  double own_moved_s_ = 0;
  bool awaits_verdict_ = false;  // after a failure of its own
  std::atomic<bool> stop_{false}, own_failure_{false}, thread_ends_{false};
  std::atomic<Fault> own_fault_{Fault::System};
  mutable std::mutex mutex_;
  Sign end_;             // why the job ends, Alive while it goes on; written by the thread, guarded by mutex_
  std::string failure_;  // guarded by mutex_
  std::thread thread_;   // the last member: it uses the others
};

}  // namespace

Status without_words(Status failure) { return llvm::make_error<Diag>(take_diag(std::move(failure)).fault(), ""); }

Status RankWatch::agreed(Status status, llvm::function_ref<void()> interrupt) {
  const auto lost_rank = [this] {
    Status lost = failure();
    return lost && one_rank_tells() ? without_words(std::move(lost)) : std::move(lost);
  };
  if (Status lost = lost_rank()) {
    llvm::consumeError(std::move(status));
    return lost;
  }
  if (!status) return status;
  Diag own = take_diag(std::move(status));
  if (own.text().empty()) return llvm::make_error<Diag>(std::move(own));
  // A rank whose peer is gone may notice before the watch does.
  if (own.fault() == Fault::System)
    for (int waits = 0; waits < 100; ++waits) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (Status lost = lost_rank()) return lost;
    }
  report_own_failure(own.fault());
  interrupt();
  const bool is_told = one_rank_tells() && !tells_own_failure();
  return llvm::make_error<Diag>(own.fault(), is_told ? "" : own.text());
}

Result<std::unique_ptr<RankWatch>> RankWatch::start(Communicator& ranks, const RankProgress& progress,
                                                    WatchOptions options) {
  auto watch = std::make_unique<SocketWatch>(ranks.rank(), ranks.ranks(), progress, std::move(options));
  if (Status s = watch->connect(ranks)) return s;
  return watch;
}

double default_watch_patience_s(double predicted_step_us) {
  constexpr double least_s = 60, steps = 20;
  return std::max(least_s, steps * predicted_step_us / 1e6);
}

}  // namespace plimsoll
