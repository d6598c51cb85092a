#include "ir/plan/check.h"
#include "ir/plan/summary.h"
#include "tests/support/plans_of_ranks.h"
#include "tests/support/refused_plan.h"

#include <doctest/doctest.h>

// Plans of several ranks of which one thing was changed.

namespace plimsoll {
namespace {

using namespace testing;

TEST_SUITE("unit") {
  TEST_CASE("mutated plans of several ranks are rejected") {
    const Plan good = plan_for(2, 1, 1);
    auto mutated = [&](auto change, llvm::StringRef message) {
      Plan plan = good;
      change(plan);
      check_refused(plan, message);
    };
    auto find = [](Plan& plan, llvm::StringRef op) -> Instruction& {
      auto& all = plan.functions[0].instructions;
      auto found = llvm::find_if(all, [&](const Instruction& each) { return each.op == op; });
      REQUIRE(found != all.end());
      return *found;
    };
    mutated(
        [&](Plan& p) {
          for (Instruction& each : p.functions[0].instructions)
            if (each.op == "reduce_all") each.op = "neg", each.attrs = {}, each.done = -1;
        },
        "differs from rank to rank");
    mutated([&](Plan& p) { find(p, "reduce_all").attrs.set("ranks", int64_t{3}); },
            "is of 3 ranks, the mesh is data=2");
    mutated([&](Plan& p) { find(p, "reduce_pieces").attrs.set("axis", std::string("tensor")); }, "is of 2 ranks");
    mutated([&](Plan& p) { p.mesh[MeshAxis::Data] = 4; }, "the mesh is data=4");
    mutated(
        [&](Plan& p) {
          for (PlanState& state : p.states)
            if (!state.divisions.empty()) state.divisions[0].whole = {1 << 20};
        },
        "do not make");
    mutated(
        [&](Plan& p) {
          for (PlanState& state : p.states) state.divisions.clear();
        },
        "ranks would drift apart");
  }

  // Each collective of each plan by itself.
  TEST_CASE("plans in which any one collective is dropped, resized or not waited for are rejected") {
    for (const auto& [mesh, zero] : {std::pair("data=2", 1), {"data=2", 3}, {"tensor=2", 0}, {"data=2,tensor=2", 3}}) {
      CAPTURE(mesh);
      CAPTURE(zero);
      const Plan good = plan_for(mesh, zero, 1);
      REQUIRE_FALSE(bool(check_plan(good)));
      const auto& instructions = good.functions[0].instructions;
      size_t collectives = 0, waits = 0;
      for (size_t i = 0; i < instructions.size(); ++i) {
        const Instruction& collective = instructions[i];
        if (!communicates(collective)) continue;
        ++collectives;
        CAPTURE(i);
        CAPTURE(collective.op);
        auto mutated = [&](llvm::StringRef how, auto change) {
          CAPTURE(how.str());
          Plan plan = good;
          change(plan.functions[0].instructions[i], plan);
          check_refused(plan, "");
        };
        // Without the sum of the samples' weights along data, one number, ranks stay alike, with losses of another
        // scale.
        const bool is_weight = good.slots[static_cast<size_t>(collective.results[0])].type.elements() == 1 &&
                               collective.attrs.get_string("axis") == "data";
        if (collective.op == "reduce_all" && !is_weight)
          mutated("dropped", [](Instruction& each, Plan&) { each.op = "neg", each.attrs = {}, each.done = -1; });
        if (collective.op != "reduce_all")
          mutated("resized", [](Instruction& each, Plan&) {
            const llvm::ArrayRef<int64_t> now = each.attrs.get_ints("shape");
            Ints shape(now.begin(), now.end());
            shape[0] *= 2;
            each.attrs.set("shape", shape);
          });
        mutated("of other ranks",
                [](Instruction& each, Plan&) { each.attrs.set("ranks", each.attrs.get_int("ranks") + 1); });
        mutated("along another axis", [](Instruction& each, Plan&) { each.attrs.set("axis", std::string("stage")); });
        if (collective.done < 0 || collective.done == static_cast<int32_t>(instructions.size())) continue;
        ++waits;
        // Somebody reads what has not come, or writes what is still sent. Neighbours of one kind are one launch, for
        // all of which one wait stands.
        mutated("not waited for", [&](Instruction&, Plan& plan) {
          auto& all = plan.functions[0].instructions;
          size_t first = i, last = i;
          while (first > 0 && all[first - 1].op == collective.op) --first;
          while (last + 1 < all.size() && all[last + 1].op == collective.op) ++last;
          for (size_t each = first; each <= last; ++each) all[each].done = static_cast<int32_t>(all.size());
        });
      }
      CHECK(collectives > 2);
      CHECK(waits > 0);
    }
  }

  TEST_CASE("mutated plans of ranks with parts of tensors are rejected") {
    const Plan good = plan_for("data=2,tensor=2", 1, 1);
    REQUIRE_FALSE(bool(check_plan(good)));
    auto refused = [&](auto change) {
      Plan plan = good;
      change(plan);
      Status status = check_plan(plan);
      REQUIRE(bool(status));
      return take_diag(std::move(status)).text();
    };
    auto change_collectives = [](Plan& plan, llvm::StringRef op, llvm::StringRef axis, auto change) {
      for (Instruction& each : plan.functions[0].instructions)
        if (each.op == op && each.attrs.get_string("axis") == axis) change(each);
    };
    auto contains = [](const std::string& text, llvm::StringRef part) {
      CAPTURE(text);
      CHECK(llvm::StringRef(text).contains(part));
    };
    contains(refused([&](Plan& p) {
               change_collectives(p, "reduce_all", "tensor",
                                  [](Instruction& each) { each.op = "neg", each.attrs = {}, each.done = -1; });
             }),
             "along tensor");
    contains(refused([&](Plan& p) {
               change_collectives(p, "reduce_all", "tensor",
                                  [](Instruction& each) { each.attrs.set("axis", std::string("data")); });
             }),
             "from rank to rank along tensor");
    contains(refused([&](Plan& p) {
               for (PlanState& state : p.states)
                 for (Division& each : state.divisions)
                   if (each.axis == MeshAxis::Tensor) each.cut.dim = 5;
             }),
             "do not make");
    contains(refused([&](Plan& p) {
               for (PlanState& state : p.states)
                 if (has_axis(state.divisions, MeshAxis::Tensor)) state.divisions.erase(state.divisions.begin());
             }),
             "drift apart along tensor");
    contains(refused([&](Plan& p) { p.mesh[MeshAxis::Tensor] = 4; }), "do not make");
  }
}

}  // namespace
}  // namespace plimsoll
