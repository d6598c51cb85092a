#pragma once

// Turns an ONNX model into a Graph with static shapes, our ops and the model's names. All obstacles are collected, so
// that a user sees them at once.

#include "frontend/onnx/model.h"
#include "ir/graph.h"

#include <map>

namespace plimsoll {

struct ImportOptions {
  std::map<std::string, int64_t> dims;            // symbolic dimensions by name
  std::map<std::string, Tensor> constant_inputs;  // graph inputs with a fixed value
  // If set, batch norm uses batch statistics and dropout drops, whatever the exporter wrote. If not, every operator
  // does exactly what the ONNX specification says.
  bool training = true;
  bool freeze_norm = false;  // in training, batch norm uses its running statistics
};

struct Obstacle {
  enum class Kind : uint8_t {
    UnsupportedOp,    // subject: the operator
    UnboundDim,       // subject: the dimension; nodes: the inputs that have it
    DataDependent,    // subject: the graph input whose value decides a shape or setting
    BadNode,          // subject: the node
    BadModel,         // subject: the value or initializer
    FoldedBatchNorm,  // note: batch norms were folded into the weights of `nodes`
    LostParameter,    // note: the exporter left parameters out
  } kind;
  std::string subject;
  std::string message;             // a full sentence for the user
  std::vector<std::string> nodes;  // where

  bool blocks() const { return kind != Kind::FoldedBatchNorm && kind != Kind::LostParameter; }
};

struct ImportReport {
  std::vector<Obstacle> obstacles;  // in the order of discovery, one per subject

  bool blocked() const;
  // Returns all blocking obstacles in one line.
  std::string summary() const;
};

// Imports as much of the model as possible. In place of the results of an unsupported node the graph has inputs; nodes
// that depend on values of unknown type are left out.
struct Imported {
  Graph graph;
  ImportReport report;
};
Imported survey_model(const Model& model, const ImportOptions& options);

// Imports the whole model, or fails with a summary of all obstacles. States have the names of initializers; only states
// that the graph reads exist.
Result<Graph> import_model(const Model& model, const ImportOptions& options);

}  // namespace plimsoll
