#include "frontend/inspect/text_table.h"
#include "ir/plan/summary.h"
#include "tests/ir/plan/sample_plan.h"

#include "llvm/Support/JSON.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using namespace testing;

template <typename Print>
std::string printed(Print print) {
  std::string text;
  llvm::raw_string_ostream out(text);
  print(out);
  return out.str();
}

bool holds(llvm::StringRef text, llvm::StringRef part) { return text.contains(part); }

TEST_SUITE("unit") {
  // The peak is at instruction 2, which writes b: w and table (persistent), h, a and b have 256 bytes each.
  TEST_CASE("plan summary: categories add up to the peak") {
    Plan plan = sample_plan();
    SpaceSummary summary = summarize_space(plan, MemorySpace::Device);
    CHECK(summary.peak_instruction == 2);
    CHECK(summary.at_peak.total() == plan.arenas[0].peak_live_bytes);
    CHECK(summary.at_peak[Category::Parameters] == 256);
    CHECK(summary.at_peak[Category::Temporary] == 512);
    CHECK(summary.at_peak[Category::Saved] == 256);
    CHECK(summary.at_peak[Category::Workspace] == 0);
    CHECK(summary.largest[Category::Workspace] == 256);
    // While exp(x) is written in place of x, the bytes count only for the result.
    CHECK(summary.live[0][1][Category::Input] == 0);
    CHECK(summary.packing_waste == doctest::Approx(0.2));
    CHECK(summarize_time(plan).by_phase_us[static_cast<size_t>(Phase::Forward)] == 6);
  }

  // b = add(h, a) has 768 bytes of its operands and result, as neg has with its workspace; persistent are 768 more.
  TEST_CASE("plan summary: the largest op bounds what any layout needs") {
    Plan plan = sample_plan();
    const LargestInstruction largest = largest_instruction(plan);
    CHECK(largest.instruction == 2);
    CHECK(largest.bytes == 768);
    CHECK(largest.least_bytes == 768 + plan.arenas[0].persistent_bytes + 4096);
    plan.slots[work].bytes = 512;
    CHECK(largest_instruction(plan).instruction == 3);
    CHECK(largest_instruction(plan).bytes == 1024);
  }

  TEST_CASE("plan report: keeps to its columns and names what fills the peak") {
    for (int columns : {72, 100, 140}) {
      std::string text = printed([&](auto& out) { print_report(out, sample_plan(), {columns, false}); });
      llvm::SmallVector<llvm::StringRef, 64> lines;
      llvm::StringRef(text).split(lines, '\n');
      for (llvm::StringRef line : lines) CHECK_MESSAGE(width_of(line) <= columns, line.str());
      CHECK(holds(text, "sample.onnx on a device for tests"));
      CHECK(holds(text, "needs 5.5 KiB of 8 KiB, 2.5 KiB to spare"));
      CHECK(holds(text, "reserve: program"));
      CHECK(holds(text, "bound by the largest op"));
      CHECK(holds(text, "%b "));
      CHECK(!holds(text, "\x1b["));
    }
    std::string colored = printed([&](auto& out) { print_report(out, sample_plan(), {100, true}); });
    CHECK(holds(colored, "\x1b[1m"));
  }

  TEST_CASE("plan html: one file with the numbers of the report, names escaped, nothing fetched") {
    Plan plan = sample_plan();
    plan.slots[b].name = "b<1>";
    const FrontierRow front[] = {{8192, 5632, 12, "", "plain"},
                                 {5120, 5000, 24, "", "recompute 1 value, +100.0 % time"}};
    std::string text = printed([&](auto& out) { print_plan_html(out, plan, {front}); });
    CHECK(holds(text, "Needs 5.5 KiB</b> of 8 KiB, 2.5 KiB to spare"));
    CHECK(holds(text, "reserve: program"));
    CHECK(holds(text, "<td>%b&lt;1&gt;</td><td class='n'>256 B</td>"));
    CHECK_FALSE(holds(text, "b<1>"));
    CHECK(llvm::StringRef(text).count("<svg") == 2);
    CHECK(holds(text, R"(["b\u003c1>","f32[64]",)"));
    CHECK(llvm::StringRef(text).count("<circle class='point'") == 2);
    CHECK(holds(text, "recompute 1 value, +100.0 % time"));
    for (llvm::StringRef fetched : {"http", "src=", "href=", "url(", "import "}) CHECK_FALSE(holds(text, fetched));
    plan.arenas[0].budget_bytes = 4096;
    CHECK(holds(printed([&](auto& out) { print_plan_html(out, plan); }), "the budget is 4 KiB, 1.5 KiB too small"));
  }

  TEST_CASE("plan html: the timeline of a pipeline has all its stages") {
    Plan plan = sample_plan();
    plan.mesh[MeshAxis::Stage] = 2;
    plan.pipeline = {4, "v"};
    Plan later = plan;
    later.stage = 1;
    plan.later_stages = {later};
    const std::string text = printed([&](auto& out) { print_plan_html(out, plan); });
    for (llvm::StringRef lane : {">stage 0<", ">stage 1<"}) CHECK(holds(text, lane));
    CHECK(llvm::StringRef(text).count("<title>backward<") == 2);
    CHECK(holds(text, "v with 4 micro-batches"));
  }

  TEST_CASE("plan json: has what docs/interfaces.md promises") {
    std::string text = printed([&](auto& out) { print_plan_json(out, sample_plan()); });
    llvm::json::Value json = llvm::cantFail(llvm::json::parse(text));
    const llvm::json::Object& top = *json.getAsObject();
    const llvm::json::Object& device = *top.getObject("memory")->getObject("device");
    CHECK(*device.getInteger("budget_bytes") == 8192);
    CHECK(*device.getInteger("promised_bytes") == 5632);
    CHECK(*device.getInteger("arena_bytes") == 1536);
    CHECK(*device.getInteger("peak_live_bytes") == 1280);
    CHECK(*device.getObject("largest_instruction")->getInteger("instruction") == 2);
    CHECK(*device.getObject("largest_instruction")->getInteger("least_bytes") == 5376);
    CHECK(device.getArray("reserves")->size() == 1);
    const llvm::json::Object& categories = *device.getObject("by_category");
    CHECK(*categories.getObject("at_peak")->getInteger("saved") == 256);
    CHECK(categories.getArray("over_time")->size() == 6);
    CHECK(*top.getObject("memory")->getObject("host")->getInteger("arena_bytes") == 0);
    CHECK(*top.getObject("time")->getNumber("predicted_step_us") == 12);
    CHECK(top.getArray("slots")->size() == slot_count);
    CHECK(top.getArray("instructions")->size() == 6);
    CHECK(top.getArray("decisions")->size() == 1);
  }

  TEST_CASE("plan why: tells a value's story") {
    auto why = [](llvm::StringRef name) {
      std::string text;
      llvm::raw_string_ostream out(text);
      Status status = print_why(out, sample_plan(), name);
      return status ? take_diag(std::move(status)).text() : out.str();
    };
    std::string text = why("%b");
    CHECK(holds(text, "/block/Add (Add)"));
    CHECK(holds(text, "model.py:7: return h + a"));
    CHECK(holds(text, "bytes 1,280 to 1,536 of the device arena"));
    CHECK(holds(text, "is            gradient of w"));
    CHECK(holds(text, "from 2 add that produces %b (forward)"));
    CHECK(holds(text, "3 neg that produces %n (backward)"));
    CHECK(holds(text, "saved for %w.next (sub)"));
    CHECK(holds(why("a"), "written over %x"));
    CHECK(holds(why("/block/Add"), "%b  f32[64]"));
    CHECK(why("w.nxt") == "no value or node is called \"w.nxt\"; similar: w.next");
  }

  TEST_CASE("plan text and diff: name what there is and what changed") {
    std::string text = printed([&](auto& out) { print_plan_text(out, sample_plan()); });
    CHECK(holds(text, "    1  %a : f32[64] @ 768 over %x = exp(%x) on plain, forward, 2.0 us"));
    CHECK(holds(text, "update %w <- %w.next"));
    Plan other = sample_plan();
    other.slots[h].name = "hidden";
    other.slots[b].category = Category::Temporary;
    text = printed([&](auto& out) { print_diff(out, sample_plan(), other); });
    CHECK(holds(text, "%hidden"));
    CHECK(holds(text, "%b  saved -> temporary"));
    CHECK(holds(text, left("saved", 28) + right("256 B", 14) + right("0 B", 14) + right("-256 B", 14)));
  }
}

}  // namespace
}  // namespace plimsoll
