#include "tests/support/divided_step.h"

// Heads and features that do not divide by the ranks along the tensor axis: the last ranks have zeros behind the end.

namespace plimsoll {
namespace {

using namespace testing;

struct Heads {
  int64_t heads, kv_heads;
  bool packed = false, bias = false, dropout = false, rotary = false, head_norm = false, mask = false, sinks = false;
};

std::string shape(std::initializer_list<int64_t> dims) {
  std::string text;
  for (int64_t dim : dims) text += (text.empty() ? "f64[" : ",") + std::to_string(dim);
  return text + "]";
}

// A block of a transformer with heads of 4 elements, and hidden features that divide by no number of ranks here.
std::string model_of(const Heads& h) {
  constexpr int64_t batch = 2, rows = 3, width = 12, depth = 4, hidden = 29, classes = 11;
  const int64_t q = h.heads * depth, k = h.kv_heads * depth;
  const auto rows_of = [](int64_t features) { return shape({batch, rows, features}); };
  std::string states, body;
  const auto state = [&](llvm::StringRef name, const std::string& type, llvm::StringRef role = "parameter trained") {
    states += (states.empty() ? "%" : ", %") + name.str() + ": " + type + " " + role.str();
  };
  const auto line = [&](const std::string& text) { body += "  " + text + "\n"; };
  const auto linear = [&](const std::string& to, const std::string& from, int64_t in, int64_t out) {
    state("w" + to, shape({in, out}));
    if (h.bias) state("b" + to, shape({out}));
    line("%" + to + " = linear(%" + from + ", %w" + to + (h.bias ? ", %b" + to : "") + ") : " + rows_of(out));
  };
  state("words", shape({classes, width}));
  line("%x = gather(%words, %ids) {axis=0} : " + rows_of(width));
  // A norm between keeps the width whole.
  const auto norm = [&](const std::string& to, const std::string& from) {
    state("s" + to, shape({width}));
    line("%" + to + ", %rstd" + to + " = rms_norm(%" + from + ", %s" + to +
         ") {axis=2, eps=0.001} : " + rows_of(width) + ", " + rows_of(1));
  };
  norm("n", "x");
  std::string query = "q", key = "k";
  if (h.packed) {
    linear("qkv", "n", width, q + 2 * k);
  } else {
    linear("q", "n", width, q), linear("k", "n", width, k), linear("v", "n", width, k);
  }
  if (h.rotary) {
    state("cos", shape({1, rows, 2}), "buffer"), state("sin", shape({1, rows, 2}), "buffer");
    const auto turn = [&](const std::string& x, const std::string& heads, int64_t features) {
      line("%" + x + "r = rotary(%" + x + ", %cos, %sin) {heads=" + heads + "} : " + rows_of(features));
    };
    if (h.packed) {
      const std::string all = std::to_string(h.heads + 2 * h.kv_heads), turned = std::to_string(h.heads + h.kv_heads);
      turn("qkv", all + ", turned=" + turned, q + 2 * k);
    } else {
      turn("q", std::to_string(h.heads), q), turn("k", std::to_string(h.kv_heads), k);
    }
    query = "qr", key = "kr";
  }
  if (h.head_norm) {
    state("s", shape({depth}));
    const std::string by_head = shape({batch, rows, h.heads, depth}), one = shape({batch, rows, h.heads, 1});
    line("%qh = reshape(%" + query + ") {shape=[2,3," + std::to_string(h.heads) + ",4]} : " + by_head);
    line("%qn, %qs = rms_norm(%qh, %s) {axis=3, eps=0.001} : " + by_head + ", " + one);
    line("%qf = reshape(%qn) {shape=[2,3," + std::to_string(q) + "]} : " + rows_of(q));
    query = "qf";
  }
  if (h.mask) state("m", shape({1, h.heads, rows, rows}));
  if (h.sinks) state("sink", shape({h.heads}));
  const std::string all = h.rotary ? "%qkvr" : "%qkv";
  std::string operands = h.packed ? all + ", _, _" : "%" + query + ", %" + key + ", %v";
  operands += h.mask ? ", %m" : ", _";
  operands += h.dropout ? ", %rng" : ", _";
  if (h.sinks) operands += ", _, _, %sink";
  if (h.dropout) state("rng", "i64[2]", "counter fill=0.0");
  line("%a, %lse = attention(" + operands + ") {heads=" + std::to_string(h.heads) +
       ", kv_heads=" + std::to_string(h.kv_heads) + ", scale=0.5" + (h.packed ? ", packed=1" : ", causal=1") +
       (h.dropout ? ", dropout=0.3, id=1" : "") + "} : " + rows_of(q) + ", " + shape({batch, h.heads, rows}));
  linear("o", "a", q, width);
  line("%r = add(%o, %x) : " + rows_of(width));
  norm("t", "r");
  linear("u", "t", width, hidden);
  line("%g = gelu(%u) {approximate=\"tanh\"} : " + rows_of(hidden));
  linear("d", "g", hidden, width);
  line("%e = add(%d, %r) : " + rows_of(width));
  line("%z = linear(%e, %words) {transpose_w=1} : " + rows_of(classes));
  line("%rows = reshape(%z) {shape=[6,11]} : f64[6,11]");
  line("%flat = reshape(%labels) {shape=[6]} : i64[6]");
  line("%loss, %row_lse, %weight = cross_entropy(%rows, %flat) {reduction=\"mean\"} : f64[], f64[6], f64[]");
  return "graph @heads(%ids: i64[2,3], %labels: i64[2,3]) state(" + states + ") {\n" + body +
         "  return loss=%loss\n}\n";
}

// Of the attention in the step of a rank.
std::pair<int64_t, int64_t> own_heads(const Program& program) {
  const Graph& step = program.functions.front();
  for (NodeId id : step.order())
    if (step.node(id).op->name == "attention")
      return {step.node(id).attrs.get_int("heads"), step.node(id).attrs.get_int("kv_heads")};
  return {};
}

int64_t elements_of(const Program& program, llvm::StringRef state) {
  const Graph& step = program.functions.front();
  return step.type(step.find_value(state)).elements();
}

TEST_SUITE("unit") {
  TEST_CASE("heads that do not divide by the tensor axis: each rank has some, the last ones zeros") {
    struct Case {
      Heads model;
      int64_t ranks, heads, kv_heads;  // of a rank
    };
    const Case cases[] = {
        {{.heads = 3, .kv_heads = 3, .packed = true, .bias = true}, 2, 2, 2},
        {{.heads = 12, .kv_heads = 12, .packed = true, .bias = true, .dropout = true}, 5, 3, 3},
        {{.heads = 5, .kv_heads = 5, .bias = true, .rotary = true}, 3, 2, 2},
        {{.heads = 5, .kv_heads = 5, .packed = true, .bias = true, .rotary = true}, 3, 2, 2},
        {{.heads = 5, .kv_heads = 5, .dropout = true, .head_norm = true, .sinks = true}, 4, 2, 2},
        {{.heads = 5, .kv_heads = 5, .packed = true, .mask = true}, 2, 3, 3},
        // Key heads with all of their query heads.
        {{.heads = 6, .kv_heads = 3, .rotary = true}, 2, 4, 2},
        {{.heads = 10, .kv_heads = 5, .packed = true, .dropout = true}, 4, 4, 2},
        {{.heads = 6, .kv_heads = 3, .packed = true, .rotary = true}, 2, 4, 2},
        // Fewer key heads than ranks: one key head is enough for the query heads of a rank, ...
        {{.heads = 8, .kv_heads = 2, .bias = true, .rotary = true}, 4, 2, 1},
        {{.heads = 6, .kv_heads = 2, .bias = true, .dropout = true}, 3, 2, 2},
        // ... or each has a copy of its own.
        {{.heads = 14, .kv_heads = 2, .bias = true, .rotary = true, .head_norm = true}, 4, 4, 4},
        {{.heads = 4, .kv_heads = 1, .mask = true, .sinks = true}, 3, 2, 1},
        {{.heads = 9, .kv_heads = 3, .dropout = true, .sinks = true}, 5, 2, 2},
    };
    for (const Case& each : cases) {
      const std::string text = model_of(each.model), mesh = "tensor=" + std::to_string(each.ranks);
      CAPTURE(text);
      CAPTURE(mesh);
      const Graph forward = parsed(text);
      const Program program = program_of(forward, request_of(mesh));
      CHECK(own_heads(program) == std::pair(each.heads, each.kv_heads));
      CHECK(elements_of(program, "wo") == each.heads * 4 * 12);
      check_divided(forward, request_of(mesh), 1e-9);
    }
  }

  TEST_CASE("uneven heads with all ZeRO stages, accumulation, clipping, a data axis and AdamW") {
    const Graph forward = parsed(model_of({.heads = 5, .kv_heads = 5, .packed = true, .bias = true, .dropout = true}));
    for (llvm::StringRef mesh : {"tensor=3", "data=2,tensor=2"})
      for (int zero : {0, 1, 2, 3})
        for (int64_t accumulate : {1, 2}) {
          CAPTURE(mesh.str());
          CAPTURE(zero);
          CAPTURE(accumulate);
          TrainingRequest request = request_of(mesh);
          if (zero > 0 && request.mesh[MeshAxis::Data] == 1) continue;
          request.optimizer = {};
          request.optimizer.eps = 1e-2;
          request.zero = zero, request.accumulate = accumulate;
          request.clip_grad_norm = accumulate == 2 ? 0.05 : 0;
          check_divided(forward, request, 1e-9);
        }
  }

  TEST_CASE("hidden features that do not divide are divided where zeros stay zeros") {
    const std::string text = model_of({.heads = 4, .kv_heads = 4});
    const Program program = program_of(parsed(text), request_of("tensor=4"));
    CHECK(elements_of(program, "wu") == 12 * 8);  // of 29 features, 8, 8, 8 and 5
    std::string sigmoid = text;
    const std::string gelu = "gelu(%u) {approximate=\"tanh\"}";
    sigmoid.replace(sigmoid.find(gelu), gelu.size(), "sigmoid(%u)");
    const Program whole = program_of(parsed(sigmoid), request_of("tensor=4"));
    CHECK(elements_of(whole, "wu") != 12 * 8);  // the sigmoid of 0 is none
    for (const std::string& model : {text, sigmoid}) check_divided(parsed(model), request_of("tensor=4"), 1e-9);
  }
}

}  // namespace
}  // namespace plimsoll
