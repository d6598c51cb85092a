#include "runtime/comm/tcp_ranks.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

Status failed(const llvm::Twine& what) { return system_error(what + ": " + std::strerror(errno)); }

class TcpRanks : public Communicator {
 public:
  TcpRanks(int64_t rank, int64_t ranks, double patience_s) : rank_(rank), ranks_(ranks), patience_s_(patience_s) {}

  Status connect(const std::string& host, int port) { return rank_ == 0 ? serve(port) : join(host, port); }

  int64_t rank() const override { return rank_; }
  int64_t ranks() const override { return ranks_; }

  Status gather_all(const void* own, void* all, int64_t bytes) override {
    auto* out = static_cast<std::byte*>(all);
    if (rank_ > 0) {
      if (Status s = send_bytes(0, own, bytes)) return s;
      return receive_bytes(0, out, ranks_ * bytes);
    }
    std::memcpy(out, own, static_cast<size_t>(bytes));
    for (int64_t peer = 1; peer < ranks_; ++peer)
      if (Status s = receive_bytes(peer, out + peer * bytes, bytes)) return s;
    for (int64_t peer = 1; peer < ranks_; ++peer)
      if (Status s = send_bytes(peer, out, ranks_ * bytes)) return s;
    return Status::success();
  }

  Status exchange(const void* own, void* got, int64_t bytes) override {
    if (rank_ > 0) {
      if (Status s = send_bytes(0, own, ranks_ * bytes)) return s;
      return receive_bytes(0, got, ranks_ * bytes);
    }
    // pieces_[from][to], then each rank's column.
    const auto row = static_cast<size_t>(ranks_ * bytes);
    if (pieces_.size() < row * static_cast<size_t>(ranks_)) pieces_.resize(row * static_cast<size_t>(ranks_));
    if (column_.size() < row) column_.resize(row);
    std::memcpy(pieces_.data(), own, row);
    for (int64_t peer = 1; peer < ranks_; ++peer)
      if (Status s = receive_bytes(peer, pieces_.data() + static_cast<size_t>(peer) * row, ranks_ * bytes)) return s;
    for (int64_t to = ranks_; to-- > 0;) {
      for (int64_t from = 0; from < ranks_; ++from)
        std::memcpy(column_.data() + from * bytes, pieces_.data() + static_cast<size_t>(from) * row + to * bytes,
                    static_cast<size_t>(bytes));
      if (to == 0)
        std::memcpy(got, column_.data(), row);
      else if (Status s = send_bytes(to, column_.data(), ranks_ * bytes))
        return s;
    }
    return Status::success();
  }

  // The others notice that the connection is closed.
  void abort() override { peers_.clear(); }

 private:
  double seconds_left(Clock::time_point start) const {
    return patience_s_ - std::chrono::duration<double>(Clock::now() - start).count();
  }

  Status serve(int port) {
    Socket listener(socket(AF_INET, SOCK_STREAM, 0));
    const int yes = 1;
    setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        listen(listener.fd(), static_cast<int>(ranks_)) != 0)
      return failed("rank 0 cannot listen on port " + llvm::Twine(port));
    peers_.resize(static_cast<size_t>(ranks_));
    const Clock::time_point start = Clock::now();
    for (int64_t joined = 1; joined < ranks_; ++joined) {
      pollfd ready{listener.fd(), POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(1e3 * std::max(seconds_left(start), 0.0))) <= 0)
        return system_error(llvm::Twine(joined) + " of " + llvm::Twine(ranks_) + " ranks came within " +
                            llvm::Twine(static_cast<int>(patience_s_)) + " s");
      Socket peer(accept(listener.fd(), nullptr, nullptr));
      if (!peer) return failed("a rank cannot be accepted");
      prepare(peer);
      int64_t hello[2];
      if (Status s = transfer(peer, hello, sizeof hello, Way::Receive, "a rank")) return s;
      if (hello[1] != ranks_ || hello[0] < 1 || hello[0] >= ranks_ || peers_[static_cast<size_t>(hello[0])])
        return usage_error("a process came as rank " + llvm::Twine(hello[0]) + " of " + llvm::Twine(hello[1]) +
                           ", this job has " + llvm::Twine(ranks_) + " ranks, each once");
      peers_[static_cast<size_t>(hello[0])] = std::move(peer);
    }
    return Status::success();
  }

  Status join(const std::string& host, int port) {
    const Clock::time_point start = Clock::now();
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 || !found)
      return system_error("the address of rank 0, " + host + ", is not known");
    Socket peer;
    for (;;) {
      peer = Socket(socket(AF_INET, SOCK_STREAM, 0));
      if (::connect(peer.fd(), found->ai_addr, found->ai_addrlen) == 0) break;
      if (seconds_left(start) < 0) {
        freeaddrinfo(found);
        return failed("rank 0 does not answer at " + host + ":" + llvm::Twine(port));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    freeaddrinfo(found);
    prepare(peer);
    const int64_t hello[2] = {rank_, ranks_};
    peers_.resize(1);
    peers_[0] = std::move(peer);
    return send_bytes(0, hello, sizeof hello);
  }

  static void prepare(const Socket& socket) {
    const int yes = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }

  enum class Way : uint8_t { Send, Receive };

  Status transfer(const Socket& socket, void* bytes, int64_t count, Way way, const llvm::Twine& peer) const {
    auto* at = static_cast<char*>(bytes);
    for (int64_t done = 0; done < count;) {
      pollfd ready{socket.fd(), static_cast<short>(way == Way::Send ? POLLOUT : POLLIN), 0};
      const int polled = poll(&ready, 1, static_cast<int>(1e3 * patience_s_));
      if (polled == 0)
        return system_error(peer + " did not come within " + llvm::Twine(static_cast<int>(patience_s_)) + " s");
      const auto left = static_cast<size_t>(count - done);
      const ssize_t moved =
          way == Way::Send ? send(socket.fd(), at + done, left, MSG_NOSIGNAL) : recv(socket.fd(), at + done, left, 0);
      if (moved == 0 || (moved < 0 && errno != EINTR)) return system_error(peer + " has gone");
      if (moved > 0) done += moved;
    }
    return Status::success();
  }

  Status send_bytes(int64_t peer, const void* bytes, int64_t count) {
    if (peers_.empty()) return system_error("the ranks are no longer connected");
    return transfer(peers_[static_cast<size_t>(peer)], const_cast<void*>(bytes), count, Way::Send,
                    "rank " + llvm::Twine(peer));
  }
  Status receive_bytes(int64_t peer, void* bytes, int64_t count) {
    if (peers_.empty()) return system_error("the ranks are no longer connected");
    return transfer(peers_[static_cast<size_t>(peer)], bytes, count, Way::Receive, "rank " + llvm::Twine(peer));
  }

  int64_t rank_, ranks_;
  double patience_s_;
  std::vector<Socket> peers_;  // on rank 0 by rank; elsewhere rank 0 alone
  std::vector<std::byte> pieces_, column_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> connect_by_tcp(int64_t rank, int64_t ranks, const std::string& host, int port,
                                                     double patience_s) {
  auto connected = std::make_unique<TcpRanks>(rank, ranks, patience_s);
  if (Status s = connected->connect(host, port)) return s;
  return connected;
}

}  // namespace plimsoll
