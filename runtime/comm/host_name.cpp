#include "runtime/comm/host_name.h"

#include <unistd.h>

namespace plimsoll {

HostName host_name() {
  HostName name{};
  gethostname(name.data(), name.size() - 1);
  return name;
}

}  // namespace plimsoll
