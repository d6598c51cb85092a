#pragma once

// Trains programs of several ranks on the interpreter, all ranks together.

#include "ir/evaluate.h"
#include "passes/compile.h"
#include "passes/derive_program.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/random_values.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <deque>

namespace plimsoll::testing {

using Tensors = std::map<std::string, Tensor>;

inline ForwardModel forward_of(const Graph& forward, const TrainingRequest& request) {
  const CpuCatalog catalog;
  Result<CleanModel> clean = clean_model(forward, request.loss);
  REQUIRE_MESSAGE(bool(clean), llvm::toString(clean.takeError()));
  Result<ForwardModel> model = prepare_forward(std::move(*clean), request, catalog.preferences());
  REQUIRE_MESSAGE(bool(model), llvm::toString(model.takeError()));
  return std::move(*model);
}

inline void check_close(const Tensor& got, const Tensor& want, double tolerance) {
  REQUIRE(got.type() == want.type());
  for (int64_t i = 0; i < want.type().elements(); ++i) {
    if (std::isnan(want.get(i)) && std::isnan(got.get(i))) continue;
    CHECK(got.get(i) == doctest::Approx(want.get(i)).epsilon(tolerance));
  }
}

// Runs the functions of a program on every rank; each stage of the mesh has a program of its own.
class RankTrainer {
 public:
  RankTrainer(std::vector<Program> stages, const Mesh& mesh, const RandomValues& values)
      : stages_(std::move(stages)), mesh_(mesh), values_(values), states_(static_cast<size_t>(mesh.ranks())) {
    for (size_t rank = 0; rank < states_.size(); ++rank)
      for (const Graph& function : program_of(rank).functions)
        for (const State& state : function.states) set_first_value(function, state, rank);
  }

  RankTrainer(Program program, const Mesh& mesh, const RandomValues& values)
      : RankTrainer(as_one_stage(std::move(program)), mesh, values) {}

  // Gives the loss of every rank.
  std::vector<double> step(int64_t accumulate) {
    std::vector<double> losses;
    for (int64_t micro = 0; micro < accumulate; ++micro) losses = run(0);
    if (stages_.front().functions.size() > 1) run(1);
    return losses;
  }

  const Tensors& states(size_t rank) const { return states_[rank]; }
  // What that rank must hold of a state whose whole is this.
  Tensor own_part(const std::string& name, const Tensor& whole, int64_t rank) const {
    const Shape& shape = states_[static_cast<size_t>(rank)].at(name).type().shape;
    return piece_of(whole, divisions_.at(name), mesh_, rank, shape);
  }

 private:
  static std::vector<Program> as_one_stage(Program program) {
    std::vector<Program> stages;
    stages.push_back(std::move(program));
    return stages;
  }

  const Program& program_of(size_t rank) const { return stages_[rank * stages_.size() / states_.size()]; }
  int64_t coordinate(size_t rank) const { return mesh_.coordinate(static_cast<int64_t>(rank), MeshAxis::Data); }

  void set_first_value(const Graph& function, const State& state, size_t rank) {
    const std::string& name = function.value(state.value).name;
    if (states_[rank].count(name)) return;
    divisions_[name] = state.divisions;
    Tensor first(function.type(state.value));
    if (state.init.kind == StateInit::Kind::Fill)
      for (int64_t i = 0; i < first.type().elements(); ++i) first.view().set(i, state.init.fill);
    else {
      const bool weights = state.init.kind == StateInit::Kind::Weights;
      const Tensor& whole = values_.tensors.at(weights ? name : state.init.source);
      first = piece_of(whole, state.divisions, mesh_, static_cast<int64_t>(rank), first.type().shape);
    }
    states_[rank].emplace(name, std::move(first));
  }

  std::vector<double> run(size_t index) {
    std::vector<Bindings> bindings(states_.size());
    std::deque<Tensor> rows;
    for (size_t rank = 0; rank < states_.size(); ++rank) {
      const Graph& function = program_of(rank).functions[index];
      for (ValueId input : function.inputs) {
        const bool whole = llvm::is_contained(function.whole_inputs, input);
        rows.push_back(filled_rows(values_.tensors.at(function.value(input).name), function.type(input),
                                   whole ? 0 : coordinate(rank)));
        bindings[rank][input] = &rows.back();
      }
      for (const State& state : function.states)
        bindings[rank][state.value] = &states_[rank].at(function.value(state.value).name);
    }
    std::vector<const Graph*> graphs;
    for (const Program& stage : stages_) graphs.push_back(&stage.functions[index]);
    Result<std::vector<Evaluation>> results = graphs.size() == 1 ? evaluate_on_ranks(*graphs[0], mesh_, bindings)
                                                                 : evaluate_on_stages(graphs, mesh_, bindings);
    REQUIRE_MESSAGE(bool(results), llvm::toString(results.takeError()));
    std::vector<double> losses;
    for (size_t rank = 0; rank < states_.size(); ++rank) {
      const Graph& function = program_of(rank).functions[index];
      for (size_t i = 0; i < function.updates.size(); ++i)
        states_[rank].at(function.value(function.updates[i].state).name) = (*results)[rank].updates[i];
      losses.push_back((*results)[rank].outputs.front().get(0));
    }
    return losses;
  }

  std::vector<Program> stages_;
  Mesh mesh_;
  const RandomValues& values_;
  std::vector<Tensors> states_;
  std::map<std::string, Divisions> divisions_;
};

}  // namespace plimsoll::testing
