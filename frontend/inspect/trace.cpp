#include "frontend/inspect/print.h"
#include "ir/op_def.h"
#include "ir/plan/summary.h"
#include "ir/plan/timeline.h"

#include "llvm/Support/JSON.h"

// A step in the Trace Event Format (JSON) that Perfetto and Chrome read: a process per stage of the pipeline, a track
// per engine, and the bytes of each memory as a counter. Functions follow each other, each of them once.

namespace plimsoll {
namespace {

namespace json = llvm::json;

// The track above the engines, which names the functions.
constexpr int functions_track = 0;
constexpr llvm::StringLiteral engine_names[engine_count] = {"computing", "to host", "to device", "ranks"};

int track_of(Engine engine) { return static_cast<int>(engine) + 1; }

class Trace {
 public:
  Trace(llvm::raw_ostream& out, const Plan& plan) : to_(out), plan_(plan) {}

  void print() {
    to_.object([&] {
      to_.attribute("displayTimeUnit", "ms");
      to_.attributeObject("otherData", [&] { to_.attribute("model", plan_.model); });
      to_.attributeArray("traceEvents", [&] {
        for (const Plan* stage : plan_.stages()) name_tracks(*stage);
        double start_us = 0;
        for (size_t f = 0; f < plan_.functions.size(); ++f)
          if (plan_.calls_per_step(f) > 0) start_us += function(f, start_us);
      });
    });
  }

 private:
  void name(llvm::StringRef what, const Plan& stage, int track, llvm::StringRef text) {
    to_.object([&] {
      to_.attribute("ph", "M");
      to_.attribute("name", what);
      to_.attribute("pid", stage.stage);
      to_.attribute("tid", track);
      to_.attributeObject("args", [&] { to_.attribute("name", text); });
    });
  }

  void name_tracks(const Plan& stage) {
    const std::string prefix = plan_.later_stages.empty() ? "" : "stage " + std::to_string(stage.stage) + ", ";
    name("process_name", stage, functions_track, prefix + stage.device.name);
    name("thread_name", stage, functions_track, "functions");
    llvm::SmallVector<bool, engine_count> used(engine_count);
    for (const PlanFunction& each : stage.functions)
      for (const Instruction& instruction : each.instructions)
        used[static_cast<size_t>(get_op(instruction.op).engine)] = true;
    for (size_t engine = 0; engine < engine_count; ++engine)
      if (used[engine]) name("thread_name", stage, track_of(static_cast<Engine>(engine)), engine_names[engine]);
  }

  // Returns its duration, that of the slowest stage.
  double function(size_t f, double start_us) {
    double total_us = 0;
    const std::vector<Timeline> timelines = predict_timelines(plan_, f);
    for (const auto& [stage, timeline] : llvm::zip(plan_.stages(), timelines)) {
      whole_function(*stage, f, start_us, timeline.total_us);
      for (size_t i = 0; i < stage->functions[f].instructions.size(); ++i)
        instruction(*stage, f, i, start_us, timeline);
      memory(*stage, f, start_us, timeline);
      total_us = std::max(total_us, timeline.total_us);
    }
    return total_us;
  }

  void slice(const Plan& stage, int track, llvm::StringRef title, llvm::StringRef category, double start_us,
             double us) {
    to_.attribute("ph", "X");
    to_.attribute("name", title);
    to_.attribute("cat", category);
    to_.attribute("pid", stage.stage);
    to_.attribute("tid", track);
    to_.attribute("ts", start_us);
    to_.attribute("dur", us);
  }

  void whole_function(const Plan& stage, size_t f, double start_us, double us) {
    const int64_t calls = stage.calls_per_step(f);
    const std::string times = calls == 1 ? "" : " (" + std::to_string(calls) + " times in a step)";
    to_.object([&] { slice(stage, functions_track, stage.functions[f].name + times, "function", start_us, us); });
  }

  void instruction(const Plan& stage, size_t f, size_t i, double start_us, const Timeline& timeline) {
    const Instruction& each = stage.functions[f].instructions[i];
    const double us = timeline.end_us[i] - timeline.start_us[i];
    if (us <= 0) return;  // a view
    to_.object([&] {
      slice(stage, track_of(get_op(each.op).engine), each.op, phase_name(each.phase), start_us + timeline.start_us[i],
            us);
      to_.attributeObject("args", [&] { details(stage, i, each); });
    });
  }

  void details(const Plan& stage, size_t i, const Instruction& each) {
    to_.attribute("instruction", static_cast<int64_t>(i));
    to_.attribute("kernel", each.kernel);
    to_.attribute("results", names(stage, each.results));
    to_.attribute("operands", names(stage, each.operands));
    to_.attribute("flops", each.flops);
    to_.attribute("bytes_moved", each.bytes_moved);
    if (!each.reason.empty()) to_.attribute("reason", each.reason);
    if (each.origin < 0) return;
    const Origin& origin = stage.origins[static_cast<size_t>(each.origin)];
    to_.attribute("node", origin.node);
    if (!origin.module.empty()) to_.attribute("module", origin.module);
    if (!origin.source.empty()) to_.attribute("source", origin.source);
  }

  static std::string names(const Plan& stage, llvm::ArrayRef<SlotId> slots) {
    std::string text;
    for (SlotId slot : slots)
      if (slot >= 0) text += (text.empty() ? "%" : ", %") + stage.slots[static_cast<size_t>(slot)].name;
    return text;
  }

  // A value per instruction that computes, in the order of their times.
  void memory(const Plan& stage, size_t f, double start_us, const Timeline& timeline) {
    for (const Arena& arena : stage.arenas) {
      const SpaceSummary summary = summarize_space(stage, arena.space);
      for (size_t i = 0; i < summary.live[f].size(); ++i) {
        if (get_op(stage.functions[f].instructions[i].op).engine != Engine::Compute) continue;
        to_.object([&] {
          to_.attribute("ph", "C");
          to_.attribute("name", (space_name(arena.space) + " memory, bytes").str());
          to_.attribute("pid", stage.stage);
          to_.attribute("ts", start_us + timeline.start_us[i]);
          to_.attributeObject("args", [&] { categories(summary, summary.live[f][i]); });
        });
      }
    }
  }

  // Those that the plan has at any time: a counter has the same series everywhere.
  void categories(const SpaceSummary& summary, const CategoryBytes& bytes) {
    for (int c = 0; c < category_count; ++c)
      if (const auto category = static_cast<Category>(c); summary.largest[category] > 0)
        to_.attribute(category_name(category), bytes[category]);
  }

  json::OStream to_;
  const Plan& plan_;
};

}  // namespace

void print_trace(llvm::raw_ostream& out, const Plan& plan) {
  Trace(out, plan).print();
  out << "\n";
}

}  // namespace plimsoll
