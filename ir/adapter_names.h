#pragma once

// The names of LoRA's matrices (Hu et al. 2021), those of PEFT's files: "base_model.model.", the path of the adapted
// module, and which matrix it is. Nothing else in a graph or a plan says that a state belongs to an adapter.

#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"

#include <array>
#include <optional>
#include <string>

namespace plimsoll {

// A is what an adapter's input meets first: [rank, inputs]. B is [outputs, rank]. Those of an embedding, whose inputs
// are its rows, change what they start from: A with zeros and B with N(0, 1).
// A magnitude (DoRA) has a number for each output: what the norm of the adapted weight's row is to be.
enum class AdapterMatrix : uint8_t { A, B, EmbeddingA, EmbeddingB, Magnitude };
inline constexpr std::array<llvm::StringLiteral, 5> adapter_suffixes{
    ".lora_A.weight", ".lora_B.weight", ".lora_embedding_A", ".lora_embedding_B", ".lora_magnitude_vector"};
inline constexpr llvm::StringLiteral adapter_prefix = "base_model.model.";

inline std::string adapter_weight_name(llvm::StringRef module, AdapterMatrix matrix) {
  return (adapter_prefix + module + adapter_suffixes[static_cast<size_t>(matrix)]).str();
}

// Which matrix of which module a name is of; none: it is no adapter's.
struct AdapterWeight {
  llvm::StringRef module;
  AdapterMatrix matrix;
  bool is_first() const { return matrix == AdapterMatrix::A || matrix == AdapterMatrix::EmbeddingA; }
  bool is_of_embedding() const { return matrix == AdapterMatrix::EmbeddingA || matrix == AdapterMatrix::EmbeddingB; }
};
inline std::optional<AdapterWeight> parse_adapter_weight(llvm::StringRef name) {
  if (!name.consume_front(adapter_prefix)) return std::nullopt;
  for (size_t i = 0; i < adapter_suffixes.size(); ++i)
    if (llvm::StringRef module = name; module.consume_back(adapter_suffixes[i]))
      return AdapterWeight{module, static_cast<AdapterMatrix>(i)};
  return std::nullopt;
}

// Names among the hyperparameters of a plan.
inline constexpr llvm::StringLiteral adapter_rank_number = "lora_rank", adapter_alpha_number = "lora_alpha",
                                     adapter_rslora_number = "lora_rslora", adapter_dropout_number = "lora_dropout",
                                     adapter_transposed_number = "lora_fan_in_fan_out";

// Of a module whose alpha is not that of the others.
inline std::string adapter_alpha_number_of(llvm::StringRef module) {
  return (adapter_alpha_number + ":" + module).str();
}

}  // namespace plimsoll
