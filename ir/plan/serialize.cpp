#include "ir/plan/serialize.h"

#include "ir/plan/plan.pb.h"
#include "ir/plan/proto_convert.h"
#include "ir/plan/validate.h"
#include "ir/support/output_file.h"
#include "ir/support/read_file.h"
#include "ir/support/strings.h"

#include "llvm/Support/CRC.h"
#include "llvm/Support/raw_ostream.h"

#include <climits>

namespace plimsoll {
namespace {

constexpr llvm::StringLiteral file_kind = "plimsoll plan";
// The first field of a PlanFile: its tag, its length, its text.
constexpr llvm::StringLiteral file_start = "\x0a\x0dplimsoll plan";

}  // namespace

Result<std::string> plan_to_bytes(const Plan& plan) {
  if (Status s = validate_plan(plan)) return s;
  proto::Plan message;
  plan_to_proto(plan, message);
  if (message.ByteSizeLong() > INT_MAX / 2)
    return model_error("the plan takes " + llvm::Twine(message.ByteSizeLong()) +
                       " bytes, a plan file holds at most 1 GiB; large constants should be weights");
  proto::PlanFile file;
  file.set_kind(file_kind.str());
  file.set_format(plan_format_version);
  file.set_plan(message.SerializeAsString());
  file.set_crc32(llvm::crc32(llvm::arrayRefFromStringRef(file.plan())));
  return file.SerializeAsString();
}

Result<Plan> plan_from_bytes(llvm::StringRef bytes) {
  if (!starts_with(bytes, file_start)) return model_error("not a plimsoll plan");
  proto::PlanFile file;
  bool whole = bytes.size() <= INT_MAX && file.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  if (file.format() > plan_format_version)
    return model_error("plan format " + llvm::Twine(file.format()) + " is newer than this program's " +
                       llvm::Twine(plan_format_version) + "; compile the model again or use a newer plimsoll");
  if (file.format() > 0 && file.format() < plan_format_version)
    return model_error("plan format " + llvm::Twine(file.format()) + " is older than this program's " +
                       llvm::Twine(plan_format_version) + "; compile the model again or use an older plimsoll");
  if (!whole || file.format() == 0 || file.crc32() != llvm::crc32(llvm::arrayRefFromStringRef(file.plan())))
    return model_error("the plan is damaged or cut short");
  proto::Plan message;
  if (!message.ParseFromString(file.plan())) return model_error("the plan is damaged");
  Result<Plan> plan = plan_from_proto(message);
  if (!plan) return plan.takeError();
  if (Status s = validate_plan(*plan)) return s;
  return plan;
}

Status save_plan(const Plan& plan, llvm::StringRef path) {
  Result<std::string> bytes = plan_to_bytes(plan);
  if (!bytes) return in_context(path, bytes.takeError());
  return write_output_file(path, [&](llvm::raw_ostream& out) {
    out << *bytes;
    return Status::success();
  });
}

Result<Plan> load_plan(llvm::StringRef path) {
  Result<std::unique_ptr<llvm::MemoryBuffer>> file = read_file(path);
  if (!file) return file.takeError();
  Result<Plan> plan = plan_from_bytes((*file)->getBuffer());
  if (!plan) return in_context(path, plan.takeError());
  return plan;
}

}  // namespace plimsoll
