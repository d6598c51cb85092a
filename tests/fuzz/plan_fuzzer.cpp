#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "tests/fuzz/file_of_bytes.h"

#include "ir/plan/plan.pb.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CRC.h"

// A plan's file. The checksum is made right, so that damage gets behind it.

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace plimsoll;
  proto::PlanFile file;
  file.set_kind("plimsoll plan");
  file.set_format(plan_format_version);
  file.set_plan(bytes, size);
  file.set_crc32(llvm::crc32(llvm::arrayRefFromStringRef(file.plan())));
  Result<Plan> plan = plan_from_bytes(file.SerializeAsString());
  if (!plan) return llvm::consumeError(plan.takeError()), 0;
  llvm::consumeError(check_plan(*plan));
  return 0;
}
