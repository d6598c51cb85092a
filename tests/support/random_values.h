#pragma once

// Random inputs for a graph and the comparison of what two graphs make of them.

#include "ir/evaluate.h"

namespace plimsoll {

// How far two results of one dtype may lie apart, relative to the larger of 1 and the value.
double tolerance(DType dtype);

struct RandomValues {
  std::map<std::string, Tensor> tensors;  // by the name of an input or a state

  // Floats from N(0, 1), integers 0 or 1 (so that they serve as indices), bools at random; the same for the
  // same name and type.
  void add_for(const Graph& graph);
  Bindings bind(const Graph& graph) const;
};

// Empty when equal within tolerance; else where they differ and by how much.
std::string describe_difference(const Tensor& a, const Tensor& b);

// Evaluates both on the same random values: outputs by position and updates by state must agree. Empty when
// they do.
std::string compare_results(const Graph& before, const Graph& after);

}  // namespace plimsoll
