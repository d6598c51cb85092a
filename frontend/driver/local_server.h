#pragma once

// Answers a browser on this machine: HTTP/1.1 on 127.0.0.1, GET alone, a connection for each request. Nobody else
// reaches it, and a page of another site neither, whatever name it gives this machine: requests for another host than
// this one are refused.

#include "ir/support/status.h"

#include <functional>
#include <optional>

namespace plimsoll {

struct HttpAnswer {
  std::string content_type;  // "text/html"
  std::string body;
};

// `query` is what stands behind the question mark. None: there is no such page.
using HttpAnswers = std::function<std::optional<HttpAnswer>(llvm::StringRef path, llvm::StringRef query)>;

// Serves until the process ends, or something fails. Port 0 takes a free one. `started` gets the address once browsers
// can connect. Several threads call `answers`.
Status serve_locally(int port, const std::function<void(const std::string& address)>& started,
                     const HttpAnswers& answers);

}  // namespace plimsoll
