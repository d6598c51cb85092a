#include "runtime/comm/group_ranks.h"

#include <algorithm>
#include <cstring>

// In round i each rank sends to the i-th after it and receives from the i-th before it, so that nobody waits for a rank
// that waits for another.

namespace plimsoll {
namespace {

class GroupRanks : public Communicator {
 public:
  GroupRanks(Communicator& all, std::vector<int64_t> members)
      : all_(all),
        members_(std::move(members)),
        rank_(std::find(members_.begin(), members_.end(), all.rank()) - members_.begin()) {}

  int64_t rank() const override { return rank_; }
  int64_t ranks() const override { return static_cast<int64_t>(members_.size()); }

  Status gather_all(const void* own, void* all, int64_t bytes) override {
    return in_rounds(static_cast<const std::byte*>(own), static_cast<std::byte*>(all), bytes, 0);
  }

  Status exchange(const void* own, void* got, int64_t bytes) override {
    return in_rounds(static_cast<const std::byte*>(own), static_cast<std::byte*>(got), bytes, bytes);
  }

  Status transfer(const Message& own, const Message& got) override { return all_.transfer(of_all(own), of_all(got)); }

  void interrupt() override { all_.interrupt(); }
  void abort() override { all_.abort(); }
  bool are_processes() const override { return all_.are_processes(); }

 private:
  // Rank r gets what lies `step` * r bytes behind `own`.
  Status in_rounds(const std::byte* own, std::byte* got, int64_t bytes, int64_t step) {
    std::memcpy(got + rank_ * bytes, own + rank_ * step, static_cast<size_t>(bytes));
    for (int64_t round = 1; round < ranks(); ++round) {
      const int64_t to = (rank_ + round) % ranks(), from = (rank_ - round + ranks()) % ranks();
      if (Status s = transfer({to, const_cast<std::byte*>(own) + to * step, bytes}, {from, got + from * bytes, bytes}))
        return s;
    }
    return Status::success();
  }

  Message of_all(Message message) const {
    if (message.peer >= 0) message.peer = members_[static_cast<size_t>(message.peer)];
    return message;
  }

  Communicator& all_;
  std::vector<int64_t> members_;
  int64_t rank_;
};

}  // namespace

std::unique_ptr<Communicator> make_group(Communicator& all, std::vector<int64_t> members) {
  return std::make_unique<GroupRanks>(all, std::move(members));
}

}  // namespace plimsoll
