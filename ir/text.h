#pragma once

// The text form of graphs and programs, described in docs/text_form.md. Printing what was parsed gives the
// same text again, so text is as good as the graph itself: in tests, in dumps, in reproducers.

#include "ir/graph.h"

#include "llvm/Support/raw_ostream.h"

namespace plimsoll {

struct PrintOptions {
  bool origins = false;         // where nodes come from in the model, as ` at=#n` and a list at the end
  int64_t largest_tensor = -1;  // constants with more elements are elided, which does not parse; -1: none are
};

void print_graph(llvm::raw_ostream& out, const Graph& graph, const PrintOptions& options = {});
void print_program(llvm::raw_ostream& out, const Program& program, const PrintOptions& options = {});
void print_node(llvm::raw_ostream& out, const Graph& graph, NodeId node, const PrintOptions& options = {});
void print_attr(llvm::raw_ostream& out, const Attr& attr, const PrintOptions& options = {});
std::string to_text(const Graph& graph, const PrintOptions& options = {});
std::string to_text(const Program& program, const PrintOptions& options = {});
std::string to_text(const Attrs& attrs);  // "{axis=1, sizes=[2,2]}"; empty when there are none

// Errors start with "file:line:column: " (without "file:" when there is no file name).
Result<Graph> parse_graph(llvm::StringRef text, llvm::StringRef file = "");
Result<Program> parse_program(llvm::StringRef text, llvm::StringRef file = "");

}  // namespace plimsoll
