#pragma once

#include <string>

namespace plimsoll {

// Where the records of a run go; empty: nowhere.
struct LogTargets {
  std::string json_lines, csv;  // files
  std::string events;           // a folder for TensorBoard
};

}  // namespace plimsoll
