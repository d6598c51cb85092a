#pragma once

// Writes to the places where a mask is true: `x.masked_scatter(mask, values)` and `x[mask] = values`, as models of
// images and text put the features of an image in the places of its tokens. PyTorch's exporter finds the places with
// NonZero, whose shape depends on data, although that of the result does not.

#include "frontend/onnx/provenance.h"

#include <map>
#include <set>

namespace plimsoll {

// What a ScatterND writes: the j-th place where the mask is true gets the j-th of `values`.
struct MaskedWrite {
  enum class Form : uint8_t {
    Elements,  // the mask has the data's shape; the values are flat and at least as many as places
    Rows,  // the mask has the data's first dimensions; the values broadcast to [places, the data's other dimensions]
  };
  std::string mask, values;
  Form form = Form::Elements;
};

struct MaskedWrites {
  std::map<const onnx::NodeProto*, MaskedWrite> by_scatter;
  // What these alone read and what has no size before the step: each NonZero, each Expand to a row for each place.
  std::set<const onnx::NodeProto*> sizeless;
};

MaskedWrites find_masked_writes(const onnx::GraphProto& graph);

}  // namespace plimsoll
