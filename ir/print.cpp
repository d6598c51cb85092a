#include "ir/text.h"

// Whatever is printed here must read back as the same value: floats in their shortest exact form, odd names
// quoted, larger tensors as the hexadecimal bytes of memory.

#include "ir/op_def.h"
#include "ir/support/strings.h"

#include "llvm/ADT/StringExtras.h"

#include <charconv>
#include <cmath>

namespace plimsoll {
namespace {

constexpr int64_t max_listed_elements = 16;

bool is_bare_char(char c) { return llvm::isAlnum(c) || llvm::StringRef("_.$/:-").contains(c); }

void print_quoted(llvm::raw_ostream& out, llvm::StringRef text) {
  out << '"';
  for (char c : text) {
    if (c == '"' || c == '\\')
      out << '\\' << c;
    else if (c == '\n')
      out << "\\n";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out << "\\x" << llvm::hexdigit((c >> 4) & 15, true) << llvm::hexdigit(c & 15, true);
    else
      out << c;
  }
  out << '"';
}

enum class Sigil : bool { No, Yes };

// A trailing colon would read as the one before a type; without % or @ in front, a leading digit would read
// as a number and "//" as a comment.
void print_name(llvm::raw_ostream& out, llvm::StringRef name, Sigil sigil = Sigil::No) {
  bool bare = !name.empty() && llvm::all_of(name, is_bare_char) && !ends_with(name, ":");
  if (sigil == Sigil::No)
    bare = bare && (llvm::isAlpha(name[0]) || name[0] == '_' || name[0] == '/') && !starts_with(name, "//");
  if (bare)
    out << name;
  else
    print_quoted(out, name);
}

template <typename Float>
void print_float(llvm::raw_ostream& out, Float value) {
  if (std::isnan(value)) {
    out << "nan";
    return;
  }
  char buffer[32];
  llvm::StringRef text(buffer, std::to_chars(buffer, std::end(buffer), value).ptr - buffer);
  out << text;
  if (text.find_first_of(".ein") == llvm::StringRef::npos) out << ".0";
}

void print_element(llvm::raw_ostream& out, const Tensor& tensor, int64_t i) {
  if (tensor.type().dtype == DType::F64)
    print_float(out, tensor.get(i));
  else if (is_float(tensor.type().dtype))
    print_float(out, static_cast<float>(tensor.get(i)));
  else if (tensor.type().dtype == DType::U64)
    out << static_cast<uint64_t>(tensor.get_int(i));
  else
    out << tensor.get_int(i);
}

// NaNs carry bits that "nan" does not say.
bool is_listed(const Tensor& tensor) {
  if (tensor.type().elements() > max_listed_elements) return false;
  for (int64_t i = 0; i < tensor.type().elements(); ++i)
    if (std::isnan(tensor.get(i))) return false;
  return true;
}

void print_tensor(llvm::raw_ostream& out, const Tensor& tensor, const PrintOptions& options) {
  int64_t elements = tensor.type().elements();
  out << to_string(tensor.type()) << '<';
  if (options.largest_tensor >= 0 && elements > options.largest_tensor) {
    out << "...>";
    return;
  }
  if (is_listed(tensor)) {
    for (int64_t i = 0; i < elements; ++i) {
      if (i) out << ',';
      print_element(out, tensor, i);
    }
  } else {
    auto* bytes = static_cast<const uint8_t*>(tensor.data());
    out << "0x" << llvm::toHex(llvm::ArrayRef(bytes, static_cast<size_t>(tensor.type().bytes())), true);
  }
  out << '>';
}

void print_attrs(llvm::raw_ostream& out, const Attrs& attrs, const PrintOptions& options) {
  out << '{';
  llvm::ListSeparator comma;
  for (const auto& [name, attr] : attrs.entries()) {
    out << comma;
    print_name(out, name);
    out << '=';
    print_attr(out, attr, options);
  }
  out << '}';
}

void print_value_name(llvm::raw_ostream& out, const Graph& graph, ValueId value) {
  if (value == ValueId::None) {
    out << '_';
    return;
  }
  out << '%';
  print_name(out, graph.value(value).name, Sigil::Yes);
}

void print_at(llvm::raw_ostream& out, OriginId origin, const PrintOptions& options) {
  if (options.origins && origin != OriginId::None) out << " at=#" << index_of(origin);
}

void print_division(llvm::raw_ostream& out, const Division& division) {
  out << " piece_of=" << to_string(division.whole);
  if (division.axis != MeshAxis::Data) out << " along " << axis_name(division.axis);
  if (division.cut.dim == Cut::flat) return;
  out << " dim " << division.cut.dim;
  if (division.cut.blocks.size() > 1) out << " of " << to_string(division.cut.blocks);
  if (!division.cut.parts.empty()) out << " parts " << to_string(division.cut.parts);
}

void print_state(llvm::raw_ostream& out, const Graph& graph, const State& state, const PrintOptions& options) {
  print_value_name(out, graph, state.value);
  out << ": " << to_string(graph.type(state.value)) << ' ' << role_name(state.role);
  if (state.trained) out << " trained";
  if (state.channels_last) out << " channels_last";
  if (state.space == MemorySpace::Host) out << " host";
  switch (state.init.kind) {
    case StateInit::Kind::Weights:
      if (state.init.source == graph.value(state.value).name) break;
      out << " weights=";
      print_quoted(out, state.init.source);
      break;
    case StateInit::Kind::Fill:
      out << " fill=";
      print_float(out, state.init.fill);
      break;
    case StateInit::Kind::CopyOf:
      out << " copy_of=";
      print_name(out, state.init.source);
      break;
    case StateInit::Kind::TransposeOf:
      out << " transpose_of=";
      print_name(out, state.init.source);
      break;
  }
  for (const Division& each : state.divisions) print_division(out, each);
  print_at(out, state.origin, options);
}

// A few states stand on the graph's line, more on a line each.
void print_states(llvm::raw_ostream& out, const Graph& graph, const PrintOptions& options) {
  if (graph.states.empty()) return;
  bool one_per_line = graph.states.size() > 2;
  out << " state(" << (one_per_line ? "\n    " : "");
  llvm::ListSeparator comma(one_per_line ? ",\n    " : ", ");
  for (const State& state : graph.states) {
    out << comma;
    print_state(out, graph, state, options);
  }
  out << (one_per_line ? "\n)" : ")");
}

void print_results(llvm::raw_ostream& out, const Graph& graph) {
  if (!graph.outputs.empty()) {
    out << "  return ";
    llvm::ListSeparator comma;
    for (const Output& output : graph.outputs) {
      out << comma;
      if (output.name != graph.value(output.value).name) {
        print_name(out, output.name);
        out << '=';
      }
      print_value_name(out, graph, output.value);
    }
    out << '\n';
  }
  for (const Update& update : graph.updates) {
    out << "  update ";
    print_value_name(out, graph, update.state);
    out << " = ";
    print_value_name(out, graph, update.value);
    out << '\n';
  }
}

void print_origins(llvm::raw_ostream& out, const Graph& graph) {
  for (auto it : llvm::enumerate(graph.origins)) {
    out << "  origin #" << it.index();
    auto field = [&](llvm::StringRef name, llvm::StringRef text) {
      if (text.empty()) return;
      out << ' ' << name << '=';
      print_quoted(out, text);
    };
    field("node", it.value().node);
    field("op", it.value().op);
    field("module", it.value().module);
    field("source", it.value().source);
    out << '\n';
  }
}

template <typename Print>
std::string to_string_by(Print print) {
  std::string text;
  llvm::raw_string_ostream out(text);
  print(out);
  return out.str();
}

}  // namespace

void print_attr(llvm::raw_ostream& out, const Attr& attr, const PrintOptions& options) {
  auto list = [&](const auto& values, auto print) {
    llvm::ListSeparator comma(",");
    for (auto value : values) {
      out << comma;
      print(value);
    }
    out << ']';
  };
  if (auto* integer = std::get_if<int64_t>(&attr)) out << *integer;
  if (auto* number = std::get_if<double>(&attr)) print_float(out, *number);
  if (auto* text = std::get_if<std::string>(&attr)) print_quoted(out, *text);
  if (auto* dtype = std::get_if<DType>(&attr)) out << dtype_name(*dtype);
  if (auto* tensor = std::get_if<TensorRef>(&attr)) print_tensor(out, **tensor, options);
  if (auto* ints = std::get_if<Ints>(&attr)) list((out << '[', *ints), [&](int64_t value) { out << value; });
  if (auto* floats = std::get_if<Floats>(&attr))
    list((out << (floats->empty() ? "[." : "["), *floats), [&](double value) { print_float(out, value); });
}

void print_node(llvm::raw_ostream& out, const Graph& graph, NodeId id, const PrintOptions& options) {
  const Node& node = graph.node(id);
  llvm::ListSeparator results_comma, operands_comma, types_comma;
  for (ValueId result : node.results) {
    out << results_comma;
    print_value_name(out, graph, result);
  }
  out << " = " << node.op->name << '(';
  for (ValueId operand : node.operands) {
    out << operands_comma;
    print_value_name(out, graph, operand);
  }
  out << ')';
  if (!node.attrs.empty()) print_attrs(out << ' ', node.attrs, options);
  out << " : ";
  for (ValueId result : node.results) out << types_comma << to_string(graph.type(result));
  if (node.phase != Phase::Forward) out << " phase=" << phase_name(node.phase);
  if (!node.reason.empty()) print_quoted(out << " reason=", node.reason);
  print_at(out, node.origin, options);
}

void print_graph(llvm::raw_ostream& out, const Graph& graph, const PrintOptions& options) {
  out << "graph @";
  print_name(out, graph.name, Sigil::Yes);
  out << '(';
  llvm::ListSeparator comma;
  for (ValueId input : graph.inputs) {
    out << comma;
    print_value_name(out, graph, input);
    out << ": " << to_string(graph.type(input));
    if (llvm::is_contained(graph.whole_inputs, input)) out << " whole";
  }
  out << ')';
  print_states(out, graph, options);
  out << " {\n";
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    print_node(out << "  ", graph, id, options);
    out << '\n';
  }
  print_results(out, graph);
  if (options.origins) print_origins(out, graph);
  out << "}\n";
}

void print_program(llvm::raw_ostream& out, const Program& program, const PrintOptions& options) {
  llvm::ListSeparator blank_line("\n");
  for (const Graph& function : program.functions) {
    out << blank_line;
    print_graph(out, function, options);
  }
}

std::string to_text(const Graph& graph, const PrintOptions& options) {
  return to_string_by([&](llvm::raw_ostream& out) { print_graph(out, graph, options); });
}

std::string to_text(const Program& program, const PrintOptions& options) {
  return to_string_by([&](llvm::raw_ostream& out) { print_program(out, program, options); });
}

std::string to_text(const Attrs& attrs) {
  if (attrs.empty()) return "";
  return to_string_by([&](llvm::raw_ostream& out) { print_attrs(out, attrs, {}); });
}

}  // namespace plimsoll
