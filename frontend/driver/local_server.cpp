#include "frontend/driver/local_server.h"

#include "ir/support/strings.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>

// A library would do it too; Debian's cpp-httplib brings OpenSSL and brotli into the program for a page that never
// leaves the machine.

namespace plimsoll {
namespace {

constexpr size_t most_request_bytes = 8192;
constexpr int most_connections = 32, patience_ms = 5000;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Status socket_error(llvm::StringRef what) { return system_error(what + ": " + std::generic_category().message(errno)); }

// The lines of a request up to the empty one; empty where the other side stays silent or says too much.
std::string read_request(int fd) {
  std::string text;
  char part[2048];
  pollfd wait{fd, POLLIN, 0};
  while (text.find("\r\n\r\n") == std::string::npos && text.size() < most_request_bytes) {
    if (::poll(&wait, 1, patience_ms) <= 0) return "";
    const ssize_t bytes = ::read(fd, part, sizeof part);
    if (bytes <= 0) return "";
    text.append(part, static_cast<size_t>(bytes));
  }
  return text.find("\r\n\r\n") == std::string::npos ? "" : text;
}

void send_all(int fd, llvm::StringRef bytes) {
  pollfd wait{fd, POLLOUT, 0};
  while (!bytes.empty() && ::poll(&wait, 1, patience_ms) > 0) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.drop_front(static_cast<size_t>(sent));
  }
}

void send_answer(int fd, llvm::StringRef status, llvm::StringRef content_type, llvm::StringRef body) {
  // The page needs nothing but itself and this server.
  send_all(fd,
           ("HTTP/1.1 " + status + "\r\nContent-Type: " + content_type +
            "; charset=utf-8\r\nContent-Length: " + llvm::Twine(body.size()) +
            "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src "
            "'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src 'self' "
            "data:; frame-ancestors 'none'\r\nConnection: close\r\n\r\n")
               .str());
  send_all(fd, body);
}

llvm::StringRef host_of(llvm::StringRef request) {
  llvm::StringRef rest = request;
  while (!rest.empty()) {
    const auto [line, after] = rest.split("\r\n");
    const auto [name, value] = line.split(':');
    if (name.equals_insensitive("host")) return value.trim();
    rest = after;
  }
  return "";
}

void answer(int fd, llvm::StringRef port, const HttpAnswers& answers) {
  const std::string request = read_request(fd);
  if (request.empty()) return;
  const llvm::StringRef host = host_of(request);
  if (host != "127.0.0.1:" + port.str() && host != "localhost:" + port.str())
    return send_answer(fd, "403 Forbidden", "text/plain", "this page is for 127.0.0.1 alone\n");
  const auto [method, target_on] = llvm::StringRef(request).split(' ');
  if (method != "GET") return send_answer(fd, "405 Method Not Allowed", "text/plain", "GET alone\n");
  const auto [path, query] = target_on.split(' ').first.split('?');
  const std::optional<HttpAnswer> found = answers(path, query);
  if (!found) return send_answer(fd, "404 Not Found", "text/plain", "there is no such page\n");
  send_answer(fd, "200 OK", found->content_type, found->body);
}

}  // namespace

Status serve_locally(int port, const std::function<void(const std::string& address)>& started,
                     const HttpAnswers& answers) {
  const Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener.fd() < 0 || ::bind(listener.fd(), generic, bytes) != 0 || ::listen(listener.fd(), SOMAXCONN) != 0 ||
      ::getsockname(listener.fd(), generic, &bytes) != 0)
    return socket_error("port " + std::to_string(port));
  const std::string own_port = std::to_string(ntohs(address.sin_port));
  started("http://127.0.0.1:" + own_port + "/");
  const auto connections = std::make_shared<std::atomic<int>>(0);  // threads may outlive this function
  for (;;) {
    auto connection = std::make_unique<Socket>(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection->fd() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return socket_error("accept");
    }
    if (*connections >= most_connections) continue;
    ++*connections;
    // Browsers open connections that they may use later, and must not make others wait.
    std::thread([connection = std::move(connection), own_port, answers, connections] {
      answer(connection->fd(), own_port, answers);
      --*connections;
    }).detach();
  }
}

}  // namespace plimsoll
