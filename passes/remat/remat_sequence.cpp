#include "passes/remat/remat.h"

#include <numeric>

namespace plimsoll {
namespace {

class SequenceWriter {
 public:
  explicit SequenceWriter(const RecomputeProblem& problem)
      : problem_(problem), latest_(problem.value_bytes.size()), on_host_(problem.value_bytes.size(), -1), option_(problem.value_bytes.size()) {
    std::iota(latest_.begin(), latest_.end(), 0);
    result_.value_bytes = problem.value_bytes;
    result_.copy_shares = problem.copy_shares;
    result_.copy_toll = problem.copy_toll;
    for (const OffloadOption& option : problem.offloads) option_[static_cast<size_t>(option.value)] = &option;
  }

  RecomputeProblem run(const RecomputePlan& plan) {
    for (const Fetch& fetch : plan.fetches) on_host(fetch.value) = new_value(0);
    auto fetched = plan.fetches.begin();
    auto repeated = plan.repeats.begin();
    for (int32_t stage = 0; stage <= problem_.op_count(); ++stage) {
      for (; fetched != plan.fetches.end() && fetched->before == stage; ++fetched) fetch(fetched->value);
      for (; repeated != plan.repeats.end() && repeated->before == stage; ++repeated) repeat(repeated->op);
      places_.push_back(result_.op_count());
      if (stage < problem_.op_count()) run_first(stage);
    }
    for (RecomputeOp& op : result_.ops) {
      if (op.repeat_until <= problem_.op_count()) op.repeat_until = places_[static_cast<size_t>(op.repeat_until)];
      op.not_before = places_[static_cast<size_t>(op.not_before)];
    }
    result_.live_out.assign(result_.value_bytes.size(), 0);
    for (size_t v = 0; v < latest_.size(); ++v)
      if (problem_.live_out[v]) result_.live_out[static_cast<size_t>(latest_[v])] = 1;
    return std::move(result_);
  }

 private:
  int32_t& latest(int32_t value) { return latest_[static_cast<size_t>(value)]; }
  int32_t& on_host(int32_t value) { return on_host_[static_cast<size_t>(value)]; }
  const OffloadOption& option(int32_t value) const { return *option_[static_cast<size_t>(value)]; }

  int32_t new_value(int64_t bytes) {
    result_.value_bytes.push_back(bytes);
    return static_cast<int32_t>(result_.value_bytes.size() - 1);
  }

  void make_again(int32_t value) { latest(value) = new_value(problem_.value_bytes[static_cast<size_t>(value)]); }

  void fetch(int32_t value) {
    make_again(value);
    add_copy(Channel::ToDevice, option(value).to_device_us, on_host(value), latest(value));
  }

  void add_copy(Channel channel, double cost_us, int32_t read, int32_t written) {
    RecomputeOp copy;
    copy.channel = channel;
    copy.cost_us = cost_us;
    copy.reads.push_back(read);
    copy.writes.push_back(written);
    result_.ops.push_back(std::move(copy));
  }

  void repeat(int32_t id) {
    RecomputeOp op = reading_latest(id);
    for (int32_t v : op.writes) make_again(v);
    for (int32_t& v : op.writes) v = latest(v);
    for (TakeOver& pair : op.in_place) pair.written = latest(pair.written);
    result_.ops.push_back(std::move(op));
  }

  void run_first(int32_t id) {
    result_.ops.push_back(reading_latest(id));
    for (int32_t v : problem_.ops[static_cast<size_t>(id)].writes)
      if (on_host(v) >= 0) add_copy(Channel::ToHost, option(v).to_host_us, v, on_host(v));
  }

  RecomputeOp reading_latest(int32_t id) {
    RecomputeOp op = problem_.ops[static_cast<size_t>(id)];
    for (int32_t& v : op.reads) v = latest(v);
    for (TakeOver& pair : op.in_place) pair.read = latest(pair.read);
    return op;
  }

  const RecomputeProblem& problem_;
  RecomputeProblem result_;
  std::vector<int32_t> latest_;   // by value: what it is called at the present place
  std::vector<int32_t> on_host_;  // by value: its copy there; -1: none
  std::vector<const OffloadOption*> option_;  // by value; null: it stays on the device
  std::vector<int32_t> places_;   // of the base ops and of the end
};

}  // namespace

RecomputeProblem final_sequence(const RecomputeProblem& problem, const RecomputePlan& plan) { return SequenceWriter(problem).run(plan); }

}  // namespace plimsoll
