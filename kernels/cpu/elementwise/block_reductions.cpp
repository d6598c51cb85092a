#include "kernels/cpu/common/parallel.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/elementwise/block_values.h"
#include "kernels/cpu/elementwise/cast.h"

#include <algorithm>
#include <cmath>
#include <limits>

// Programs with reductions. A task is a part of the `length` rows of one `outer`; its totals are doubles
// [reductions, inner] in the workspace, and the totals of all parts are combined in their order. Where elements read
// totals of their row, a task is a row and goes over it once for each pass.

namespace plimsoll::cpu {
namespace {

using Kind = BlockReduction::Kind;

// Tasks that are wanted, and elements that are worth one.
constexpr int64_t wanted_tasks = 16, elements_of_task = 16384;

double empty(Kind kind) { return kind == Kind::Max ? -std::numeric_limits<double>::infinity() : 0; }

void add(Kind kind, double& total, double value) {
  if (kind == Kind::Max)
    total = std::isnan(value) || total < value ? value : total;
  else
    total += value;
}

double of_run(Kind kind, const float* x, int64_t n) {
  return kind == Kind::Max ? static_cast<double>(max_of(x, n)) : sum_of(x, n);
}

class Reducer {
 public:
  Reducer(const BlockProgram& program, int64_t first_draw, const void* const* operands, void* const* results,
          double* totals)
      : program_(program),
        reductions_(program.reductions),
        totals_(totals),
        blocks_(program, first_draw, operands, results) {}

  // The task's totals: of reduction r they begin at r * inner.
  double* totals_of(int64_t task) const {
    return totals_ + task * static_cast<int64_t>(reductions_.each.size()) * reductions_.inner;
  }

  void run_task(int64_t task) {
    const int64_t parts = reductions_.parts(), part = task % parts, outer = task / parts;
    const int64_t length = reductions_.length, inner = reductions_.inner, first = outer * length * inner;
    const int64_t begin = first + length * part / parts * inner, end = first + length * (part + 1) / parts * inner;
    double* totals = totals_of(task);
    for (size_t r = 0; r < reductions_.each.size(); ++r)
      std::fill_n(totals + static_cast<int64_t>(r) * inner, inner, empty(reductions_.each[r].kind));
    for (size_t pass = 0; pass < reductions_.passes.size(); ++pass) {
      run_elements(pass, begin, end, totals);
      if (reductions_.passes.size() == 1) return;
      finish_row(pass, totals);
    }
    for (size_t i = 0; i < program_.results.size(); ++i)
      if (reductions_.result_is_total[i]) blocks_.store(i, outer, 1);
  }

  // Totals `begin` to `end` of all outer * inner, from what the parts have.
  void combine(int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += block_elements) {
      const int64_t n = std::min(block_elements, end - at);
      for (size_t r = 0; r < reductions_.each.size(); ++r) {
        float* values = blocks_.set_floats(reductions_.each[r].result);
        for (int64_t i = 0; i < n; ++i) values[i] = finished(reductions_.each[r], combined(r, at + i));
        round(reductions_.each[r], values, n);
      }
      for (int step : reductions_.passes[0].total_steps) blocks_.run(program_.steps[static_cast<size_t>(step)], at, n);
      for (size_t i = 0; i < program_.results.size(); ++i)
        if (reductions_.result_is_total[i]) blocks_.store(i, at, n);
    }
  }

 private:
  void run_elements(size_t pass, int64_t begin, int64_t end, double* totals) {
    const bool is_last = pass + 1 == reductions_.passes.size();
    for (int64_t at = begin; at < end; at += block_elements) {
      const int64_t n = std::min(block_elements, end - at);
      blocks_.load_all(at, n);
      for (int step : reductions_.passes[pass].element_steps)
        blocks_.run(program_.steps[static_cast<size_t>(step)], at, n);
      for (size_t r = 0; r < reductions_.each.size(); ++r)
        if (reductions_.each[r].pass == static_cast<int>(pass))
          accumulate(reductions_.each[r], at, n, totals + static_cast<int64_t>(r) * reductions_.inner);
      for (size_t i = 0; is_last && i < program_.results.size(); ++i)
        if (!reductions_.result_is_total[i]) blocks_.store(i, at, n);
    }
  }

  void accumulate(const BlockReduction& reduction, int64_t at, int64_t n, double* totals) const {
    const float* x = blocks_.floats(reduction.operand);
    const int64_t inner = reductions_.inner;
    if (inner == 1) return add(reduction.kind, *totals, of_run(reduction.kind, x, n));
    for (int64_t done = 0; done < n;) {
      const int64_t column = (at + done) % inner, count = std::min(n - done, inner - column);
      if (reduction.kind == Kind::Max)
        for (int64_t i = 0; i < count; ++i) add(Kind::Max, totals[column + i], static_cast<double>(x[done + i]));
      else
        for (int64_t i = 0; i < count; ++i) totals[column + i] += static_cast<double>(x[done + i]);
      done += count;
    }
  }

  // The totals of a row, and what is made of them, for all elements of a block.
  void finish_row(size_t pass, const double* totals) {
    for (size_t r = 0; r < reductions_.each.size(); ++r) {
      const BlockReduction& reduction = reductions_.each[r];
      if (reduction.pass != static_cast<int>(pass)) continue;
      float* value = blocks_.set_floats(reduction.result);
      value[0] = finished(reduction, totals[r]);
      round(reduction, value, 1);
      blocks_.repeat_first(reduction.result, Scalar::F32);
    }
    for (int at : reductions_.passes[pass].total_steps) {
      const BlockStep& step = program_.steps[static_cast<size_t>(at)];
      blocks_.run(step, 0, 1);
      blocks_.repeat_first(step.result, step.type);
    }
  }

  double combined(size_t r, int64_t total) const {
    const int64_t parts = reductions_.parts(), inner = reductions_.inner;
    double all = empty(reductions_.each[r].kind);
    for (int64_t part = 0; part < parts; ++part)
      add(reductions_.each[r].kind, all,
          totals_of(total / inner * parts + part)[static_cast<int64_t>(r) * inner + total % inner]);
    return all;
  }

  float finished(const BlockReduction& reduction, double total) const {
    return static_cast<float>(reduction.kind == Kind::Mean ? total / static_cast<double>(reductions_.length) : total);
  }

  static void round(const BlockReduction& reduction, float* values, int64_t n) {
    if (inside_block(reduction.type) != reduction.type) round_floats(reduction.type, values, n);
  }

  const BlockProgram& program_;
  const BlockReductions& reductions_;
  double* totals_;
  Blocks blocks_;
};

}  // namespace

int64_t BlockReductions::parts() const {
  if (passes.size() > 1) return 1;
  const int64_t worth = std::max<int64_t>(length * inner / elements_of_task, 1);
  return std::clamp<int64_t>(wanted_tasks / std::max<int64_t>(outer, 1), 1, std::min(worth, length));
}

int64_t BlockReductions::workspace_bytes() const {
  return outer * parts() * static_cast<int64_t>(each.size()) * inner * static_cast<int64_t>(sizeof(double));
}

void run_reducing_blocks(const BlockProgram& program, int64_t first_draw, const void* const* operands,
                         void* const* results, void* workspace) {
  const BlockReductions& r = program.reductions;
  auto* totals = static_cast<double*>(workspace);
  const int64_t work = r.outer * r.length * r.inner * 4 * static_cast<int64_t>(program.steps.size() + 1);
  const int64_t tasks = r.outer * r.parts();
  parallel_rows(tasks, work / tasks, [&](int64_t begin, int64_t end) {
    Reducer reducer(program, first_draw, operands, results, totals);
    for (int64_t task = begin; task < end; ++task) reducer.run_task(task);
  });
  if (r.passes.size() > 1) return;
  parallel_ranges(r.outer * r.inner, 4 * r.parts(), [&](int64_t begin, int64_t end) {
    Reducer(program, first_draw, operands, results, totals).combine(begin, end);
  });
}

}  // namespace plimsoll::cpu
