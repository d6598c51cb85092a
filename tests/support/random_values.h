#pragma once

// Makes random inputs for a graph and compares the results of two graphs.

#include "ir/evaluate.h"

namespace plimsoll {

// Largest difference of two results of one dtype, relative to the larger of 1 and the value.
double tolerance(DType dtype);

struct RandomValues {
  std::map<std::string, Tensor> tensors;  // the key is the name of an input or a state

  // Draws floats from N(0, 1), integers 0 or 1 (so that they can be indices), and random bools. The same name and type
  // give the same numbers.
  void add_for(const Graph& graph);
  Bindings bind(const Graph& graph) const;
};

// A rank's rows of a batch, as a reader fills them: those behind the last row repeat the first ones.
Tensor filled_rows(const Tensor& batch, const Type& rows, int64_t rank);

// Returns an empty string if both are equal within tolerance, else where they differ and by how much.
std::string describe_difference(const Tensor& a, const Tensor& b);

// Evaluates both graphs on the same random values. Returns an empty string if outputs (by position) and updates (by
// state) agree.
std::string compare_results(const Graph& before, const Graph& after);

}  // namespace plimsoll
