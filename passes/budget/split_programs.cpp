#include "passes/budget/split_programs.h"

#include "ir/support/parallel.h"
#include "passes/budget/program_size.h"
#include "passes/budget/split_regions.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace plimsoll {
namespace {

constexpr double min_saving = 0.1;          // share of its bytes that a slower program must save to be kept
constexpr double max_nodes = 12000;         // deriving a longer program takes seconds,
constexpr double max_nodes_of_many = 6000;  // which meshes that are compared do not have

// Sorts programs by time and keeps those worth a search: each needs noticeably fewer bytes than the whole batch and
// than every faster program. Short ones are compared with short ones alone, so that which of them are kept does not
// follow from whether the budget leaves room for long ones. Returns the others.
JobProgramList keep_worthwhile(JobProgramList& programs, int64_t whole_bytes) {
  std::stable_sort(programs.begin(), programs.end(), [](const auto& a, const auto& b) {
    if (a->plain_us() != b->plain_us()) return a->plain_us() < b->plain_us();
    return a->plain().promised_bytes() < b->plain().promised_bytes();
  });
  JobProgramList kept, others;
  for (std::unique_ptr<JobProgram>& program : programs) {
    const auto saves_enough = [&](int64_t bytes, int64_t other_bytes) {
      return static_cast<double>(bytes) <= static_cast<double>(other_bytes) * (1 - min_saving);
    };
    const bool is_worth_it = program->laid_out->decide([&](int64_t bytes) {
      return saves_enough(bytes, whole_bytes) && llvm::all_of(kept, [&](const std::unique_ptr<JobProgram>& faster) {
               if (faster->is_long && !program->is_long) return true;
               return faster->laid_out->decide([&](int64_t other) { return saves_enough(bytes, other); });
             });
    });
    (is_worth_it ? kept : others).push_back(std::move(program));
  }
  programs = std::move(kept);
  return others;
}

}  // namespace

Status SplitPrograms::derive(bool with_long, int64_t enough_bytes) {
  if (derived_ == Derived::All || (derived_ == Derived::Short && !with_long)) return Status::success();
  derived_ = with_long ? Derived::All : Derived::Short;
  long_regions_.clear();
  if (request_.split > 1 && !request_.split_from.empty()) {
    const ValueId from = forward_.graph.find_value(request_.split_from);
    if (from == ValueId::None)
      return usage_error("the model has no value '" + request_.split_from + "' once it is clean");
    Result<std::unique_ptr<JobProgram>> named = programs_.split_program({from, request_.split});
    if (!named) return in_context("cannot split the batch", named.takeError());
    worthwhile_.push_back(std::move(*named));
    return Status::success();
  }
  const std::vector<ValueId> regions =
      request_.split == 0 && request_.split_regions ? chosen_regions() : regions_to_try(forward_.graph);
  std::vector<JobProgramList> known(regions.size());
  for (JobProgramList* list : {&worthwhile_, &others_})
    for (std::unique_ptr<JobProgram>& split : std::exchange(*list, {}))
      known[split->region].push_back(std::move(split));
  std::vector<RegionSplits> of_region(regions.size());
  parallel_for(regions.size(), [&](size_t i) {
    of_region[i] = split_behind(regions[i], with_long, enough_bytes, std::move(known[i]));
  });
  for (size_t i = 0; i < regions.size(); ++i) {
    JobProgramList& some = of_region[i].programs;
    for (const std::unique_ptr<JobProgram>& split : some) split->region = i;
    if (of_region[i].is_long) long_regions_.push_back(i);
    std::move(some.begin(), some.end(), std::back_inserter(worthwhile_));
  }
  // Chunks that the caller asked for are kept whatever they need.
  others_ = keep_worthwhile(worthwhile_,
                            request_.split > 1 ? std::numeric_limits<int64_t>::max() : whole_.plain().promised_bytes());
  return Status::success();
}

std::vector<ValueId> SplitPrograms::chosen_regions() const {
  const std::vector<ValueId> all = regions_to_try(forward_.graph);
  std::vector<ValueId> chosen;
  for (size_t place : *request_.split_regions) {
    if (all.empty()) break;
    const ValueId from = all[std::min(place, all.size() - 1)];
    if (!llvm::is_contained(chosen, from)) chosen.push_back(from);
  }
  return chosen;
}

// One program per chunk count that is not too long; none where an op behind the value wants the whole batch. More
// chunks make longer programs, and the fewest make one that is longer than the whole batch's.
SplitPrograms::RegionSplits SplitPrograms::split_behind(ValueId from, bool with_long, int64_t enough_bytes,
                                                        JobProgramList known) const {
  const auto whole = static_cast<double>(nodes_of(whole_.derived->draft.program));
  const double repeated =
      static_cast<double>(nodes_of_rows(whole_.derived->draft.program)) * share_behind(forward_.graph, from);
  const double most = most_nodes();
  const bool are_all_long = whole > static_cast<double>(max_nodes_searched_whole);
  RegionSplits splits;
  for (int64_t chunks : chunks_to_try(forward_.graph.type(from).shape[0], request_.split)) {
    if (request_.split == 0 && whole + static_cast<double>(chunks - 1) * repeated > most) break;
    if (are_all_long && !with_long) {
      splits.is_long = true;
      break;
    }
    const auto made = llvm::find_if(known, [&](const auto& other) { return other && other->chunks == chunks; });
    if (made == known.end() && !splits.programs.empty() &&
        !may_remats_need_less(least_with_more(*splits.programs.back()), enough_bytes))
      break;
    Result<std::unique_ptr<JobProgram>> split =
        made != known.end() ? std::move(*made) : programs_.split_program({from, chunks});
    if (!split) {
      llvm::consumeError(split.takeError());
      continue;
    }
    if ((*split)->is_long && !with_long) {
      splits.is_long = splits.programs.empty();
      break;
    }
    splits.programs.push_back(std::move(*split));
    if (request_.split == 0 && !may_be_worthwhile_with_more(*splits.programs.back())) break;
  }
  return splits;
}

// What any number of chunks of the region may save at most, where these need so many bytes. Each of k chunks needs a
// k-th of what the region needs whole, so it is k / (k - 1) times what k chunks save.
double SplitPrograms::most_saved_with_more(const JobProgram& split, int64_t bytes) const {
  const auto chunks = static_cast<double>(split.chunks);
  return static_cast<double>(whole_.plain().promised_bytes() - bytes) * chunks / (chunks - 1);
}

// Whether more chunks of the same region may save enough.
bool SplitPrograms::may_be_worthwhile_with_more(const JobProgram& split) const {
  const double enough = min_saving * static_cast<double>(whole_.plain().promised_bytes());
  return split.laid_out->decide([&](int64_t bytes) { return most_saved_with_more(split, bytes) >= enough; });
}

double SplitPrograms::least_with_more(const JobProgram& split) const {
  const double saved = most_saved_with_more(split, split.laid_out->min_bytes());
  return static_cast<double>(whole_.plain().promised_bytes()) - saved;
}

// Remats of a long program go down to a share of what its steps hold.
bool SplitPrograms::may_remats_need_less(double plain_bytes, int64_t bytes) const {
  const Arena& arena = whole_.plain().arenas.front();
  const auto whole = static_cast<double>(whole_.plain().promised_bytes());
  const double fixed = whole - static_cast<double>(arena.bytes - arena.persistent_bytes);
  return fixed + long_min_share * std::max(0.0, plain_bytes - fixed) < static_cast<double>(bytes);
}

bool SplitPrograms::may_long_need_less(int64_t bytes) const {
  if (derived_ != Derived::Short || !long_regions_.empty()) return true;
  std::map<size_t, double> least;  // by region
  for (const JobProgramList* list : {&worthwhile_, &others_})
    for (const std::unique_ptr<JobProgram>& split : *list) {
      const double with_more = least_with_more(*split);
      double& least_of_region = least.try_emplace(split->region, with_more).first->second;
      least_of_region = std::max(least_of_region, with_more);
    }
  return llvm::any_of(least, [&](const auto& each) { return may_remats_need_less(each.second, bytes); });
}

// Programs that are too long to put states on the host seldom need less than the whole batch does with states there.
double SplitPrograms::most_nodes() const {
  if (request_.is_one_of_many) return max_nodes_of_many;
  return request_.is_short && request_.offload ? max_nodes_searched_whole : max_nodes;
}

std::vector<size_t> SplitPrograms::regions_for_others(const FitSummary& smallest) const {
  std::vector<size_t> regions = long_regions_;
  for (const JobProgramList* splits : {&worthwhile_, &others_})
    for (const std::unique_ptr<JobProgram>& split : *splits) {
      if (smallest.chunks > 1 && split->from == smallest.chunks_from) return {split->region};
      if (splits == &worthwhile_ && !llvm::is_contained(regions, split->region)) regions.push_back(split->region);
    }
  return regions;
}

}  // namespace plimsoll
