#pragma once

// What a model does with the numbers of an integer input. Readers of data fill and check the input by it.

#include <cstdint>
#include <optional>
#include <string>

namespace plimsoll {

// Its elements name rows of a table or classes of the loss.
struct IndexInput {
  std::string name;
  int64_t count = 0;      // of rows or classes; elements are below it
  bool is_token = false;  // it picks rows of a table
  bool is_label = false;  // the loss compares predictions with it
  // Of labels of [samples, time]: the loss compares the prediction at position t with the label at t + shift. None:
  // the graph does not show it.
  std::optional<int64_t> shift;
  std::optional<int64_t> ignored = std::nullopt;  // of labels: elements of this value count nothing in the loss
  friend bool operator==(const IndexInput&, const IndexInput&) = default;
};

}  // namespace plimsoll
