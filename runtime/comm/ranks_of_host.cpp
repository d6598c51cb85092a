#include "runtime/comm/ranks_of_host.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <cstring>

// Each rank binds a name that belongs to no file and goes with the process.

namespace plimsoll {
namespace {

struct Name {
  sockaddr_un address{};
  socklen_t size = 0;

  Name(const std::string& job, int64_t rank) {
    const std::string text = "plimsoll " + std::to_string(getuid()) + " " + std::to_string(rank) + " of " + job;
    address.sun_family = AF_UNIX;
    const size_t length = std::min(text.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, text.data(), length);  // a first byte of 0 makes it no path
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Socket datagram_socket() { return Socket(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)); }

}  // namespace

RanksOfHost::RanksOfHost(const std::string& address, int64_t rank)
    : address_(address), rank_(rank), own_(datagram_socket()) {
  const Name name(address_, rank_);
  // Without the name the others do not see this rank, and tell what they find.
  static_cast<void>(bind(own_.fd(), name.get(), name.size));
}

bool RanksOfHost::is_there(int64_t rank) const {
  const Socket asking = datagram_socket();
  const Name name(address_, rank);
  return connect(asking.fd(), name.get(), name.size) == 0;
}

void RanksOfHost::look() {
  for (int64_t lower = 0; lower < rank_ && !has_lower_; ++lower) has_lower_ = is_there(lower);
}

}  // namespace plimsoll
