#include "frontend/inspect/html_charts.h"

#include "frontend/inspect/text_table.h"
#include "ir/op_def.h"
#include "ir/plan/timeline.h"
#include "ir/support/units.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace plimsoll {
namespace {

constexpr double left_margin = 76, right_margin = 14, top_margin = 14, bottom_margin = 28;

// Maps numbers to positions in a drawing of `width` x `height`, with margins for the axes.
struct Frame {
  double width, height, low_x, high_x, low_y, high_y;

  double x(double value) const {
    return left_margin + (value - low_x) / std::max(high_x - low_x, 1e-9) * (width - left_margin - right_margin);
  }
  double y(double value) const {
    return height - bottom_margin -
           (value - low_y) / std::max(high_y - low_y, 1e-9) * (height - top_margin - bottom_margin);
  }
};

llvm::format_object<double> number(double value) { return llvm::format("%.4g", value); }

void open_svg(llvm::raw_ostream& out, const Frame& frame, llvm::StringRef title) {
  out << "<svg viewBox='0 0 " << number(frame.width) << " " << number(frame.height) << "' role='img'><title>" << title
      << "</title>\n";
}

void text(llvm::raw_ostream& out, double x, double y, llvm::StringRef anchor, llvm::StringRef words) {
  out << "<text x='" << number(x) << "' y='" << number(y) << "' text-anchor='" << anchor << "'>";
  llvm::printHTMLEscaped(words, out);
  out << "</text>\n";
}

void line(llvm::raw_ostream& out, llvm::StringRef style, double x1, double y1, double x2, double y2) {
  out << "<line class='" << style << "' x1='" << number(x1) << "' y1='" << number(y1) << "' x2='" << number(x2)
      << "' y2='" << number(y2) << "'/>\n";
}

// Returns the largest 1, 2 or 5 times a power of `base` that divides `range` into at least four steps.
double tick_step(double range, double base) {
  double step = std::pow(base, std::floor(std::log(range / 4) / std::log(base)));
  for (double factor : {5.0, 2.0})
    if (step * factor * 4 <= range) return step * factor;
  return step;
}

struct Interval {
  double start_us, end_us;
};

// In the order of their starts; of one phase, or of all.
std::vector<Interval> busy_intervals(const PlanFunction& function, const Timeline& timeline, Engine engine,
                                     std::optional<Phase> phase = std::nullopt) {
  std::vector<Interval> busy;
  for (size_t i = 0; i < function.instructions.size(); ++i) {
    const Instruction& instruction = function.instructions[i];
    if (get_op(instruction.op).engine != engine || instruction.phase != phase.value_or(instruction.phase)) continue;
    if (timeline.end_us[i] > timeline.start_us[i]) busy.push_back({timeline.start_us[i], timeline.end_us[i]});
  }
  llvm::sort(busy, [](const Interval& a, const Interval& b) { return a.start_us < b.start_us; });
  return busy;
}

// Neighbours with a gap too small to be seen are one.
std::vector<Interval> joined_below(llvm::ArrayRef<Interval> intervals, double gap_us) {
  std::vector<Interval> joined;
  for (const Interval& each : intervals)
    if (!joined.empty() && each.start_us - joined.back().end_us < gap_us)
      joined.back().end_us = std::max(joined.back().end_us, each.end_us);
    else
      joined.push_back(each);
  return joined;
}

}  // namespace

void draw_frontier_svg(llvm::raw_ostream& out, llvm::ArrayRef<FrontierRow> frontier, const Plan& plan) {
  auto needs = static_cast<double>(plan.promised_bytes());
  Frame frame{960, 260, needs, needs, 0, plan.predicted_step_us};
  for (const FrontierRow& row : frontier) {
    frame.low_x = std::min(frame.low_x, static_cast<double>(row.needs_bytes));
    frame.high_x = std::max(frame.high_x, static_cast<double>(row.needs_bytes));
    frame.high_y = std::max(frame.high_y, row.step_us);
  }
  frame.high_y *= 1.1;
  open_svg(out, frame, "predicted time per step against the bytes needed");
  double step = tick_step(frame.high_y, 10);
  for (double us = 0; us <= frame.high_y; us += step) {
    line(out, "line", left_margin, frame.y(us), frame.width - right_margin, frame.y(us));
    text(out, left_margin - 8, frame.y(us) + 4, "end", us == 0 ? "0" : format_us(us));
  }
  for (int tick = 0; tick <= 4; ++tick) {
    double bytes = frame.low_x + (frame.high_x - frame.low_x) * tick / 4;
    text(out, frame.x(bytes), frame.height - 8,
         tick == 0   ? "start"
         : tick == 4 ? "end"
                     : "middle",
         format_bytes(static_cast<int64_t>(bytes)));
  }
  std::string points;
  llvm::raw_string_ostream list(points);
  for (const FrontierRow& row : frontier)
    list << number(frame.x(static_cast<double>(row.needs_bytes))) << "," << number(frame.y(row.step_us)) << " ";
  out << "<polyline class='frontier' points='" << list.str() << "'/>\n";
  for (const FrontierRow& row : frontier)
    out << "<circle class='point' r='4' cx='" << number(frame.x(static_cast<double>(row.needs_bytes))) << "' cy='"
        << number(frame.y(row.step_us)) << "'><title>" << format_bytes(row.needs_bytes) << ", "
        << format_us(row.step_us) << ", " << row.with << "</title></circle>\n";
  out << "<circle class='mark' r='8' cx='" << number(frame.x(needs)) << "' cy='"
      << number(frame.y(plan.predicted_step_us)) << "'><title>this plan</title></circle>\n</svg>\n";
}

namespace {

// Intervals of one lane that are drawn alike.
struct LanePart {
  std::string style, title;
  std::vector<Interval> busy;
};
struct Lane {
  std::string name;
  std::vector<LanePart> parts;
};

Lane computing_lane(const Plan& stage, const Timeline& timeline) {
  const PlanFunction& function = stage.functions.front();
  if (stage.pipeline.schedule.empty())
    return {"computing", {{"c0", "computing", busy_intervals(function, timeline, Engine::Compute)}}};
  Lane lane{"stage " + std::to_string(stage.stage), {}};
  for (Phase phase : {Phase::Forward, Phase::Backward, Phase::Update})
    lane.parts.push_back({phase == Phase::Forward ? "c0" : "c0 pale", phase_name(phase).str(),
                          busy_intervals(function, timeline, Engine::Compute, phase)});
  return lane;
}

std::vector<Lane> lanes_of(const Plan& stage, const Timeline& timeline) {
  std::vector<Lane> lanes{computing_lane(stage, timeline)};
  constexpr Engine engines[] = {Engine::Ranks, Engine::ToHost, Engine::ToDevice};
  constexpr llvm::StringLiteral names[] = {"ranks", "to host", "to device"}, styles[] = {"c1", "c3", "c6"};
  for (size_t i = 0; i < std::size(engines); ++i)
    lanes.push_back(
        {names[i].str(),
         {{styles[i].str(), names[i].str(), busy_intervals(stage.functions.front(), timeline, engines[i])}}});
  llvm::erase_if(lanes, [](const Lane& lane) {
    return llvm::all_of(lane.parts, [](const LanePart& part) { return part.busy.empty(); });
  });
  return lanes;
}

}  // namespace

void draw_timeline_svg(llvm::raw_ostream& out, const Plan& plan) {
  const std::vector<Timeline> timelines = predict_timelines(plan, 0);
  std::vector<Lane> lanes;
  double total_us = 0;
  for (const auto& [stage, timeline] : llvm::zip(plan.stages(), timelines)) {
    llvm::append_range(lanes, lanes_of(*stage, timeline));
    total_us = std::max(total_us, timeline.total_us);
  }
  constexpr double lane_height = 30;
  Frame frame{960, lane_height * static_cast<double>(lanes.size()) + top_margin + bottom_margin, 0, total_us, 0, 1};
  open_svg(out, frame, "what runs when");
  double y = top_margin;
  for (const Lane& lane : lanes) {
    text(out, left_margin - 8, y + lane_height / 2, "end", lane.name);
    for (const LanePart& part : lane.parts) {
      if (part.busy.empty()) continue;
      out << "<path class='" << part.style << "' d='";
      for (const Interval& each : joined_below(part.busy, total_us / (frame.width - left_margin)))
        out << "M" << number(frame.x(each.start_us)) << " " << number(y) << "H" << number(frame.x(each.end_us)) << "v"
            << number(lane_height - 8) << "H" << number(frame.x(each.start_us)) << "Z";
      out << "'><title>" << part.title << "</title></path>\n";
    }
    y += lane_height;
  }
  for (double share : {0.0, 0.5, 1.0})
    text(out, frame.x(share * total_us), frame.height - 8,
         share == 0   ? "start"
         : share == 1 ? "end"
                      : "middle",
         share == 0 ? "0" : format_us(share * total_us));
  out << "</svg>\n";
}

}  // namespace plimsoll
