#pragma once

// Ranks of a job that are on one host see each other before they are connected: where none of them can be, the lowest
// tells people, and the others end without words.

#include "runtime/comm/socket.h"

#include <string>

namespace plimsoll {

class RanksOfHost {
 public:
  // `address`: where the job's rank 0 is to be found. It tells this job's ranks from those of others.
  RanksOfHost(const std::string& address, int64_t rank);

  // Notes lower ranks that are there now. Call it while waiting.
  void look();
  // Whether a lower rank was ever seen, which tells people in place of this one.
  bool has_lower() const { return has_lower_; }

 private:
  bool is_there(int64_t rank) const;

  std::string address_;
  int64_t rank_;
  Socket own_;  // its name says that this rank is there
  bool has_lower_ = false;
};

}  // namespace plimsoll
