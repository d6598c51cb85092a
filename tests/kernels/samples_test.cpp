#include "tests/kernels/kernel_run.h"

// Every op of the registry on its own samples, in every dtype they come in.

using namespace plimsoll;
using namespace plimsoll::testing;

TEST_SUITE("ops") {
  TEST_CASE("every CPU kernel agrees with the reference on the op's samples") {
    const CpuKernelTable table;
    uint32_t seed = 1;
    for (const OpDef* op : all_ops()) {
      const std::vector<Sample> samples = op->samples();
      for (size_t i = 0; i < samples.size(); ++i) {
        INFO(op->name.str(), ", sample ", i);
        check_against_reference(table, KernelCase(op->name, samples[i].attrs, samples[i].operands, seed++));
      }
    }
  }
}
