#include "ir/fused_form.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

class FormMaker {
 public:
  explicit FormMaker(const Graph& body) : body_(body) {}

  Result<BodyForm> make() {
    form_.is_total.resize(body_.value_count());
    form_.pass.resize(body_.value_count());
    for (NodeId id : body_.order())
      if (is_body_reduction(*body_.node(id).op))
        if (Status s = add_shapes(body_.node(id))) return s;
    if (Status s = find_extents()) return s;
    for (ValueId input : body_.inputs)
      if (!is_random_counter(body_.type(input)) && !repeats_over(body_.type(input).shape))
        return model_error("operand " + body_.value(input).name + " is " + to_string(body_.type(input)) +
                           ", which does not repeat over " + to_string(form_.whole));
    for (NodeId id : body_.order())
      if (Status s = add_node(body_.node(id))) return in_context(name_of(body_.node(id)), std::move(s));
    for (const Output& output : body_.outputs)
      if (!form_.is_total[index_of(output.value)]) {
        if (body_.type(output.value).shape != form_.whole)
          return model_error("result " + output.name + " of a body has neither its elements nor its totals");
        form_.passes = std::max(form_.passes, form_.pass[index_of(output.value)] + 1);
      }
    return std::move(form_);
  }

 private:
  const std::string& name_of(const Node& node) const { return body_.value(node.results[0]).name; }

  Status add_shapes(const Node& node) {
    const Shape &whole = body_.type(node.operands[0]).shape, &totals = body_.type(node.results[0]).shape;
    if (form_.whole.empty()) form_.whole = whole, form_.totals = totals;
    if (whole == form_.whole && totals == form_.totals) return Status::success();
    return in_context(name_of(node),
                      model_error("reduces " + to_string(whole) + " to " + to_string(totals) + ", another reduction " +
                                  to_string(form_.whole) + " to " + to_string(form_.totals)));
  }

  Status find_extents() {
    bool ended = false;
    for (size_t d = 0; d < form_.whole.size(); ++d) {
      const int64_t size = form_.whole[d];
      if (size == 1) continue;
      if (form_.totals[d] == size) {
        ended = form_.length > 1;
        (ended ? form_.inner : form_.outer) *= size;
      } else if (ended) {
        return model_error("the dimensions that a body reduces are not neighbours: " + to_string(form_.whole) + " to " +
                           to_string(form_.totals));
      } else {
        form_.length *= size;
      }
    }
    if (form_.length <= 1) return model_error("a body reduces no more than one element: " + to_string(form_.whole));
    return Status::success();
  }

  bool repeats_over(llvm::ArrayRef<int64_t> shape) const {
    const std::optional<Shape> both = broadcast_shapes(shape, form_.whole);
    return both && *both == form_.whole;
  }

  Status add_node(const Node& node) {
    const size_t at = index_of(node.results[0]);
    if (node.op->name == "constant") return Status::success();
    bool any_total = false, all_totals = true;
    int pass = 0;
    for (ValueId operand : node.operands) {
      const bool is_constant = is_constant_of_body(operand), is_total = form_.is_total[index_of(operand)];
      any_total |= is_total, all_totals &= is_total || is_constant;
      pass = std::max(pass, form_.pass[index_of(operand)]);
    }
    if (is_body_reduction(*node.op)) {
      if (any_total) return model_error("reduces a total");
      form_.is_total[at] = true;
      form_.pass[at] = pass + 1;
      form_.passes = std::max(form_.passes, pass + 1);
      return Status::success();
    }
    form_.is_total[at] = any_total && all_totals;
    form_.pass[at] = pass;
    const Shape& shape = body_.type(node.results[0]).shape;
    if (form_.is_total[at]) return Status::success();
    if (pass > 0 && form_.inner > 1)
      return model_error("is made of elements and of totals over rows, which are known at the end alone");
    const bool wants_whole = pass > 0 || node.op->name == "dropout";
    if (wants_whole ? shape == form_.whole : repeats_over(shape)) return Status::success();
    return model_error("is " + to_string(shape) + ", the elements are " + to_string(form_.whole));
  }

  bool is_constant_of_body(ValueId value) const {
    const NodeId producer = body_.value(value).producer;
    return producer != NodeId::None && body_.node(producer).op->name == "constant";
  }

  const Graph& body_;
  BodyForm form_;
};

// Nodes that the wanted values are made of and that `stays` keeps, in order.
template <typename Stays>
llvm::SmallVector<NodeId, 16> nodes_behind(const Graph& body, std::vector<bool> wanted, Stays stays) {
  llvm::SmallVector<NodeId, 16> nodes;
  for (NodeId id = body.last_node(); id != NodeId::None; id = body.node(id).previous) {
    const Node& node = body.node(id);
    if (!wanted[index_of(node.results[0])] || !stays(node)) continue;
    nodes.push_back(id);
    for (ValueId operand : node.operands) wanted[index_of(operand)] = true;
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace

bool is_body_reduction(const OpDef& op) {
  return op.name == "reduce_sum" || op.name == "reduce_mean" || op.name == "reduce_max";
}

bool fits_body_reduction(const OpCall& call, const Type& result) {
  const auto fits = [](DType dtype) { return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16; };
  return is_body_reduction(call.op) && fits(call.operand(0).dtype) && fits(result.dtype) &&
         call.operand(0).elements() > result.elements() && result.elements() > 0;
}

bool has_reductions(const Graph& body) {
  return llvm::any_of(body.order(), [&](NodeId id) { return is_body_reduction(*body.node(id).op); });
}

Result<BodyForm> form_of(const Graph& body) { return FormMaker(body).make(); }

llvm::SmallVector<NodeId, 16> element_nodes(const Graph& body, const BodyForm& form, int pass) {
  std::vector<bool> wanted(body.value_count());
  for (NodeId id : reductions_of(body, form, pass)) wanted[index_of(body.node(id).operands[0])] = true;
  for (const Output& output : body.outputs) {
    const size_t at = index_of(output.value);
    if (!form.is_total[at] && pass == form.passes - 1) wanted[at] = true;
  }
  return nodes_behind(body, std::move(wanted),
                      [&](const Node& node) { return !form.is_total[index_of(node.results[0])]; });
}

llvm::SmallVector<NodeId, 8> total_nodes(const Graph& body, const BodyForm& form, int pass) {
  llvm::SmallVector<NodeId, 8> nodes;
  for (NodeId id : body.order()) {
    const Node& node = body.node(id);
    const size_t at = index_of(node.results[0]);
    if (form.is_total[at] && form.pass[at] == pass && !is_body_reduction(*node.op)) nodes.push_back(id);
  }
  return nodes;
}

llvm::SmallVector<NodeId, 4> reductions_of(const Graph& body, const BodyForm& form, int pass) {
  llvm::SmallVector<NodeId, 4> nodes;
  for (NodeId id : body.order()) {
    const Node& node = body.node(id);
    if (is_body_reduction(*node.op) && form.pass[index_of(node.operands[0])] == pass) nodes.push_back(id);
  }
  return nodes;
}

}  // namespace plimsoll
