#pragma once

#include <string>

namespace plimsoll {

// Where the records of a run go; empty: nowhere.
struct LogTargets {
  std::string json_lines, csv;  // files
  std::string events;           // a folder for TensorBoard
  std::string folder;           // of the run, for `watch`: frontend/log/log_folder.h
};

}  // namespace plimsoll
