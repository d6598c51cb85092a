#include "passes/mesh/mesh_estimate.h"

// Bounds count what no plan avoids: states, one gradient, arithmetic and bytes at the device's ceilings, and what a
// collective takes from computing beside it at least. Estimates count the rest as plans without a budget come out.

#include "passes/partition/divide_batch.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>

namespace plimsoll {
namespace {

// Backward's share that computes gradients of weights, which a stage may put off.
constexpr double weights_share = 0.5;
// Share of the computing between two sizes of the batch that was counted which every size between them takes.
constexpr double sure_computing = 0.95;

double ratio(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }
double largest_of(llvm::ArrayRef<double> numbers) { return *std::max_element(numbers.begin(), numbers.end()); }
int64_t divided(int64_t bytes, int64_t by) { return (bytes + by - 1) / by; }

// How much longer computing of `beside_us` takes with `comm_us` of collectives beside and behind it.
double exposed_us(double comm_us, double beside_us, const CollectiveShares& shares) {
  const double stretched_us = beside_us / shares.compute, hidden_us = stretched_us * shares.link;
  if (comm_us <= hidden_us) return comm_us / shares.link * (1 - shares.compute);
  return stretched_us - beside_us + comm_us - hidden_us;
}

// The run of layers that a stage's own run is, in the order of the model.
int64_t run_of(const StageRuns& runs, int64_t stage, int64_t own_run) {
  const int64_t first = own_run * runs.stages;
  return runs.stage_of(first + stage) == stage ? first + stage : first + runs.stages - 1 - stage;
}

// Stages that act as soon as their last action and what the next one reads allow. A transfer keeps the links of both
// stages busy. All runs of a stage take equally long.
class PipelineSimulation {
 public:
  PipelineSimulation(const StageRuns& runs, llvm::ArrayRef<std::vector<StageAction>> actions,
                     llvm::ArrayRef<StageTimes> times, int64_t micro_batches, double transfer_us)
      : runs_(runs), transfer_us_(transfer_us) {
    for (size_t s = 0; s < actions.size(); ++s) stages_.push_back({actions[s], times[s]});
    const std::vector<double> none(static_cast<size_t>(micro_batches), never);
    forward_.assign(static_cast<size_t>(runs.count()), none);
    backward_ = forward_;
    for (double& us : forward_.front()) us = 0;
    for (double& us : backward_.back()) us = 0;
  }

  // Microseconds until the last stage is through.
  double run() {
    for (size_t s = 0; s < stages_.size(); ++s) offer(s);
    while (!ready_.empty()) {
      const auto [start_us, s] = ready_.top();
      ready_.pop();
      act(s, start_us);
    }
    double us = 0;
    for (const Stage& stage : stages_) us = std::max(us, stage.now_us);
    return us;
  }

 private:
  using Kind = StageAction::Kind;
  static constexpr double never = -1;

  struct Stage {
    llvm::ArrayRef<StageAction> actions;
    StageTimes times;
    size_t next = 0;
    double now_us = 0, link_us = 0;  // when it and its link are free
    bool waits = false;              // for what its next action reads
  };

  double arrival_us(size_t s, const StageAction& action) const {
    const auto run = static_cast<size_t>(run_of(runs_, static_cast<int64_t>(s), action.run)),
               micro_batch = static_cast<size_t>(action.micro_batch);
    if (action.kind == Kind::Forward) return forward_[run][micro_batch];
    return action.kind == Kind::Backward ? backward_[run][micro_batch] : 0;
  }

  // Makes the stage's next action ready where what it reads has arrived.
  void offer(size_t s) {
    Stage& stage = stages_[s];
    if (stage.next == stage.actions.size()) return;
    const double arrival = arrival_us(s, stage.actions[stage.next]);
    stage.waits = arrival == never;
    if (!stage.waits) ready_.push({std::max(stage.now_us, arrival), s});
  }

  void act(size_t s, double start_us) {
    Stage& stage = stages_[s];
    const StageAction& action = stage.actions[stage.next++];
    stage.now_us = start_us + us_of(stage.times, action.kind) / static_cast<double>(runs_.per_stage);
    const int64_t run = run_of(runs_, static_cast<int64_t>(s), action.run);
    if (action.kind == Kind::Forward && run + 1 < runs_.count()) deliver(s, run + 1, action.micro_batch, forward_);
    if (action.kind == Kind::Backward && run > 0) deliver(s, run - 1, action.micro_batch, backward_);
    offer(s);
  }

  static double us_of(const StageTimes& times, Kind kind) {
    switch (kind) {
      case Kind::Forward: return times.forward_us;
      case Kind::Backward: return times.backward_us;
      case Kind::Weights: return times.weights_us;
      default: return 0;
    }
  }

  void deliver(size_t from, int64_t run, int64_t micro_batch, std::vector<std::vector<double>>& arrivals) {
    const auto to = static_cast<size_t>(runs_.stage_of(run));
    double us = stages_[from].now_us;
    if (to != from) {
      us = std::max({us, stages_[from].link_us, stages_[to].link_us}) + transfer_us_;
      stages_[from].link_us = stages_[to].link_us = us;
    }
    arrivals[static_cast<size_t>(run)][static_cast<size_t>(micro_batch)] = us;
    if (to != from && stages_[to].waits) offer(to);
  }

  const StageRuns& runs_;
  double transfer_us_;
  std::vector<Stage> stages_;
  std::vector<std::vector<double>> forward_, backward_;  // by run and micro-batch, when what it reads arrives
  // By the time at which they can start; each stage is there at most once.
  std::priority_queue<std::pair<double, size_t>, std::vector<std::pair<double, size_t>>, std::greater<>> ready_;
};

class Estimator {
 public:
  Estimator(const ModelProfile& profile, const MeshCandidate& candidate, const TrainingRequest& request,
            const DeviceDescription& device)
      : model_(profile),
        candidate_(candidate),
        request_(request),
        device_(device),
        states_(profile.with.at(candidate.mesh[MeshAxis::Tensor])),
        stages_(candidate.mesh[MeshAxis::Stage]),
        data_(candidate.mesh[MeshAxis::Data]),
        calls_(static_cast<double>(request.accumulate)),
        zero_(request.zero_as_done(candidate.zero, candidate.mesh)) {
    const int64_t rows = std::max<int64_t>(rows_of_rank(profile.batch, data_), 1);
    work_ = states_.at(std::max<int64_t>(rows / candidate.micro_batches, 1));
    shares_ = shares();
    if (stages_ == 1) return;
    times_ = stage_times();
    runs_ = runs_of_schedule(candidate.schedule, static_cast<int64_t>(times_.size()));
    actions_ = actions_of_stages(runs_, times_, candidate.micro_batches);
  }

  MeshEstimate run() {
    MeshEstimate estimate;
    estimate.nodes = nodes();
    estimate.us = step_us();
    estimate.bytes = bytes();
    estimate.least_us = least_us();
    estimate.least_device_bytes = reserve_bytes() + states_.largest_gradient_bytes;
    estimate.state_bytes = state_bytes() / stages_;
    estimate.least_bytes = estimate.least_device_bytes + estimate.state_bytes;
    estimate.passes = calls_ * static_cast<double>(candidate_.micro_batches);
    estimate.pass_bytes = pass_bytes() / stages_;
    estimate.from_host_gb_per_s = device_.from_host_gb_per_s;
    return estimate;
  }

 private:
  int by_zero(int stage) const { return zero_ >= stage ? 1 : 0; }
  int64_t pieces(int64_t bytes, int zero) const { return by_zero(zero) ? divided(bytes, data_) : bytes; }

  // Without the least time of each collective, where `bounds`.
  double us_of(const Exchanges& exchanges, MeshAxis axis, bool bounds = false) const {
    const AxisLink link = device_.link_of(axis);
    return exchanges.sent_bytes / (link.gb_per_s * 1e3) + (bounds ? 0 : exchanges.count * link.base_us);
  }
  double exchange_us(bool bounds = false) const {
    return us_of(work_.over_tensor, MeshAxis::Tensor, bounds) + us_of(work_.over_data, MeshAxis::Data, bounds);
  }

  // ---- Time ----

  // Bytes that a rank sends along the data axis in a step, for the sums of gradients and for gathered parameters.
  double sent_for_sums() const {
    return part_of_others() * static_cast<double>(states_.sum_bytes) * (by_zero(1) ? 1 : 2);
  }
  double sent_for_gathers() const {
    if (by_zero(3)) return part_of_others() * static_cast<double>(states_.read_bytes) * calls_;
    return by_zero(1) ? part_of_others() * static_cast<double>(states_.trained_bytes) : 0;
  }
  double part_of_others() const { return ratio(data_ - 1, data_); }

  double link_us(double sent) const {
    if (sent == 0) return 0;
    const AxisLink link = device_.link_of(MeshAxis::Data);
    const double alone_us = sent / (link.gb_per_s * 1e3);
    // Neighbours share a launch, which is a fifth of a bucket's time.
    return alone_us + std::min(static_cast<double>(states_.trained) * link.base_us, alone_us / 4);
  }

  double update_us() const {
    const double us = by_zero(1) || by_zero(3) ? states_.update_us / static_cast<double>(data_) : states_.update_us;
    return us + us_of(states_.update_over_tensor, MeshAxis::Tensor);
  }

  double step_us() const {
    const auto stages = static_cast<double>(stages_);
    const CollectiveShares shares = device_.collective_shares();
    const double passes_us =
        calls_ * (stages_ > 1 ? pipeline_us() : work_.forward_us + work_.backward_us + exchange_us());
    const double slowest = stages_ > 1 ? slowest_share() : 1;
    double us = passes_us + update_us() * slowest;
    const double sums_us = link_us(sent_for_sums() * slowest) * (sums_each_call() ? calls_ : 1),
                 gathers_us = link_us(sent_for_gathers() * slowest);
    const double backward_us = work_.backward_us * static_cast<double>(candidate_.micro_batches) / stages;
    const double forward_us = work_.forward_us * static_cast<double>(candidate_.micro_batches) / stages;
    if (stages_ > 1)  // gradients are final behind the last micro-batch, so little is computed beside their sums
      return us + sums_us + gathers_us;
    if (by_zero(3))
      return us + exposed_us(gathers_us, calls_ * forward_us, shares) +
             exposed_us(sums_us, calls_ * backward_us, shares);
    const bool beside_update = request_.accumulate > 1 || (request_.clip_grad_norm > 0);
    us += exposed_us(sums_us, request_.accumulate > 1 ? 0 : backward_us, shares);
    return us + exposed_us(gathers_us, beside_update ? update_us() : update_us() + backward_us / 2, shares);
  }

  bool sums_each_call() const { return by_zero(2) && request_.accumulate > 1; }

  // The slowest stage's computing, as a share of all: the blocks between cuts in runs of about the same time.
  double slowest_share() const { return largest_of(shares_); }

  std::vector<double> shares() const {
    std::vector<double> shares;
    double target = 1 / static_cast<double>(stages_), left = 1, run = 0;
    for (double block : model_.stages.block_share) {
      const auto open = static_cast<double>(stages_) - static_cast<double>(shares.size());
      target = left / open;
      if (open > 1 && run > 0 && run + block / 2 > target) {
        shares.push_back(run);
        left -= std::exchange(run, 0);
      }
      run += block;
    }
    shares.push_back(run);
    return shares;
  }

  std::vector<StageTimes> stage_times() const {
    std::vector<StageTimes> times;
    const double forward_us = work_.forward_us + exchange_us() / 2,
                 backward_us = work_.backward_us + exchange_us() / 2 + gradient_sums_us();
    for (double share : shares_) {
      StageTimes stage{share * forward_us, share * backward_us, 0};
      if (splits_backward(candidate_.schedule))
        stage.weights_us = std::exchange(stage.backward_us, stage.backward_us * (1 - weights_share)) * weights_share;
      times.push_back(stage);
    }
    return times;
  }

  double pipeline_us() const {
    const int64_t rows = std::max<int64_t>(rows_of_rank(model_.batch, data_) / candidate_.micro_batches, 1);
    const double transfer_us =
        device_.ranks_us(MeshAxis::Stage, model_.stages.border_bytes * static_cast<double>(rows));
    return PipelineSimulation(runs_, actions_, times_, candidate_.micro_batches, transfer_us).run();
  }

  int64_t micro_batches_kept() const {
    int64_t kept = 1;
    for (const std::vector<StageAction>& stage : actions_) {
      int64_t of_runs = 0;
      for (int64_t run = 0; run < runs_.per_stage; ++run) of_runs += most_kept(stage, run);
      kept = std::max(kept, (of_runs + runs_.per_stage - 1) / runs_.per_stage);
    }
    return kept;
  }

  // Each micro-batch but the first adds its gradients to what there is: two are read, one is written.
  double gradient_sums_us() const {
    const double added =
        3 * static_cast<double>(states_.read_bytes) * ratio(candidate_.micro_batches - 1, candidate_.micro_batches);
    return device_.roofline_us(0, static_cast<int64_t>(added), std::nullopt);
  }

  double least_us() const {
    const auto stages = static_cast<double>(stages_), passes = calls_ * static_cast<double>(candidate_.micro_batches);
    const double updates_us = states_.update_memory_us / static_cast<double>(data_);
    const double sure_us = passes * sure_computing * states_.sure_us(work_.rows);
    const double computing_us =
        std::max({sure_us, passes * work_.matmul_us, passes * work_.memory_us + updates_us}) / stages;
    const CollectiveShares shares = device_.collective_shares();
    double links_us = passes * exchange_us(true);
    if (data_ > 1) {
      const double rate = device_.link_of(MeshAxis::Data).gb_per_s * 1e3;
      links_us += sent_for_sums() * (sums_each_call() ? calls_ : 1) / rate + sent_for_gathers() / rate;
    }
    links_us /= stages;
    return std::max(computing_us + links_us * shares.min_cost(), links_us);
  }

  // ---- Bytes ----

  int64_t reserve_bytes() const {
    return device_.with_ranks(candidate_.mesh, {.stages_met = stages_ > 1}).reserve_bytes();
  }

  int64_t state_bytes() const {
    return pieces(states_.parameter_bytes, 3) + pieces(states_.optimizer_bytes, 1) + pieces(states_.gradient_bytes, 2) +
           states_.other_bytes;
  }

  // Each further micro-batch adds to the gradients, and pieces of parameters are gathered and dropped for each.
  int64_t nodes() const {
    if (candidate_.micro_batches == 1) return work_.nodes;
    return candidate_.micro_batches * (work_.nodes + states_.trained * (by_zero(3) ? 4 : 1));
  }

  // Parameters as computing reads them and, where there are several passes, the gradients' sums that each adds to.
  int64_t pass_bytes() const {
    int64_t bytes = pieces(states_.read_bytes, 3);
    if (request_.accumulate > 1)
      bytes += pieces(states_.gradient_bytes, 2);
    else if (candidate_.micro_batches > 1)
      bytes += pieces(states_.read_bytes, 2);
    return bytes;
  }

  int64_t bytes() const {
    const double share = stages_ > 1 ? slowest_share() : 1;
    double bytes = static_cast<double>(state_bytes() + micro_batches_kept() * work_.saved_bytes);
    if (by_zero(3)) bytes += static_cast<double>(states_.read_bytes);
    if (stages_ > 1) bytes += static_cast<double>(states_.read_bytes);
    return static_cast<int64_t>(share * bytes) + work_.working_bytes +
           device_
               .with_ranks(candidate_.mesh,
                           {.collectives = states_.trained / stages_, .stages_met = std::min<int64_t>(stages_ - 1, 2)})
               .with_graphs(2 * work_.nodes * candidate_.micro_batches / stages_)
               .reserve_bytes();
  }

  const ModelProfile& model_;
  const MeshCandidate& candidate_;
  const TrainingRequest& request_;
  const DeviceDescription& device_;
  const TensorProfile& states_;
  RankWork work_;
  int64_t stages_, data_;
  double calls_;
  int zero_;
  std::vector<double> shares_;  // of all computing, by stage
  // Of a pipeline.
  std::vector<StageTimes> times_;
  StageRuns runs_;
  std::vector<std::vector<StageAction>> actions_;
};

Exchanges between(const Exchanges& a, const Exchanges& b, double share) {
  return {a.count + share * (b.count - a.count), a.sent_bytes + share * (b.sent_bytes - a.sent_bytes)};
}

template <typename T>
T between(T a, T b, double share) {
  return static_cast<T>(static_cast<double>(a) + share * (static_cast<double>(b) - static_cast<double>(a)));
}

}  // namespace

RankWork TensorProfile::at(int64_t rows) const {
  if (work.size() == 1) return work.front();
  size_t above = 1;
  while (above + 1 < work.size() && work[above].rows < rows) ++above;
  const RankWork &a = work[above - 1], &b = work[above];
  const double share = ratio(rows - a.rows, b.rows - a.rows);
  RankWork at;
  at.rows = rows;
  at.forward_us = between(a.forward_us, b.forward_us, share);
  at.backward_us = between(a.backward_us, b.backward_us, share);
  at.matmul_us = between(a.matmul_us, b.matmul_us, share);
  at.memory_us = between(a.memory_us, b.memory_us, share);
  at.over_tensor = between(a.over_tensor, b.over_tensor, share);
  at.over_data = between(a.over_data, b.over_data, share);
  at.saved_bytes = between(a.saved_bytes, b.saved_bytes, share);
  at.working_bytes = between(a.working_bytes, b.working_bytes, share);
  at.nodes = between(a.nodes, b.nodes, share);
  return at;
}

double TensorProfile::sure_us(int64_t rows) const {
  double us = 0;
  for (const RankWork& counted : work)
    if (counted.rows >= rows) us = std::max(us, counted.sure_us * ratio(rows, counted.rows));
  return us;
}

double MeshEstimate::host_us(int64_t budget_bytes) const {
  if (from_host_gb_per_s <= 0) return 0;
  const auto from_host = [&](int64_t read) { return static_cast<double>(std::max<int64_t>(read - budget_bytes, 0)); };
  // The first pass and the updates read each state. Every further pass reads its bytes again.
  const double bytes = from_host(state_bytes) + (passes - 1) * from_host(pass_bytes);
  return bytes / (from_host_gb_per_s * 1e3);
}

double MeshEstimate::least_us_within(int64_t budget_bytes) const { return std::max(least_us, host_us(budget_bytes)); }

MeshEstimate estimate_mesh(const ModelProfile& profile, const MeshCandidate& candidate, const TrainingRequest& request,
                           const DeviceDescription& device) {
  return Estimator(profile, candidate, request, device).run();
}

}  // namespace plimsoll
