#include "ir/ops/collective/group.h"
#include "ir/ops/common/divide.h"
#include "ir/ops/common/samples.h"

// Values that go from one stage of a pipeline to another. While one graph holds all runs of layers, a value goes from
// run to run by `transfer`; in the graph of one stage that is `send` or `receive`, or nothing where both runs are on
// the stage. Both sides number what goes from one of them to the other, so that the two ends of a transfer can be told.

namespace plimsoll {
namespace {

Result<Types> infer_transfer(const OpCall& call) {
  if (Status s = check_group(call)) return s;
  if (Status s = check_member(call, "from")) return s;
  if (Status s = check_member(call, "to")) return s;
  return infer_same(call);
}

Status check_end(const OpCall& call) {
  if (Status s = check_group(call)) return s;
  return check_member(call, "peer");
}

Result<Types> infer_send(const OpCall& call) {
  if (Status s = check_end(call)) return s;
  return one_result(DType::U8, {});
}

Result<Types> infer_receive(const OpCall& call) {
  if (Status s = check_end(call)) return s;
  return one_result(call.attrs.get_dtype("dtype"), call.get_ints("shape"));
}

Status transfer_gradient(GradContext& g) {
  Attrs back = g.attrs();
  back.set("from", g.attrs().get_int("to"));
  back.set("to", g.attrs().get_int("from"));
  g.add("x", g.b.emit("transfer", {g.out_grad()}, back));
  return Status::success();
}

// A rank sends its part to the rank that has the same part on the other stage.
std::optional<DividedCall> transfer_divide(const OpCall& call, llvm::ArrayRef<Type> results, const CutAt& known,
                                           int64_t) {
  const std::string letters = pass_through(results[0].rank());
  std::optional<DividedCall> made = divide_letters(call, {{letters}, {letters}}, known);
  if (made) made->may_be_uneven = true;
  return made;
}

void transfer_reference(const ReferenceCall& call) {
  copy_elements(call.out("y"), 0, call.in("x"), 0, call.in("x").elements());
}

// The interpreter of several stages moves the bytes itself.
Status one_end(const ReferenceCall& call) {
  if (call.get_int("ranks") == 1) return fill_zero(call.results[0]), Status::success();
  return model_error("this op is one of " + llvm::Twine(call.get_int("ranks")) + " stages, and one is here");
}

Attrs end_attrs() {
  return {{"axis", std::string("stage")}, {"ranks", int64_t{1}}, {"peer", int64_t{0}}, {"number", int64_t{0}}};
}

std::vector<Sample> transfer_samples() {
  const Attrs attrs{{"axis", std::string("stage")}, {"ranks", int64_t{2}}, {"from", int64_t{0}}, {"to", int64_t{1}}};
  return {{{samples::normal({3, 5})}, attrs}, {{samples::normal({4}, DType::BF16)}, attrs}};
}

std::vector<Sample> send_samples() { return {{{samples::normal({3, 5})}, end_attrs()}}; }

std::vector<Sample> receive_samples() {
  Attrs attrs = end_attrs();
  attrs.set("dtype", DType::F32);
  attrs.set("shape", Ints{3, 5});
  return {{{}, attrs}};
}

}  // namespace

constinit const OpDef op_transfer{
    .name = "transfer",
    .summary = "x, which run {from} of layers has, in run {to} of {ranks} along {axis}",
    .attrs = group_attrs.with({{"from", AttrKind::Int}, {"to", AttrKind::Int}}),
    .infer = infer_transfer,
    .gradient = Gradient::rule(transfer_gradient),
    .repeatable = false,
    .engine = Engine::Ranks,
    .flops = no_flops,
    .chunk = chunk_of_first,
    .divide = transfer_divide,
    .linear = {"x"},
    .reference = transfer_reference,
    .samples = transfer_samples,
};

constinit const OpDef op_send{
    .name = "send",
    .summary = "hands x to rank {peer} of {ranks} along {axis}, as transfer {number} to it; the result is a byte 0",
    .results = {"sent"},
    .attrs = group_attrs.with({{"peer", AttrKind::Int}, {"number", AttrKind::Int}}),
    .infer = infer_send,
    .gradient = Gradient::missing("stages are differentiated together"),
    .repeatable = false,
    .engine = Engine::Ranks,
    .flops = no_flops,
    .reference = one_end,
    .samples = send_samples,
};

constinit const OpDef op_receive{
    .name = "receive",
    .summary = "what rank {peer} of {ranks} along {axis} sends as transfer {number}, of {dtype} and {shape}",
    .operands = {},
    .attrs = group_attrs.with(
        {{"peer", AttrKind::Int}, {"number", AttrKind::Int}, {"dtype", AttrKind::DType}, {"shape", AttrKind::Ints}}),
    .infer = infer_receive,
    .gradient = Gradient::missing("stages are differentiated together"),
    .repeatable = false,
    .engine = Engine::Ranks,
    .flops = no_flops,
    .reference = one_end,
    .samples = receive_samples,
};

}  // namespace plimsoll
