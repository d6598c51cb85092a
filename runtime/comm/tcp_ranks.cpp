#include "runtime/comm/tcp_ranks.h"

#include "runtime/comm/ranks_of_host.h"
#include "runtime/comm/socket.h"

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

// Ranks that cannot be connected stay for as long, so that others of their host see them.
constexpr double time_to_be_seen_s = 1;
// Rank 0 may begin to wait for ranks later than those that wait for it.
constexpr double head_start_s = 10;

Status failed(const llvm::Twine& what) { return system_error(what + ": " + std::strerror(errno)); }

// "rank 3", "ranks 1, 2 and 5"
std::string in_words(llvm::ArrayRef<int64_t> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

class TcpRanks : public Communicator {
 public:
  TcpRanks(int64_t rank, int64_t ranks, double patience_s) : rank_(rank), ranks_(ranks), patience_s_(patience_s) {}

  // Where they cannot be connected, one of them tells why: rank 0 if it can be reached or is on the host. The others'
  // errors have no words.
  Status connect(const std::string& host, int port) {
    peers_.resize(static_cast<size_t>(ranks_));
    address_ = host + ":" + std::to_string(port);
    RanksOfHost here(address_, rank_);
    if (rank_ == 0) {
      Status served = serve(host, port);
      if (served && !has_told_peers_) wait_to_be_seen(here);
      return served;
    }
    Result<Listener> own = listen_at(0);
    if (!own) return own.takeError();
    if (Status s = join(host, port, own->port, here)) {
      wait_to_be_seen(here);
      return here.has_lower() ? without_words(std::move(s)) : std::move(s);
    }
    return meet_others(own->socket);
  }

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

  Status transfer(const Message& own, const Message& got) override {
    Message out = own, in = got;
    while ((out.peer >= 0 && out.count > 0) || (in.peer >= 0 && in.count > 0)) {
      pollfd ready[2] = {{out.peer >= 0 && out.count > 0 ? peer_fd(out.peer) : -1, POLLOUT, 0},
                         {in.peer >= 0 && in.count > 0 ? peer_fd(in.peer) : -1, POLLIN, 0}};
      if (poll(ready, 2, static_cast<int>(1e3 * patience_s_)) == 0)
        return late("rank " + llvm::Twine(ready[1].fd >= 0 ? in.peer : out.peer), patience_s_);
      for (Message* message : {&out, &in}) {
        if (ready[message == &in].revents == 0) continue;
        const auto left = static_cast<size_t>(message->count);
        const ssize_t moved = message == &out ? send(peer_fd(out.peer), out.bytes, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                              : recv(peer_fd(in.peer), in.bytes, left, MSG_DONTWAIT);
        if (moved == 0 || (moved < 0 && errno != EINTR && errno != EAGAIN))
          return gone("rank " + llvm::Twine(message->peer));
        if (moved < 0) continue;
        message->bytes = static_cast<char*>(message->bytes) + moved;
        message->count -= moved;
      }
    }
    return Status::success();
  }

  // The others notice that the connection is closed.
  void abort() override { interrupt(); }

  void interrupt() override {
    for (const Socket& peer : peers_)
      if (peer) shutdown(peer.fd(), SHUT_RDWR);
  }

 private:
  static Status without_words(Status failure) {
    return llvm::make_error<Diag>(take_diag(std::move(failure)).fault(), "");
  }

  static void wait_to_be_seen(RanksOfHost& here) {
    for (const Clock::time_point start = Clock::now();
         std::chrono::duration<double>(Clock::now() - start).count() < time_to_be_seen_s;) {
      here.look();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  double seconds_left(Clock::time_point start) const {
    return patience_s_ - std::chrono::duration<double>(Clock::now() - start).count();
  }

  struct Listener {
    Socket socket;
    int port;
  };
  // What a rank says first, and where the others find it.
  struct Hello {
    int64_t rank, ranks, port;
  };
  struct Address {
    uint32_t host;
    int32_t port;
  };

  // Port 0: one that is free.
  Result<Listener> listen_at(int port) const {
    Socket listener(socket(AF_INET, SOCK_STREAM, 0));
    const int yes = 1;
    setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof address;
    if (bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener.fd(), static_cast<int>(ranks_)) != 0 ||
        getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      return failed("rank " + llvm::Twine(rank_) + " cannot listen on port " + llvm::Twine(port));
    return Listener{std::move(listener), ntohs(address.sin_port)};
  }

  // Waits for ranks from `first` on, and says where each of them can be reached.
  Status accept_ranks(const Socket& listener, int64_t first, std::vector<Address>& found) {
    const Clock::time_point start = Clock::now();
    for (int64_t joined = first; joined < ranks_; ++joined) {
      pollfd ready{listener.fd(), POLLIN, 0};
      if (poll(&ready, 1, static_cast<int>(1e3 * std::max(seconds_left(start), 0.0))) <= 0)
        return system_error("rank " + llvm::Twine(rank_) + ": " + missing(first) + " did not come within " +
                            llvm::Twine(static_cast<int>(patience_s_)) + " s" +
                            (rank_ == 0 ? "; they look for rank 0 at " + address_ : ""));
      sockaddr_in from{};
      socklen_t size = sizeof from;
      Socket peer(accept(listener.fd(), reinterpret_cast<sockaddr*>(&from), &size));
      if (!peer) return failed("a rank cannot be accepted");
      prepare(peer);
      Hello hello{};
      if (Status s = move_bytes(peer, &hello, sizeof hello, Way::Receive, "a rank")) return s;
      if (hello.ranks != ranks_ || hello.rank < first || hello.rank >= ranks_ ||
          peers_[static_cast<size_t>(hello.rank)])
        return usage_error("a process came as rank " + llvm::Twine(hello.rank) + " of " + llvm::Twine(hello.ranks) +
                           ", this job has " + llvm::Twine(ranks_) + " ranks, each once");
      peers_[static_cast<size_t>(hello.rank)] = std::move(peer);
      found[static_cast<size_t>(hello.rank)] = {from.sin_addr.s_addr, static_cast<int32_t>(hello.port)};
    }
    return Status::success();
  }

  std::string missing(int64_t first) const {
    std::vector<int64_t> missing;
    for (int64_t rank = first; rank < ranks_; ++rank)
      if (!peers_[static_cast<size_t>(rank)]) missing.push_back(rank);
    return in_words(missing);
  }

  Status serve(const std::string& host, int port) {
    if (addrinfo* known = resolved(host, port))
      freeaddrinfo(known);
    else
      return unknown(host);
    Result<Listener> listener = listen_at(port);
    if (!listener) return listener.takeError();
    std::vector<Address> found(static_cast<size_t>(ranks_));
    if (Status s = accept_ranks(listener->socket, 1, found)) {
      // Empty addresses say that the job ends here.
      const std::vector<Address> none(found.size());
      for (const Socket& peer : peers_)
        if (peer) send(peer.fd(), none.data(), none.size() * sizeof(Address), MSG_NOSIGNAL | MSG_DONTWAIT);
      has_told_peers_ = true;
      return s;
    }
    for (int64_t peer = 1; peer < ranks_; ++peer)
      if (Status s = send_bytes(peer, found.data(), ranks_ * static_cast<int64_t>(sizeof(Address)))) return s;
    return Status::success();
  }

  // Ranks between this one and rank 0 are called, those after it call.
  Status meet_others(const Socket& listener) {
    std::vector<Address> known(static_cast<size_t>(ranks_));
    if (Status s = move_bytes(peers_[0], known.data(), ranks_ * static_cast<int64_t>(sizeof(Address)), Way::Receive,
                              "rank 0", patience_s_ + head_start_s))
      return s;
    if (known[static_cast<size_t>(rank_)].port == 0) return without_words(gone("rank 0"));
    for (int64_t peer = 1; peer < rank_; ++peer) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = known[static_cast<size_t>(peer)].host;
      address.sin_port = htons(static_cast<uint16_t>(known[static_cast<size_t>(peer)].port));
      Socket called(socket(AF_INET, SOCK_STREAM, 0));
      if (::connect(called.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        return failed("rank " + llvm::Twine(peer) + " does not answer");
      prepare(called);
      peers_[static_cast<size_t>(peer)] = std::move(called);
      const Hello hello{rank_, ranks_, 0};
      if (Status s = send_bytes(peer, &hello, sizeof hello)) return s;
    }
    return accept_ranks(listener, rank_ + 1, known);
  }

  // Null: nobody knows it.
  static addrinfo* resolved(const std::string& host, int port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    return getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0 ? found : nullptr;
  }

  Status unknown(const std::string& host) const {
    return system_error("rank " + llvm::Twine(rank_) + ": the address of rank 0, " + host + ", is not known");
  }

  Status join(const std::string& host, int port, int own_port, RanksOfHost& here) {
    const Clock::time_point start = Clock::now();
    addrinfo* found = resolved(host, port);
    if (!found) return unknown(host);
    Socket peer;
    for (;;) {
      peer = Socket(socket(AF_INET, SOCK_STREAM, 0));
      if (::connect(peer.fd(), found->ai_addr, found->ai_addrlen) == 0 && !is_connected_to_itself(peer)) break;
      if (seconds_left(start) < 0) {
        freeaddrinfo(found);
        return system_error("rank " + llvm::Twine(rank_) + ": rank 0 did not answer at " + address_ + " within " +
                            llvm::Twine(static_cast<int>(patience_s_)) + " s");
      }
      here.look();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    freeaddrinfo(found);
    prepare(peer);
    const Hello hello{rank_, ranks_, own_port};
    peers_[0] = std::move(peer);
    return send_bytes(0, &hello, sizeof hello);
  }

  // Nobody listens yet at a port from which connections start too: the kernel may then give this one to the socket that
  // asks, and TCP connects it with itself.
  static bool is_connected_to_itself(const Socket& socket) {
    sockaddr_storage own{}, other{};
    socklen_t own_size = sizeof own, other_size = sizeof other;
    return getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
           getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&other), &other_size) == 0 && own_size == other_size &&
           std::memcmp(&own, &other, own_size) == 0;
  }

  static void prepare(const Socket& socket) {
    const int yes = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }

  enum class Way : uint8_t { Send, Receive };

  static Status late(const llvm::Twine& peer, double after_s) {
    return system_error(peer + " did not come within " + llvm::Twine(static_cast<int>(after_s)) + " s");
  }
  static Status gone(const llvm::Twine& peer) { return system_error(peer + " has gone"); }

  int peer_fd(int64_t peer) const { return peers_[static_cast<size_t>(peer)].fd(); }

  Status move_bytes(const Socket& socket, void* bytes, int64_t count, Way way, const llvm::Twine& peer) const {
    return move_bytes(socket, bytes, count, way, peer, patience_s_);
  }
  static Status move_bytes(const Socket& socket, void* bytes, int64_t count, Way way, const llvm::Twine& peer,
                           double patience_s) {
    auto* at = static_cast<char*>(bytes);
    for (int64_t done = 0; done < count;) {
      pollfd ready{socket.fd(), static_cast<short>(way == Way::Send ? POLLOUT : POLLIN), 0};
      const int polled = poll(&ready, 1, static_cast<int>(1e3 * patience_s));
      if (polled == 0) return late(peer, patience_s);
      const auto left = static_cast<size_t>(count - done);
      const ssize_t moved =
          way == Way::Send ? send(socket.fd(), at + done, left, MSG_NOSIGNAL) : recv(socket.fd(), at + done, left, 0);
      if (moved == 0 || (moved < 0 && errno != EINTR)) return gone(peer);
      if (moved > 0) done += moved;
    }
    return Status::success();
  }

  Status send_bytes(int64_t peer, const void* bytes, int64_t count) {
    return move_bytes(peers_[static_cast<size_t>(peer)], const_cast<void*>(bytes), count, Way::Send,
                      "rank " + llvm::Twine(peer));
  }
  Status receive_bytes(int64_t peer, void* bytes, int64_t count) {
    return move_bytes(peers_[static_cast<size_t>(peer)], bytes, count, Way::Receive, "rank " + llvm::Twine(peer));
  }

  int64_t rank_, ranks_;
  double patience_s_;
  std::string address_;          // of rank 0
  bool has_told_peers_ = false;  // that the job ends before it began
  std::vector<Socket> peers_;    // by rank, its own missing
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
