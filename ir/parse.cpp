#include "ir/text.h"

// Recursive descent, one function a construct, on top of TextReader, which remembers the first error.

#include "ir/builder.h"
#include "ir/text_reader.h"
#include "ir/verify.h"

namespace plimsoll {
namespace {

using Kind = Token::Kind;

class Parser : private TextReader {
 public:
  using TextReader::take_status;
  using TextReader::TextReader;

  bool at_end() const { return failed() || token().kind == Kind::End; }

  Graph graph() {
    Graph graph;
    graph_ = &graph;
    largest_origin_ = 0;
    if (!token().is_word("graph")) fail_expected("'graph'");
    advance();
    graph.name = name(Kind::Graph, "a graph's @name");
    expect('(');
    list(')', [&] { input(); });
    if (accept_word("state")) {
      expect('(');
      list(')', [&] { state(); });
    }
    expect('{');
    while (!failed() && !token().is('}')) statement();
    if (!failed() && largest_origin_ > graph.origins.size())
      fail("origin #" + std::to_string(largest_origin_ - 1) + " is not listed");
    expect('}');
    return graph;
  }

 private:
  ValueId operand() {
    if (accept_word("_")) return ValueId::None;
    size_t start = offset();
    std::string wanted = name(Kind::Value, "a value or _");
    ValueId value = graph_->find_value(wanted);
    if (value == ValueId::None) fail_at(start, "no value %" + wanted + " above");
    return value;
  }
  ValueId present_operand() {
    if (token().is_word("_")) fail("expected a value, got _");
    return operand();
  }
  // A name that nothing has yet.
  std::string fresh_name() {
    size_t start = offset();
    std::string fresh = name(Kind::Value, "a value");
    if (graph_->find_value(fresh) != ValueId::None) fail_at(start, "%" + fresh + " is there already");
    return fresh;
  }

  void input() {
    std::string input_name = fresh_name();
    expect(':');
    Type input_type = type();
    const bool whole = accept_word("whole");
    if (failed()) return;
    const ValueId added = graph_->add_input(input_name, input_type);
    if (whole) graph_->whole_inputs.push_back(added);
  }

  void state() {
    std::string state_name = fresh_name();
    expect(':');
    Type state_type = type();
    std::optional<StateRole> role = token().kind == Kind::Word ? parse_role(token().text) : std::nullopt;
    if (!role) fail_expected("the role of a state");
    advance();
    bool trained = accept_word("trained");
    const bool channels_last = accept_word("channels_last");
    MemorySpace space = accept_word("host") ? MemorySpace::Host : MemorySpace::Device;
    StateInit init;
    init.source = state_name;
    if (accept_word("weights")) {
      expect('=');
      init.source = name(Kind::String, "a string");
    } else if (accept_word("fill")) {
      expect('=');
      init = {StateInit::Kind::Fill, number(), ""};
    } else if (accept_word("copy_of")) {
      expect('=');
      init = {StateInit::Kind::CopyOf, 0, plain_name("a state's name")};
    } else if (accept_word("transpose_of")) {
      expect('=');
      init = {StateInit::Kind::TransposeOf, 0, plain_name("a state's name")};
    }
    Divisions divisions;
    while (accept_word("piece_of")) divisions.push_back(division());
    OriginId origin = accept_word("at") ? origin_reference() : OriginId::None;
    if (failed()) return;
    graph_->add_state(state_name, state_type, *role, std::move(init), trained);
    graph_->states.back().space = space;
    graph_->states.back().divisions = std::move(divisions);
    graph_->states.back().channels_last = channels_last;
    graph_->states.back().origin = origin;
  }

  // "=[768,2304] along tensor dim 1 of [768,768,768]"; flat pieces along data without more words.
  Division division() {
    Division made;
    expect('=');
    made.whole = shape();
    if (accept_word("along")) {
      const std::optional<MeshAxis> axis = token().kind == Kind::Word ? parse_axis(token().text) : std::nullopt;
      if (!axis) return fail_expected("an axis of the mesh"), made;
      made.axis = *axis;
      advance();
    }
    if (!accept_word("dim")) return made;
    const size_t start = offset();
    made.cut.dim = static_cast<int64_t>(number());
    if (failed()) return made;
    if (made.cut.dim < 0 || made.cut.dim >= static_cast<int64_t>(made.whole.size()))
      return fail_at(start, to_string(made.whole) + " has no such dimension"), made;
    made.cut.blocks = accept_word("of") ? shape() : Shape{made.whole[static_cast<size_t>(made.cut.dim)]};
    if (accept_word("parts")) made.cut.parts = shape();
    return made;
  }

  OriginId origin_reference() {
    expect('=');
    return static_cast<OriginId>(origin_number());
  }
  uint32_t origin_number() {
    uint32_t id = 0;
    if (token().kind != Kind::Origin || llvm::StringRef(token().text).getAsInteger(10, id))
      fail_expected("an origin like #3");
    advance();
    largest_origin_ = std::max(largest_origin_, size_t{id} + 1);
    return id;
  }

  void statement() {
    if (accept_word("return")) return outputs();
    if (accept_word("update")) return update();
    if (accept_word("origin")) return origin();
    node();
  }

  void outputs() {
    do {
      Output output;
      if (token().kind != Kind::Value) {
        output.name = plain_name("a value or an output's name");
        expect('=');
      }
      output.value = present_operand();
      if (failed()) return;
      if (output.name.empty()) output.name = graph_->value(output.value).name;
      graph_->outputs.push_back(std::move(output));
    } while (accept(','));
  }

  void update() {
    size_t start = offset();
    Update update;
    update.state = present_operand();
    if (!failed() && !graph_->find_state(update.state)) fail_at(start, "only a state can be updated");
    expect('=');
    start = offset();
    update.value = present_operand();
    if (failed()) return;
    if (graph_->type(update.state) != graph_->type(update.value) && !begin_of_piece(*graph_, update))
      fail_at(start, "the state is " + to_string(graph_->type(update.state)) + ", its update " +
                         to_string(graph_->type(update.value)));
    graph_->updates.push_back(update);
  }

  void origin() {
    size_t start = offset();
    if (origin_number() != graph_->origins.size()) fail_at(start, "origins are listed in order");
    Origin origin;
    while (!failed() && token().kind == Kind::Word) {
      std::string* field = token().text == "node"     ? &origin.node
                           : token().text == "op"     ? &origin.op
                           : token().text == "module" ? &origin.module
                           : token().text == "source" ? &origin.source
                                                      : nullptr;
      if (!field) break;  // the next statement
      advance();
      expect('=');
      *field = name(Kind::String, "a string");
    }
    graph_->add_origin(std::move(origin));
  }

  // %a, %b = op(%x, _) {axis=1} : f32[2], f32[2] phase=backward reason="why" at=#3
  void node() {
    llvm::SmallVector<std::string, 2> names;
    do {
      size_t start = offset();
      names.push_back(fresh_name());
      if (llvm::is_contained(llvm::ArrayRef<std::string>(names).drop_back(), names.back()))
        return fail_at(start, "%" + names.back() + " is there already");
    } while (accept(','));
    expect('=');
    size_t op_offset = offset();
    const OpDef* op = find_op(token().text);
    std::string op_name = name(Kind::Word, "an op");
    if (!op) return fail_at(op_offset, "there is no op '" + op_name + "'");
    llvm::SmallVector<ValueId, 4> operands;
    expect('(');
    list(')', [&] { operands.push_back(operand()); });
    Attrs attrs = accept('{') ? attributes() : Attrs();
    if (failed()) return;
    Result<NodeId> id = Builder(*graph_).create(*op, operands, std::move(attrs), names);
    if (!id) return fail_at(op_offset, take_diag(id.takeError()).text());
    Node& node = graph_->node(*id);
    if (node.results.size() != names.size())
      return fail_at(op_offset, op_name + " has " + std::to_string(node.results.size()) + " results here, not " +
                                    std::to_string(names.size()));
    check_types(node);
    node_details(node);
  }

  void check_types(const Node& node) {
    if (!accept(':')) return;
    size_t result = 0;
    do {
      size_t start = offset();
      Type written = type();
      if (failed()) return;
      if (result == node.results.size()) return fail_at(start, "more types than results");
      const Value& value = graph_->value(node.results[result++]);
      if (value.type != written)
        return fail_at(start, node.op->name + " gives %" + value.name + ": " + to_string(value.type) + ", not " +
                                  to_string(written));
    } while (accept(','));
    if (result != node.results.size()) fail("fewer types than results");
  }

  void node_details(Node& node) {
    if (accept_word("phase")) {
      expect('=');
      auto is_named = [&](Phase phase) { return token().is_word(phase_name(phase)); };
      auto phases = {Phase::Forward, Phase::Backward, Phase::Update};
      auto phase = std::find_if(phases.begin(), phases.end(), is_named);
      if (phase == phases.end()) return fail_expected("a phase");
      node.phase = *phase;
      advance();
    }
    if (accept_word("reason")) {
      expect('=');
      node.reason = name(Kind::String, "a string");
    }
    if (accept_word("at")) node.origin = origin_reference();
  }

  Graph* graph_ = nullptr;
  size_t largest_origin_ = 0;  // one past the largest that a node names
};

}  // namespace

Result<Program> parse_program(llvm::StringRef text, llvm::StringRef file) {
  Parser parser(text, file);
  Program program;
  do program.functions.push_back(parser.graph());
  while (!parser.at_end());
  if (Status s = parser.take_status()) return s;
  return program;
}

Result<Graph> parse_graph(llvm::StringRef text, llvm::StringRef file) {
  Result<Program> program = parse_program(text, file);
  if (!program) return program.takeError();
  if (program->functions.size() != 1)
    return model_error("expected one graph, got " + llvm::Twine(program->functions.size()));
  return std::move(program->functions.front());
}

}  // namespace plimsoll
