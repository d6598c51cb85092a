#include "frontend/inspect/pickle.h"
#include "frontend/inspect/print.h"
#include "ir/plan/summary.h"
#include "ir/plan/windows.h"
#include "ir/support/printable.h"

#include "llvm/ADT/STLExtras.h"

// A snapshot as PyTorch's memory_viz page reads it: https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py. An
// arena is a segment, and a value of the plan a block that is allocated before its first and freed behind its last
// instruction. Device 0 is the device's memory, device 1 the host's.

namespace plimsoll {
namespace {

// Addresses are this far above offsets: the page takes 0 for no address.
constexpr int64_t base_address = int64_t{1} << 32;

class Snapshot {
 public:
  Snapshot(llvm::raw_ostream& out, const Plan& plan) : to_(out), plan_(plan), ends_(ends_of_bytes(plan)) {}

  void print() {
    to_.dictionary([&] {
      to_.attribute_list("segments", [&] {
        for (size_t device = 0; device < plan_.arenas.size(); ++device) segment(device);
      });
      to_.attribute_list("device_traces", [&] {
        for (const Arena& arena : plan_.arenas) {
          to_.entry();
          to_.list([&] { trace(arena); });
        }
      });
    });
    to_.finish();
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[static_cast<size_t>(id)]; }

  // Values with bytes of their own in the arena.
  std::vector<SlotId> slots_in(const Arena& arena) const {
    std::vector<SlotId> ids;
    for (SlotId id = 0; id < static_cast<SlotId>(plan_.slots.size()); ++id)
      if (slot(id).space == arena.space && slot(id).bytes > 0 && adds_bytes(plan_, slot(id))) ids.push_back(id);
    return ids;
  }

  // The state at the end of the step: what is persistent is allocated.
  void segment(size_t device) {
    const Arena& arena = plan_.arenas[device];
    std::vector<SlotId> persistent = slots_in(arena);
    llvm::erase_if(persistent, [&](SlotId id) { return slot(id).function >= 0; });
    llvm::sort(persistent, [&](SlotId a, SlotId b) { return slot(a).offset < slot(b).offset; });
    to_.entry();
    to_.dictionary([&] {
      to_.attribute("device", static_cast<int64_t>(device));
      to_.attribute("address", base_address);
      to_.attribute("total_size", arena.bytes);
      to_.attribute("stream", 0);
      to_.attribute("segment_type", "large");
      to_.attribute_list("blocks", [&] {
        int64_t end = 0;
        for (SlotId id : persistent) {
          free_block(end, slot(id).offset);
          block(id);
          end = slot(id).offset + slot(id).bytes;
        }
        free_block(end, arena.bytes);
      });
    });
  }

  void free_block(int64_t from, int64_t to) {
    if (from >= to) return;
    to_.entry();
    to_.dictionary([&] {
      to_.attribute("size", to - from);
      to_.attribute("requested_size", 0);
      to_.attribute("state", "inactive");
      to_.attribute_list("frames", [] {});
    });
  }

  void block(SlotId id) {
    to_.entry();
    to_.dictionary([&] {
      to_.attribute("size", slot(id).bytes);
      to_.attribute("requested_size", slot(id).bytes);
      to_.attribute("state", "active_allocated");
      to_.attribute_list("frames", [&] { frames(id); });
    });
  }

  void trace(const Arena& arena) {
    // The page fails where no event is of the category "unknown".
    event("segment_alloc", 0, arena.bytes, "unknown", [&] { frame(plan_.model, 0, "one allocation"); });
    const std::vector<SlotId> ids = slots_in(arena);
    for (SlotId id : ids)
      if (slot(id).function < 0) value_event("alloc", id);
    for (size_t f = 0; f < plan_.functions.size(); ++f)
      if (plan_.calls_per_step(f) > 0) function(static_cast<int32_t>(f), ids);
  }

  void function(int32_t f, llvm::ArrayRef<SlotId> ids) {
    const size_t end = plan_.functions[static_cast<size_t>(f)].instructions.size();
    std::vector<std::vector<SlotId>> first(end), freed(end + 1);  // by instruction: before it
    for (SlotId id : ids) {
      if (slot(id).function != f) continue;
      first[static_cast<size_t>(slot(id).first)].push_back(id);
      freed[static_cast<size_t>(ends_[static_cast<size_t>(id)])].push_back(id);
    }
    for (size_t i = 0; i <= end; ++i) {
      for (SlotId id : freed[i])
        for (llvm::StringRef action : {"free_requested", "free_completed"}) value_event(action, id);
      if (i == end) break;
      for (SlotId id : first[i]) value_event("alloc", id);
    }
  }

  void event(llvm::StringRef action, int64_t offset, int64_t bytes, llvm::StringRef category,
             llvm::function_ref<void()> write_frames) {
    to_.entry();
    to_.dictionary([&] {
      to_.attribute("action", action);
      to_.attribute("addr", base_address + offset);
      to_.attribute("size", bytes);
      to_.attribute("stream", 0);
      to_.attribute("category", category);
      to_.attribute_list("frames", write_frames);
    });
  }

  void value_event(llvm::StringRef action, SlotId id) {
    const Slot& own = slot(id);
    for_each_run(plan_.arenas[static_cast<size_t>(own.space)], own.offset, own.offset + own.bytes,
                 [&](int64_t from, int64_t to) {
                   event(action, from, to - from, category_name(own.category), [&] { frames(id); });
                 });
  }

  // The page shows a frame as "filename:line:name": the value, then where it comes from, then why it lies there.
  void frames(SlotId id) {
    const Slot& own = slot(id);
    frame("%" + own.name, own.first, to_string(own.type) + ", " + category_name(own.category).str());
    if (own.function >= 0) {
      const PlanFunction& function = plan_.functions[static_cast<size_t>(own.function)];
      const Instruction& writer = function.instructions[static_cast<size_t>(own.first)];
      if (llvm::is_contained(writer.results, id))
        frame(function.name, own.first, writer.op + ", kernel " + writer.kernel);
    }
    if (own.origin >= 0) {
      const Origin& origin = plan_.origins[static_cast<size_t>(own.origin)];
      const auto [file, rest] = llvm::StringRef(origin.source).split(':');
      int64_t line = 0;
      rest.split(':').first.getAsInteger(10, line);
      frame(file.empty() ? origin.node : file.str(), line, origin.module.empty() ? origin.op : origin.module);
    }
    if (!own.reason.empty()) frame("reason", 0, own.reason);
  }

  void frame(llvm::StringRef file, int64_t line, llvm::StringRef text) {
    to_.entry();
    to_.dictionary([&] {
      to_.attribute("filename", printable(file));
      to_.attribute("line", line);
      to_.attribute("name", printable(text));
    });
  }

  PickleStream to_;
  const Plan& plan_;
  const std::vector<int32_t> ends_;  // by slot
};

}  // namespace

void print_memory_viz(llvm::raw_ostream& out, const Plan& plan) { Snapshot(out, plan).print(); }

}  // namespace plimsoll
