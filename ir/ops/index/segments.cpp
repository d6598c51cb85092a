// Reductions by row in two steps: indices are sorted by the row that they name, and each row reduces its run of what
// was sorted. A table of indices that several sums and gradients scatter by is sorted once for all of them.

#include "ir/ops/common/samples.h"
#include "ir/ops/common/support.h"
#include "ir/ops/index/indexing.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace plimsoll {
namespace {

using namespace samples;

constexpr int64_t max_entries = std::numeric_limits<int32_t>::max();

// ---- sort_indices ----

Result<Types> infer_sort_indices(const OpCall& call) {
  if (Status s = need_index(call, "indices")) return s;
  const int64_t count = call["indices"].elements(), size = call.get_int("size");
  if (size < 0 || size >= max_entries || count > max_entries)
    return model_error(llvm::Twine(count) + " indices of " + llvm::Twine(size) + " rows do not fit 32 bits");
  return Types{Type(DType::I32, {count}), Type(DType::I32, {count}), Type(DType::I32, {size + 1})};
}

Status sort_indices_reference(const ReferenceCall& call) {
  const TensorView &indices = call.in("indices"), &order = call.out("order"), &rows = call.out("rows"),
                   &starts = call.out("starts");
  const int64_t size = call.get_int("size");
  std::vector<std::vector<int64_t>> entries(static_cast<size_t>(size));
  for (int64_t i = 0; i < indices.elements(); ++i) {
    Result<int64_t> row = checked_index(indices.get_int(i), size);
    if (!row) return row.takeError();
    entries[*row].push_back(i);
  }
  int64_t at = 0;
  for (int64_t row = 0; row < size; ++row) {
    starts.set_int(row, at);
    for (int64_t entry : entries[row]) {
      order.set_int(at, entry);
      rows.set_int(at++, row);
    }
  }
  starts.set_int(size, at);
  return Status::success();
}

double sorting_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  const auto count = static_cast<double>(call["indices"].elements());
  return count * std::log2(std::max(count, 2.0));
}

std::vector<Sample> sort_indices_samples() {
  return {{{integers({7}, -4, 3)}, {{"size", 4}}},
          {{integers({2, 5}, 0, 8, DType::I32)}, {{"size", 9}}},
          {{integers({0}, 0, 0)}, {{"size", 3}}},
          // Several tiles of the sort, one digit and two, with rows that no index names and rows that many do.
          {{integers({5000}, 0, 200)}, {{"size", 301}}},
          {{integers({4099}, -70000, 69999, DType::I32)}, {{"size", 70000}}},
          {{integers({3000}, 0, 1)}, {{"size", 5}}},
          {{integers({9}, 0, 0)}, {{"size", 1}}}};
}

// ---- segment_reduce ----

constexpr llvm::StringLiteral reductions[] = {"none", "add", "max", "min"};

Result<Types> infer_segment_reduce(const OpCall& call) {
  if (Status s = need_choice(call.attrs, "reduction", reductions)) return s;
  for (llvm::StringLiteral name : {llvm::StringLiteral("order"), llvm::StringLiteral("rows")})
    if (Status s = need_type(call, name, Type(DType::I32, {call["order"].elements()}))) return s;
  const Type &x = call["x"], &starts = call["starts"];
  if (Status s = need_type(call, "starts", Type(DType::I32, {starts.elements()}))) return s;
  if (starts.elements() < 1) return model_error("starts is empty, it needs one element more than there are rows");
  if (x.rank() < 1 || x.shape[0] != call["order"].elements())
    return model_error("x is " + to_string(x) + ", its rows must be as many as the entries of order, " +
                       llvm::Twine(call["order"].elements()));
  if (Status s = need_float(call, "x")) return s;
  Result<DType> dtype = sum_dtype(call, call.index("x"));
  if (!dtype) return dtype.takeError();
  Shape shape = x.shape;
  shape[0] = starts.elements() - 1;
  if (Status s = need_type(call, "base", Type(*dtype, shape))) return s;
  return one_result(*dtype, shape);
}

double combined(llvm::StringRef reduction, double old, double update) {
  if (reduction == "add") return old + update;
  if (reduction == "none") return update;
  return reduction == "max" ? std::max(old, update) : std::min(old, update);
}

// Sums are rounded to the type of y once.
void segment_reduce_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &order = call.in("order"), &starts = call.in("starts"), &y = call.out("y");
  const int64_t size = starts.elements() - 1, inner = size > 0 ? y.elements() / size : 0;
  for (int64_t row = 0; row < size; ++row)
    for (int64_t i = 0; i < inner; ++i) {
      double value = call.has("base") ? call.in("base").get(row * inner + i) : 0;
      for (int64_t entry = starts.get_int(row); entry < starts.get_int(row + 1); ++entry)
        value = combined(call.get_string("reduction"), value, x.get(order.get_int(entry) * inner + i));
      y.set(row * inner + i, value);
    }
}

double one_each_entry(const OpCall& call, llvm::ArrayRef<Type>) {
  return call.get_string("reduction") == "none" ? 0 : static_cast<double>(call["x"].elements());
}

// `count` entries of which entry i goes to row i * step % size, as sort_indices gives them.
Sample segments(int64_t count, int64_t size, int64_t step, llvm::ArrayRef<int64_t> inner, llvm::StringRef reduction,
                DType dtype, bool has_base) {
  std::vector<double> order, rows, starts;
  for (int64_t row = 0; row < size; ++row) {
    starts.push_back(static_cast<double>(order.size()));
    for (int64_t i = 0; i < count; ++i) {
      if (i * step % size != row) continue;
      order.push_back(static_cast<double>(i));
      rows.push_back(static_cast<double>(row));
    }
  }
  starts.push_back(static_cast<double>(order.size()));
  Shape from{count}, to{size};
  llvm::append_range(from, inner);
  llvm::append_range(to, inner);
  Sample sample{{fixed(normal(from, dtype)), values({count}, order, DType::I32), values({count}, rows, DType::I32),
                 values({size + 1}, starts, DType::I32)},
                {{"reduction", reduction.str()}}};
  if (has_base) sample.operands.push_back(fixed(normal(to, dtype)));
  return sample;
}

std::vector<Sample> segment_reduce_samples() {
  std::vector<Sample> all{
      segments(7, 4, 3, {2}, "add", DType::F32, true), segments(7, 5, 10, {3}, "add", DType::F32, false),
      segments(0, 3, 1, {4}, "max", DType::F32, true), segments(40, 6, 4, {}, "max", DType::F32, true),
      segments(40, 6, 4, {5}, "min", DType::F32, false), segments(40, 6, 4, {2, 4}, "none", DType::F32, true),
      segments(40, 7, 2, {8}, "none", DType::BF16, false),
      // Rows of several chunks, which end inside of a chunk.
      segments(700, 3, 2, {4}, "add", DType::F32, true), segments(700, 3, 2, {5}, "max", DType::F32, false),
      segments(700, 2, 1, {8}, "min", DType::BF16, true), segments(700, 3, 2, {8}, "max", DType::F16, true),
      segments(600, 4, 2, {3}, "none", DType::F16, true)};
  Sample widened = segments(400, 3, 2, {8}, "add", DType::BF16, false);
  widened.attrs.set("dtype", DType::F32);
  all.push_back(widened);
  return all;
}

// ---- gather_sum ----

Result<Types> infer_gather_sum(const OpCall& call) {
  const Type &x = call["x"], &starts = call["starts"];
  const int64_t entries = call["order"].elements(), heads = call.get_int("heads");
  if (Status s = need_float(call, "x")) return s;
  if (Status s = need_rank(call, "x", 2)) return s;
  if (heads < 1 || x.shape[1] % heads != 0)
    return model_error("rows of " + llvm::Twine(x.shape[1]) + " elements do not have " + llvm::Twine(heads) +
                       " equal heads");
  for (llvm::StringLiteral name : {llvm::StringLiteral("order"), llvm::StringLiteral("rows")})
    if (Status s = need_type(call, name, Type(DType::I32, {entries}))) return s;
  if (Status s = need_index(call, "picks")) return s;
  if (Status s = need_type(call, "picks", Type(call["picks"].dtype, {entries}))) return s;
  if (Status s = need_type(call, "starts", Type(DType::I32, {starts.elements()}))) return s;
  if (starts.elements() < 1) return model_error("starts is empty, it needs one element more than there are rows");
  if (call.has("weights")) {
    if (Status s = need_float(call, "weights")) return s;
    if (Status s = need_type(call, "weights", Type(call["weights"].dtype, {entries, heads}))) return s;
  }
  Result<DType> dtype = sum_dtype(call, call.index("x"));
  if (!dtype) return dtype.takeError();
  const Type y(*dtype, {starts.elements() - 1, x.shape[1]});
  if (Status s = need_type(call, "base", y)) return s;
  if (!call.has("factors")) return Types{y};
  if (Status s = need_float(call, "factors")) return s;
  if (Status s = need_type(call, "factors", Type(call["factors"].dtype, y.shape))) return s;
  return Types{y, Type(stat_dtype(x.dtype), {entries, heads})};
}

// Products are not rounded; sums are rounded to the type of y once.
Status gather_sum_reference(const ReferenceCall& call) {
  const TensorView &x = call.in("x"), &picks = call.in("picks"), &order = call.in("order"), &starts = call.in("starts"),
                   &y = call.out("y");
  const int64_t heads = call.get_int("heads"), inner = x.type.shape[1], of_head = std::max<int64_t>(inner / heads, 1);
  for (int64_t row = 0; row + 1 < starts.elements(); ++row) {
    std::vector<double> sums(static_cast<size_t>(inner), 0.0);
    for (int64_t entry = starts.get_int(row); entry < starts.get_int(row + 1); ++entry) {
      Result<int64_t> pick = checked_index(picks.get_int(entry), x.type.shape[0]);
      if (!pick) return pick.takeError();
      const int64_t place = order.get_int(entry);
      std::vector<double> dots(static_cast<size_t>(heads), 0.0);
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t head = i / of_head;
        const double value = x.get(*pick * inner + i);
        sums[i] += call.has("weights") ? call.in("weights").get(place * heads + head) * value : value;
        if (call.has("factors")) dots[head] += value * call.in("factors").get(row * inner + i);
      }
      if (!call.has("factors")) continue;
      for (int64_t head = 0; head < heads; ++head) call.out("dots").set(place * heads + head, dots[head]);
    }
    for (int64_t i = 0; i < inner; ++i)
      y.set(row * inner + i, sums[i] + (call.has("base") ? call.in("base").get(row * inner + i) : 0));
  }
  return Status::success();
}

double gather_sum_flops(const OpCall& call, llvm::ArrayRef<Type>) {
  const auto gathered = static_cast<double>(call["order"].elements() * call["x"].shape[1]);
  return gathered * ((call.has("weights") ? 2 : 1) + (call.has("factors") ? 2 : 0));
}

// Beside `segments`, which it begins with: rows of `sources` picked in turn, in `heads` parts.
struct GatherSample {
  int64_t count, size, step, sources, heads, of_head;
  DType x = DType::F32, y = DType::F32;
  bool has_weights = false, has_base = false;
  std::optional<DType> factors;
};

Sample gathered(const GatherSample& s) {
  Sample sample = segments(s.count, s.size, s.step, {}, "add", DType::F32, false);
  const int64_t inner = s.heads * s.of_head;
  sample.attrs = {};
  if (s.heads != 1) sample.attrs.set("heads", s.heads);
  if (s.x != s.y) sample.attrs.set("dtype", s.y);
  sample.operands[0] = fixed(normal({s.sources, inner}, s.x));
  sample.operands.insert(sample.operands.begin() + 1, integers({s.count}, -s.sources, s.sources - 1));
  sample.operands.push_back(s.has_weights ? fixed(normal({s.count, s.heads})) : absent());
  sample.operands.push_back(s.has_base ? fixed(normal({s.size, inner}, s.y)) : absent());
  if (s.factors) sample.operands.push_back(fixed(normal({s.size, inner}, *s.factors)));
  return sample;
}

std::vector<Sample> gather_sum_samples() {
  constexpr DType f32 = DType::F32, bf16 = DType::BF16, f16 = DType::F16;
  std::vector<Sample> all;
  for (const GatherSample& s :
       std::initializer_list<GatherSample>{{7, 4, 3, 5, 1, 2},
                                           {0, 3, 1, 4, 1, 4, f32, f32, true, true, f32},
                                           {40, 7, 2, 9, 1, 8, bf16, f32, true},
                                           {40, 6, 4, 9, 4, 12, bf16, f32, true, true},
                                           {41, 6, 4, 9, 4, 12, f32, bf16, true, false, bf16},
                                           {41, 6, 5, 9, 3, 5, f32, f32, true, false, f32},
                                           {50, 6, 5, 9, 1, 7, f16, f16, false, true},
                                           {50, 6, 5, 9, 2, 3, f16, f32, true, true, f16},
                                           {60, 9, 4, 20, 4, 64, f32, bf16, true, false, bf16},
                                           {60, 9, 4, 20, 4, 64, bf16, f32, true},
                                           {60, 9, 4, 20, 1, 256, f32, bf16, true},
                                           {60, 9, 4, 20, 1, 264, bf16, bf16, true},
                                           {30, 5, 2, 8, 1, 700, bf16, f32},
                                           {30, 5, 2, 8, 2, 500, f32, f32, true, true},
                                           {30, 5, 2, 8, 1, 384, bf16, f16, true, false, f32},
                                           // Rows of several chunks, which end inside of a chunk.
                                           {700, 3, 2, 30, 1, 8, f32, f32, true, true},
                                           {700, 2, 1, 30, 4, 12, f32, bf16, true, false, bf16},
                                           {901, 4, 2, 30, 3, 5, bf16, f32, true, true, f32},
                                           {640, 1, 1, 30, 1, 48, f16, f32, false, false, f16}})
    all.push_back(gathered(s));
  // Indices and weights of other types.
  all.push_back(gathered({40, 6, 4, 9, 4, 12, f16, f16, true}));
  all.back().operands[1] = integers({40}, 0, 8, DType::I32);
  all.back().operands[5] = fixed(normal({40, 4}, f16));
  return all;
}

}  // namespace

constinit const OpDef op_sort_indices{
    .name = "sort_indices",
    .summary =
        "the places of the indices in the order of the {size} rows that they name, and within a row in their own "
        "order; these rows in that order; and where each row starts in it, with the end of the last",
    .operands = {"indices"},
    .results = {"order", "rows", "starts"},
    .attrs = {{"size", AttrKind::Int}},
    .infer = infer_sort_indices,
    .gradient = Gradient::zero(),
    .flops = sorting_flops,
    .linear = {"?"},
    .reference = sort_indices_reference,
    .samples = sort_indices_samples,
};

constinit const OpDef op_segment_reduce{
    .name = "segment_reduce",
    .summary =
        "base, or zeros, with the rows of x combined by {reduction=none|add|max|min} into the rows that sort_indices "
        "names; none: the last of a row's stays; rounded to {dtype} when given",
    .operands = {"x", "order", "rows", "starts", "base?"},
    .attrs = {{"reduction", AttrKind::String}, sum_dtype_attr},
    .infer = infer_segment_reduce,
    .gradient = Gradient::missing("it is made behind differentiation"),
    .in_place = {{"y", "base"}},
    .flops = one_each_entry,
    .linear = {"?"},
    .reference = segment_reduce_reference,
    .samples = segment_reduce_samples,
};

constinit const OpDef op_gather_sum{
    .name = "gather_sum",
    .summary =
        "base, or zeros, with rows of x added into the rows that sort_indices names, for each sorted entry the row of "
        "x "
        "at its pick, each of its {heads} equal parts times the weight that the entry has for it; dots: of each part "
        "the product with factors at the row that it is added to; weights and dots in the order of the indices before "
        "they were sorted; y rounded to {dtype} when given",
    .operands = {"x", "picks", "order", "rows", "starts", "weights?", "base?", "factors?"},
    .results = {"y", "dots?"},
    .attrs = {{"heads", 1}, sum_dtype_attr},
    .infer = infer_gather_sum,
    .gradient = Gradient::missing("it is made behind differentiation"),
    .in_place = {{"y", "base"}},
    .flops = gather_sum_flops,
    .linear = {"?"},
    .reference = gather_sum_reference,
    .samples = gather_sum_samples,
};

}  // namespace plimsoll
