#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/recurrent_activation.h"

// Imports RNN, GRU and LSTM by unrolling them. One matmul over all steps computes the input's share of the gates, and
// each step adds the hidden state's share. Gates lie along the last dimension in ONNX's order.

namespace plimsoll {
namespace {

constexpr int64_t max_steps = 1 << 14;  // a step is ten nodes, and all of them are planned

// One direction of a layer. Weights are [gates*H, inputs], one row per gate unit.
struct Direction {
  bool reverse = false;
  ValueId w, r;
  ValueId r_candidate = ValueId::None, candidate_bias = ValueId::None;  // GRU: the last gate of r is separate
  ValueId w_bias = ValueId::None, r_bias = ValueId::None;               // [gates*H]
  ValueId h, c = ValueId::None;                                         // [B, H] before the first step
  ValueId peepholes = ValueId::None;                                    // [3*H]
  llvm::SmallVector<RecurrentActivation, 3> activations;
};

struct Layer {
  int64_t steps, batch, hidden, gates;
  int64_t directions;
  ValueId x;                        // [T, B, inputs]
  ValueId lengths = ValueId::None;  // [B]
  double clip = 0;
};

ValueId linear(NodeContext& n, ValueId x, ValueId w, ValueId bias) {
  ValueList operands{x, w};
  if (bias != ValueId::None) operands.push_back(bias);
  return n.emit("linear", operands, {{"transpose_w", 1}});
}

// Splits an axis into equal pieces with one node, whose gradient is one concat.
ValueList pieces(NodeContext& n, ValueId x, int64_t axis, int64_t count) {
  if (count == 1 || n.failed()) return ValueList(count, x);
  return n.emit_all("split", {x}, {{"axis", axis}, {"sizes", Ints(count, n.dim(x, axis) / count)}});
}

ValueId clipped(NodeContext& n, const Layer& layer, ValueId x) {
  if (layer.clip <= 0) return x;
  return n.emit("clip", {x}, {{"min", -layer.clip}, {"max", layer.clip}});
}

ValueId activate(NodeContext& n, const Layer& layer, const Direction& d, size_t which, ValueId x) {
  return emit_activation(n, d.activations[which], clipped(n, layer, x));
}

struct State {
  ValueId h, c;
};

// Computes one step: from the input's share of the gates and the old state to the new state.
using Step = State (*)(NodeContext& n, const Layer& layer, const Direction& d, ValueId from_input, State before);

State rnn_step(NodeContext& n, const Layer& layer, const Direction& d, ValueId from_input, State before) {
  ValueId sum = n.emit("add", {from_input, linear(n, before.h, d.r, d.r_bias)});
  return {activate(n, layer, d, 0, sum), ValueId::None};
}

// h' = (1 - z) * candidate + z * h
State gru_step(NodeContext& n, const Layer& layer, const Direction& d, ValueId from_input, State before) {
  ValueList input = pieces(n, from_input, 1, 3);
  ValueList hidden = pieces(n, linear(n, before.h, d.r, d.r_bias), 1, 2);
  if (n.failed()) return before;
  ValueId z = activate(n, layer, d, 0, n.emit("add", {input[0], hidden[0]}));
  ValueId r = activate(n, layer, d, 0, n.emit("add", {input[1], hidden[1]}));
  bool reset_last = n.attr_int("linear_before_reset", 0) != 0;
  ValueId recalled = reset_last ? before.h : n.emit("mul", {r, before.h});
  ValueId from_hidden = linear(n, recalled, d.r_candidate, d.candidate_bias);
  if (reset_last) from_hidden = n.emit("mul", {r, from_hidden});
  ValueId candidate = activate(n, layer, d, 1, n.emit("add", {input[2], from_hidden}));
  ValueId kept = n.emit("mul", {z, n.emit("sub", {before.h, candidate})});
  return {n.emit("add", {candidate, kept}), ValueId::None};
}

// The gates are input, output, forget, cell; the peepholes input, output, forget.
State lstm_step(NodeContext& n, const Layer& layer, const Direction& d, ValueId from_input, State before) {
  ValueList gates = pieces(n, n.emit("add", {from_input, linear(n, before.h, d.r, d.r_bias)}), 1, 4);
  if (n.failed()) return before;
  auto peep = [&](int64_t index, ValueId cell) {
    if (d.peepholes == ValueId::None) return gates[index];
    ValueId weight = n.slice(d.peepholes, 0, index * layer.hidden, layer.hidden);
    return n.emit("add", {gates[index], n.emit("mul", {weight, cell})});
  };
  ValueId i = activate(n, layer, d, 0, peep(0, before.c));
  ValueId f = n.attr_int("input_forget", 0) ? n.emit("sub", {n.scalar(1, n.type(i).dtype), i})
                                            : activate(n, layer, d, 0, peep(2, before.c));
  ValueId g = activate(n, layer, d, 1, gates[3]);
  ValueId c = n.emit("add", {n.emit("mul", {f, before.c}), n.emit("mul", {i, g})});
  ValueId o = activate(n, layer, d, 0, peep(1, c));
  return {n.emit("mul", {o, emit_activation(n, d.activations[2], c)}), c};
}

struct Unrolled {
  std::vector<ValueId> outputs;  // one [B, H] per step
  State last;
};

Unrolled unroll(NodeContext& n, const Layer& layer, const Direction& d, Step step) {
  // In reverse direction a shorter sample begins at its own end.
  auto reversed_in_time = [&](ValueId x) {
    return n.emit("reverse_sequence", {x, layer.lengths}, {{"batch_axis", 1}, {"time_axis", 0}});
  };
  bool ragged = layer.lengths != ValueId::None;
  ValueId x = d.reverse && ragged ? reversed_in_time(layer.x) : layer.x;
  ValueList projected = pieces(n, linear(n, x, d.w, d.w_bias), 0, layer.steps);
  Unrolled run{std::vector<ValueId>(layer.steps), {d.h, d.c}};
  for (int64_t i = 0; i < layer.steps && !n.failed(); ++i) {
    int64_t t = d.reverse && !ragged ? layer.steps - 1 - i : i;
    ValueId from_input = n.reshape(projected[t], {layer.batch, layer.gates * layer.hidden});
    State after = step(n, layer, d, from_input, run.last);
    run.outputs[t] = after.h;
    if (ragged) {
      ValueId now = n.constant_value(Tensor::scalar_int(i, n.type(layer.lengths).dtype));
      ValueId runs = n.reshape(n.emit("less", {now, layer.lengths}), {layer.batch, 1});
      run.outputs[t] = n.emit("where", {runs, after.h, n.scalar(0, n.type(after.h).dtype)});
      after.h = n.emit("where", {runs, after.h, run.last.h});
      if (after.c != ValueId::None) after.c = n.emit("where", {runs, after.c, run.last.c});
    }
    run.last = after;
  }
  if (!d.reverse || !ragged || n.failed()) return run;
  for (ValueId& y : run.outputs) y = n.reshape(y, {1, layer.batch, layer.hidden});
  ValueList reversed = pieces(n, reversed_in_time(n.concat(run.outputs, 0)), 0, layer.steps);
  for (int64_t t = 0; t < layer.steps && !n.failed(); ++t)
    run.outputs[t] = n.reshape(reversed[t], {layer.batch, layer.hidden});
  return run;
}

void set_candidate_apart(NodeContext& n, const Layer& layer, Direction& d) {
  auto rows = [&](ValueId x, int64_t first, int64_t count) {
    return x == ValueId::None ? x : n.slice(x, 0, first * layer.hidden, count * layer.hidden);
  };
  d.r_candidate = rows(d.r, 2, 1);
  d.candidate_bias = rows(d.r_bias, 2, 1);
  d.r = rows(d.r, 0, 2);
  d.r_bias = rows(d.r_bias, 0, 2);
}

Direction read_direction(NodeContext& n, const Layer& layer, int64_t index, bool batch_first) {
  Direction d;
  d.w = n.select(n.input(1), 0, index);
  d.r = n.select(n.input(2), 0, index);
  if (n.has(3)) {
    ValueList both = pieces(n, n.select(n.input(3), 0, index), 0, 2);
    d.w_bias = both[0];
    d.r_bias = both[1];
  }
  if (n.target() == "gru") set_candidate_apart(n, layer, d);
  DType dtype = n.type(layer.x).dtype;
  auto initial = [&](size_t i) {
    if (!n.has(i)) return n.expand(n.scalar(0, dtype), {layer.batch, layer.hidden});
    ValueId given = n.input(i);
    return n.select(batch_first ? n.transpose(given, {1, 0, 2}) : given, 0, index);
  };
  d.h = initial(5);
  if (n.target() == "lstm") {
    d.c = initial(6);
    if (n.has(7)) d.peepholes = n.select(n.input(7), 0, index);
  }
  return d;
}

Layer read_layer(NodeContext& n, int64_t gates, bool batch_first) {
  ValueId x = n.input(0), w = n.input(1), r = n.input(2);
  if (n.rank(x) != 3 || n.rank(w) != 3 || n.rank(r) != 3)
    n.fail("needs an input and weights of 3 dimensions, got " + to_string(n.type(x)) + ", " + to_string(n.type(w)) +
           " and " + to_string(n.type(r)));
  if (batch_first && !n.failed()) x = n.transpose(x, {1, 0, 2});
  Layer layer{n.dim(x, 0), n.dim(x, 1), n.dim(r, 2), gates, n.dim(w, 0), x};
  if (n.dim(w, 1) != gates * layer.hidden || n.dim(r, 1) != gates * layer.hidden)
    n.fail("weights of " + to_string(n.type(w)) + " do not hold " + llvm::Twine(gates) + " gates of " +
           llvm::Twine(layer.hidden));
  if (layer.steps == 0) n.fail("has no time steps: its input is " + to_string(n.type(x)));
  if (layer.steps > max_steps)
    n.fail("has " + llvm::Twine(layer.steps) + " time steps; they are unrolled, at most " + llvm::Twine(max_steps));
  if (n.has(4)) layer.lengths = n.input(4);
  layer.clip = n.attr_float("clip", 0);
  return layer;
}

// Y is [T, directions, B, H] (batch first: [B, T, directions, H]), the last states [directions, B, H].
void give_outputs(NodeContext& n, const Layer& layer, llvm::ArrayRef<Unrolled> runs, bool batch_first) {
  std::vector<ValueId> sequences, last_h, last_c;
  for (const Unrolled& run : runs) {
    std::vector<ValueId> steps;
    for (ValueId y : run.outputs) steps.push_back(n.reshape(y, {1, 1, layer.batch, layer.hidden}));
    sequences.push_back(n.concat(steps, 0));
    last_h.push_back(n.reshape(run.last.h, {1, layer.batch, layer.hidden}));
    if (run.last.c != ValueId::None) last_c.push_back(n.reshape(run.last.c, {1, layer.batch, layer.hidden}));
  }
  auto reversed = [&](ValueId state) { return batch_first ? n.transpose(state, {1, 0, 2}) : state; };
  if (n.wants(0)) {
    ValueId y = n.concat(sequences, 1);
    n.output(0, batch_first ? n.transpose(y, {2, 0, 1, 3}) : y);
  }
  if (n.wants(1)) n.output(1, reversed(n.concat(last_h, 0)));
  if (n.wants(2) && !last_c.empty()) n.output(2, reversed(n.concat(last_c, 0)));
}

void import_recurrent(NodeContext& n, int64_t gates, llvm::ArrayRef<llvm::StringLiteral> defaults, Step step) {
  bool batch_first = n.attr_int("layout", 0) != 0;
  Layer layer = read_layer(n, gates, batch_first);
  std::string direction = n.attr_string("direction", "forward");
  int64_t expected = direction == "bidirectional" ? 2 : 1;
  if (layer.directions != expected)
    n.fail("is " + direction + " with weights for " + llvm::Twine(layer.directions) + " directions");
  std::vector<RecurrentActivation> activations = read_activations(n, defaults, expected);
  std::vector<Unrolled> runs;
  for (int64_t i = 0; i < expected && !n.failed(); ++i) {
    Direction d = read_direction(n, layer, i, batch_first);
    d.reverse = direction == "reverse" || i == 1;
    auto own = llvm::ArrayRef<RecurrentActivation>(activations).slice(i * defaults.size(), defaults.size());
    d.activations.assign(own.begin(), own.end());
    runs.push_back(unroll(n, layer, d, step));
  }
  if (!n.failed()) give_outputs(n, layer, runs, batch_first);
}

void import_rnn(NodeContext& n) { import_recurrent(n, 1, {llvm::StringLiteral("Tanh")}, rnn_step); }

void import_gru(NodeContext& n) {
  import_recurrent(n, 3, {llvm::StringLiteral("Sigmoid"), llvm::StringLiteral("Tanh")}, gru_step);
}

void import_lstm(NodeContext& n) {
  import_recurrent(n, 4, {llvm::StringLiteral("Sigmoid"), llvm::StringLiteral("Tanh"), llvm::StringLiteral("Tanh")},
                   lstm_step);
}

constexpr ImportRow recurrent_table[] = {
    {"GRU", 7, import_gru, "gru"},
    {"LSTM", 7, import_lstm, "lstm"},
    {"RNN", 7, import_rnn, "rnn"},
};

}  // namespace

llvm::ArrayRef<ImportRow> recurrent_rows() { return recurrent_table; }

}  // namespace plimsoll
