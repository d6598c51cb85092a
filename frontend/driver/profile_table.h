#pragma once

// Measured times of a step by op and kernel, beside what was predicted and what the device's ceilings allow.

#include "frontend/driver/commands.h"
#include "ir/plan/plan.h"

#include <map>

namespace plimsoll {

class ProfileTable {
 public:
  explicit ProfileTable(const Plan& plan) : plan_(plan) {}

  // Microseconds of one call of a function, by instruction, as a step launches them.
  void add(size_t function, llvm::ArrayRef<double> times);
  // All rows, the longest first; then the ten that are furthest above their roofline, with what limits each.
  void print(Console& console) const;

 private:
  // Sums over all instructions of a step with the same op and kernel. Each accumulated micro-batch counts.
  struct Row {
    int64_t count = 0;
    double measured_us = 0, predicted_us = 0, flops = 0, bytes = 0;
    // Roofline, what memory, the matrix units and other units take alone, and what launches take beside.
    double roofline_us = 0, memory_us = 0, matrix_us = 0, vector_us = 0, launch_us = 0;

    Row& operator+=(const Row& other);
    double above_us() const { return measured_us - roofline_us; }
  };
  using NamedRow = std::pair<std::string, Row>;

  void print_all(std::vector<NamedRow> rows, Console& console) const;
  void print_gaps(std::vector<NamedRow> rows, Console& console) const;
  static std::string limit_of(const Row& row);

  const Plan& plan_;
  std::map<std::string, Row> rows_;  // by "op/kernel"
};

}  // namespace plimsoll
