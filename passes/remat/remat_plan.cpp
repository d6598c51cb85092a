#include "passes/remat/remat_search.h"

#include <algorithm>
#include <numeric>

// Plans against their problem: how a plan is read off a schedule, measured, and put in as ops.

namespace plimsoll {
namespace {

class PlanApplication {
 public:
  explicit PlanApplication(const RematProblem& problem)
      : problem_(problem),
        latest_(problem.value_bytes.size()),
        on_host_(problem.value_bytes.size(), -1),
        option_(problem.value_bytes.size()) {
    std::iota(latest_.begin(), latest_.end(), 0);
    result_.value_bytes = problem.value_bytes;
    result_.duplex_shares = problem.duplex_shares;
    result_.copy_interference = problem.copy_interference;
    result_.collective_shares = problem.collective_shares;
    for (const OffloadOption& option : problem.offloads) option_[option.value] = &option;
  }

  RematProblem run(const RematPlan& plan) {
    for (const Reload& reload : plan.reloads) on_host(reload.value) = new_value(0);
    auto reloaded = plan.reloads.begin();
    auto remat = plan.remats.begin();
    for (int32_t position = 0; position <= problem_.op_count(); ++position) {
      for (; reloaded != plan.reloads.end() && reloaded->before == position; ++reloaded) reload(reloaded->value);
      for (; remat != plan.remats.end() && remat->before == position; ++remat) run_again(remat->op);
      places_.push_back(result_.op_count());
      if (position < problem_.op_count()) run_first(position);
    }
    for (RematOp& op : result_.ops) {
      if (op.remat_until <= problem_.op_count()) op.remat_until = places_[op.remat_until];
      op.not_before = places_[op.not_before];
    }
    result_.live_out.assign(result_.value_bytes.size(), 0);
    for (size_t v = 0; v < latest_.size(); ++v)
      if (problem_.live_out[v]) result_.live_out[latest_[v]] = 1;
    return std::move(result_);
  }

 private:
  int32_t& latest(int32_t value) { return latest_[value]; }
  int32_t& on_host(int32_t value) { return on_host_[value]; }
  const OffloadOption& option(int32_t value) const { return *option_[value]; }

  int32_t new_value(int64_t bytes) {
    result_.value_bytes.push_back(bytes);
    return static_cast<int32_t>(result_.value_bytes.size() - 1);
  }

  void make_again(int32_t value) { latest(value) = new_value(problem_.value_bytes[value]); }

  void reload(int32_t value) {
    make_again(value);
    add_copy(Engine::ToDevice, option(value).to_device_us, on_host(value), latest(value));
  }

  void add_copy(Engine engine, double cost_us, int32_t read, int32_t written) {
    RematOp copy;
    copy.engine = engine;
    copy.cost_us = cost_us;
    copy.reads.push_back(read);
    copy.writes.push_back(written);
    result_.ops.push_back(std::move(copy));
  }

  void run_again(int32_t id) {
    RematOp op = reading_latest(id);
    for (int32_t v : op.writes) make_again(v);
    for (int32_t& v : op.writes) v = latest(v);
    for (InPlaceReuse& pair : op.in_place) pair.written = latest(pair.written);
    result_.ops.push_back(std::move(op));
  }

  void run_first(int32_t id) {
    result_.ops.push_back(reading_latest(id));
    for (int32_t v : problem_.ops[id].writes)
      if (on_host(v) >= 0) add_copy(Engine::ToHost, option(v).to_host_us, v, on_host(v));
  }

  RematOp reading_latest(int32_t id) {
    RematOp op = problem_.ops[id];
    for (int32_t& v : op.reads) v = latest(v);
    for (InPlaceReuse& pair : op.in_place) pair.read = latest(pair.read);
    return op;
  }

  const RematProblem& problem_;
  RematProblem result_;
  std::vector<int32_t> latest_;               // by value: its latest occurrence at the present place
  std::vector<int32_t> on_host_;              // by value: its copy there; -1: none
  std::vector<const OffloadOption*> option_;  // by value; null: it stays on the device
  std::vector<int32_t> places_;               // of the base ops and of the end
};

}  // namespace

RematPlan measure_remats(const RematProblem& problem, std::vector<Remat> remats, std::vector<Reload> reloads) {
  remat::RematSchedule schedule(problem);
  std::sort(remats.begin(), remats.end());
  std::sort(reloads.begin(), reloads.end());
  for (const Remat& remat : remats) schedule.insert({remat.before, remat.op});
  for (const Reload& reload : reloads)
    schedule.insert(schedule.point_before(reload.before, schedule.reload_of(reload.value)));
  return {std::move(remats), std::move(reloads), schedule.added_us(), schedule.memory().peak()};
}

RematPlan remat::plan_of(const RematSchedule& schedule) {
  RematSchedule afresh(schedule.problem());
  set_extras(afresh, schedule.extras());
  RematPlan plan{{}, {}, afresh.added_us(), afresh.memory().peak()};
  for (ProgramPoint at : afresh.extras()) {
    if (afresh.is_reload(at.op())) plan.reloads.push_back({afresh.position_after(at), afresh.op(at.op()).writes[0]});
    if (!afresh.is_copy(at.op())) plan.remats.push_back({at.position(), at.op()});
  }
  std::sort(plan.reloads.begin(), plan.reloads.end());
  return plan;
}

RematProblem with_offloads(RematProblem problem, std::vector<OffloadOption> offloads) {
  problem.offloads = std::move(offloads);
  return problem;
}

RematProblem apply_to_problem(const RematProblem& problem, const RematPlan& plan) {
  return PlanApplication(problem).run(plan);
}

}  // namespace plimsoll
