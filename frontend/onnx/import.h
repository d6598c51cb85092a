#pragma once

// From an ONNX model to a Graph: static shapes, our ops, the model's names. What stands in the way is
// collected, so that a user learns everything at once.

#include "frontend/onnx/model.h"
#include "ir/graph.h"

#include <map>

namespace plimsoll {

struct ImportOptions {
  std::map<std::string, int64_t> dims;            // symbolic dimensions by name
  std::map<std::string, Tensor> constant_inputs;  // graph inputs whose value is fixed now
  // Batch norm takes batch statistics and dropout drops, whatever the exporter wrote. Without it every
  // operator does exactly what the ONNX text says.
  bool training = true;
  bool freeze_norm = false;  // training: batch norm keeps its running statistics
};

struct Obstacle {
  enum class Kind : uint8_t {
    UnsupportedOp,    // subject: the operator
    UnboundDim,       // subject: the dimension; nodes: the inputs that have it
    DataDependent,    // subject: the graph input whose value decides a shape or setting
    BadNode,          // subject: the node
    BadModel,         // subject: the value or initializer
    FoldedBatchNorm,  // only a note: batch norms were folded into the weights of `nodes`
    LostParameter,    // only a note: the exporter left parameters out
  } kind;
  std::string subject;
  std::string message;             // a full sentence for the user
  std::vector<std::string> nodes;  // where

  bool blocks() const { return kind != Kind::FoldedBatchNorm && kind != Kind::LostParameter; }
};

struct ImportReport {
  std::vector<Obstacle> obstacles;  // in the order they were met, one a subject

  bool blocked() const;
  // All blocking obstacles in one line.
  std::string summary() const;
};

// As far as the model can be imported. Where something blocks, the graph has inputs in place of what an
// unsupported node would have produced, and lacks what depends on values of unknown type.
struct Imported {
  Graph graph;
  ImportReport report;
};
Imported survey_model(const Model& model, const ImportOptions& options);

// The whole model or the summary of what blocks it. States are named after initializers; only those that the
// graph reads exist.
Result<Graph> import_model(const Model& model, const ImportOptions& options);

}  // namespace plimsoll
