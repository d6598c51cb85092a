#pragma once

// Changes the batch size that the exporter froze.

#include "ir/graph.h"

namespace plimsoll {

// Follows the leading dimension of the inputs through the graph and gives it a new size. Shapes that ops keep in
// attributes change by each record's rule (OpDef::attrs_for_batch); everything else is inferred again. Where the batch
// cannot be followed (it is mixed into another dimension, or a constant of the model holds it) the error names the
// node, and the graph is unusable.
Status resize_batch(Graph& graph, int64_t batch);

}  // namespace plimsoll
