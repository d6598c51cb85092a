#include "ir/plan/serialize.h"

#include "ir/plan/plan.pb.h"
#include "tests/ir/plan/sample_plan.h"

#include "llvm/Support/CRC.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>
#include <random>

namespace plimsoll {
namespace {

using namespace testing;

std::string failure_text(Result<Plan> plan) { return plan ? "" : take_diag(plan.takeError()).text(); }

TEST_SUITE("unit") {
  TEST_CASE("plan file: bytes come back as the same bytes") {
    Plan plan = sample_plan_with_window();
    plan.functions[0].instructions[2].attrs = {
        {"axis", int64_t{1}},          {"eps", 1e-5},
        {"mode", std::string("edge")}, {"perm", Ints{1, 0}},
        {"scales", Floats{0.5, 2}},    {"none", Ints{}},
        {"to", DType::BF16},           {"value", std::make_shared<const Tensor>(Tensor::of_ints({1, 2, 3}))}};
    plan.functions[0].instructions[2].operands[1] = -1;
    plan.functions[0].instructions[3].done = 5;
    plan.training.asked_loss = "ce + 0.5*mse:a:b";
    plan.training.groups = {{"^embed", 0.1, std::nullopt, OptimizerKind::AdamW, 0},
                            {"norms-and-biases", std::nullopt, 0.0, std::nullopt, 2}};
    plan.training.index_inputs = {{"ids", 9, true, false, std::nullopt}, {"labels", 7, false, true, -2}};
    plan.slots[n].part_of = b;
    Result<std::string> bytes = plan_to_bytes(plan);
    REQUIRE(static_cast<bool>(bytes));
    Result<Plan> back = plan_from_bytes(*bytes);
    REQUIRE(static_cast<bool>(back));
    CHECK(back->functions[0].instructions[2].attrs == plan.functions[0].instructions[2].attrs);
    CHECK(back->functions[0].instructions[2].operands[1] == -1);
    CHECK(back->functions[0].instructions[2].done == -1);
    CHECK(back->functions[0].instructions[3].done == 5);
    CHECK(back->slots[b_square].view_of == b);
    CHECK(back->arenas[0].page_bytes == 128);
    REQUIRE(back->arenas[0].windows.size() == 1);
    CHECK(back->arenas[0].windows[0].offset == windows_begin);
    CHECK(back->arenas[0].windows[0].pages == std::vector<int64_t>{7, 6});
    CHECK(back->slots[n].part_of == b);
    CHECK(back->training.asked_loss == plan.training.asked_loss);
    CHECK(back->training.groups == plan.training.groups);
    CHECK(back->training.index_inputs == plan.training.index_inputs);
    Result<std::string> again = plan_to_bytes(*back);
    REQUIRE(static_cast<bool>(again));
    CHECK(*again == *bytes);
  }

  TEST_CASE("plan file: other formats and other files are refused in words") {
    std::string bytes = llvm::cantFail(plan_to_bytes(sample_plan()));
    std::string newer = bytes;
    REQUIRE(newer[15] == '\x10');  // the tag of `format`
    newer[16] = 7;
    CHECK(failure_text(plan_from_bytes(newer)).find("plan format 7 is newer than this program's 3") == 0);
    newer[16] = 1;
    CHECK(failure_text(plan_from_bytes(newer)).find("plan format 1 is older than this program's 3") == 0);
    CHECK(failure_text(plan_from_bytes("")) == "not a plimsoll plan");
    CHECK(failure_text(plan_from_bytes("\x08\x07\x12\x07pytorch")) == "not a plimsoll plan");
    CHECK(failure_text(plan_from_bytes(llvm::StringRef(bytes).drop_back(9))) == "the plan is damaged or cut short");
  }

  TEST_CASE("plan file: damage is noticed, wherever it is") {
    std::string bytes = llvm::cantFail(plan_to_bytes(sample_plan()));
    std::mt19937 random(1);
    for (int i = 0; i < 500; ++i) {
      std::string damaged = bytes;
      size_t at = random() % bytes.size();
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
      CHECK(!failure_text(plan_from_bytes(damaged)).empty());
    }
  }

  TEST_CASE("plan file: a constant whose dimensions overflow before one is zero is refused") {
    proto::PlanFile file;
    REQUIRE(file.ParseFromString(llvm::cantFail(plan_to_bytes(sample_plan()))));
    proto::Plan plan;
    REQUIRE(plan.ParseFromString(file.plan()));
    proto::Tensor& tensor = *plan.add_constants()->mutable_value();
    tensor.set_dtype("bf16");
    for (int64_t dim : {int64_t{1} << 60, int64_t{16}, int64_t{0}}) tensor.add_shape(dim);
    file.set_plan(plan.SerializeAsString());
    file.set_crc32(llvm::crc32(llvm::arrayRefFromStringRef(file.plan())));
    CHECK(failure_text(plan_from_bytes(file.SerializeAsString())) ==
          "plan: a constant has 0 bytes, its type another number");
  }

  TEST_CASE("plan file: saved at once or not at all") {
    llvm::SmallString<128> folder;
    REQUIRE_FALSE(llvm::sys::fs::createUniqueDirectory("plimsoll-plan", folder));
    std::string path = (folder + "/a.plan").str();
    llvm::cantFail(save_plan(sample_plan(), path));
    CHECK(failure_text(load_plan(path)) == "");
    Plan broken = sample_plan();
    broken.slots[h].offset = -1;
    Status status = save_plan(broken, path);
    CHECK(take_diag(std::move(status)).text().find("bytes out of range") != std::string::npos);
    CHECK(failure_text(load_plan(path)) == "");
    Status nowhere = save_plan(sample_plan(), (folder + "/missing/a.plan").str());
    CHECK(take_diag(std::move(nowhere)).fault() == Fault::System);
    CHECK(failure_text(load_plan((folder + "/b.plan").str())).find("No such file") != std::string::npos);
    llvm::sys::fs::remove_directories(folder);
  }
}

}  // namespace
}  // namespace plimsoll
