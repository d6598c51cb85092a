#include "passes/partition/stage_places.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Adds up what its operands hold, so that parts of the sum may be made on several stages.
bool is_sum_of_operands(const Node& node) { return node.op->name == "sum_squares" || node.op->name == "add_n"; }

// The norm of the gradients, by which each stage scales its own. It is made of several sums, each of them of all stages
// even where one alone has such gradients.
bool is_sum_for_all_stages(const Node& node) { return node.op->name == "sum_squares" && node.phase == Phase::Update; }

// What reads values of several runs of one stage belongs to the last of these that a micro-batch comes to.
int32_t later_run(Phase phase, int32_t a, int32_t b) {
  return phase == Phase::Forward ? std::max(a, b) : std::min(a, b);
}

}  // namespace

int32_t Places::owner_in(const Owners& owners, ValueId state) const {
  auto found = owners.find(graph_.value(state).name);
  return found == owners.end() ? any_run : found->second;
}

Status Places::find(Owners& owners) {
  int32_t position = 0;
  for (NodeId id = graph_.first_node(); id != NodeId::None; id = graph_.next_node(id)) {
    position_[index_of(id)] = position++;
    if (Status s = visit(id)) return s;
  }
  for (const Update& update : graph_.updates) {
    const int32_t made = of(update.value), owner = owner_in(owners, update.state);
    const std::string& name = graph_.value(update.state).name;
    if (made != any_run && owner != any_run && !same_stage(made, owner))
      return model_error("stages: the next value of " + name + " is made on stage " +
                         llvm::Twine(routes_.stage_of(made)) + ", and it belongs to stage " +
                         llvm::Twine(routes_.stage_of(owner)));
    if (made != any_run) owners[name] = made;
  }
  return Status::success();
}

Status Places::visit(NodeId id) {
  const Node& node = graph_.node(id);
  int32_t place = any_run, place_of_states = any_run;
  bool several = false, of_states = !node.operands.empty();
  for (ValueId operand : node.operands) {
    if (operand == ValueId::None) continue;
    of_states &= is_of_states_[index_of(operand)];
    if (of(operand) == any_run) continue;
    const int32_t found = place != any_run ? place : place_of_states;
    several |= found != any_run && !same_stage(found, of(operand));
    int32_t& decides = is_of_states_[index_of(operand)] ? place_of_states : place;
    decides = decides == any_run ? of(operand) : later_run(node.phase, decides, of(operand));
  }
  // A state that came for one run of a stage serves its later ones too, and their gradients do not wait for that run's.
  if (place == any_run) place = place_of_states;
  if (moves_between_runs(node)) {
    if (place != any_run && !same_stage(place, sending_run(node)))
      return wrong(node, "is not on the stage that sends it");
    place = receiving_run(node);
    if (routes_.is_transfer(node)) {
      transfers_.push_back(id);
      numbers_[id] = sent_[{routes_.sender_of(node), routes_.receiver_of(node)}]++;
    }
  } else if (several || (place != any_run && is_sum_for_all_stages(node))) {
    if (!is_sum_of_operands(node)) return wrong(node, "reads values of several stages");
    joint_sums_.push_back(id);
    place = any_run;
  }
  for (ValueId result : node.results) place_[index_of(result)] = place, is_of_states_[index_of(result)] = of_states;
  return Status::success();
}

Status Places::wrong(const Node& node, const llvm::Twine& what) const {
  return model_error("stages: " + graph_.value(node.results.front()).name + " (" + node.op->name + ") " + what);
}

}  // namespace plimsoll
