#pragma once

// Changes the batch size that the exporter froze.

#include "passes/partition/divide_batch.h"

namespace plimsoll {

// Follows the leading dimension of the inputs through the graph and gives it a new size. Shapes that ops keep in
// attributes change by each record's rule (OpDef::attrs_for_batch); everything else is inferred again. Where the batch
// cannot be followed (it is mixed into another dimension, or a constant of the model holds it) the error names the
// node, and the graph is unusable.
Status resize_batch(Graph& graph, int64_t batch);

// The same from `samples` to another number; inputs of the batch may have several rows for each sample.
Status resize_batch(Graph& graph, const BatchInputs& batch, int64_t samples, int64_t to);

}  // namespace plimsoll
