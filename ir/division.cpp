#include "ir/division.h"

#include "ir/support/align.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace plimsoll {
namespace {

constexpr int64_t part_multiple = 64;  // matrix units want such rows

int64_t size_of(const Cut& cut) { return std::accumulate(cut.blocks.begin(), cut.blocks.end(), int64_t{0}); }

void copy_run(const TensorView& to, int64_t to_at, const TensorView& from, int64_t from_at, int64_t count) {
  const int64_t bytes = dtype_bytes(to.type.dtype);
  std::memcpy(to.as<char>() + to_at * bytes, from.as<char>() + from_at * bytes, static_cast<size_t>(count * bytes));
}

}  // namespace

Cut cut_in_parts(int64_t dim, Shape blocks, Shape parts, int64_t ranks) {
  Cut by_sizes{dim, std::move(blocks)}, cut{dim, by_sizes.blocks, std::move(parts)};
  if (!can_divide(by_sizes, ranks)) return cut;
  for (size_t i = 0; i < cut.blocks.size(); ++i)
    if (part_of_block(by_sizes, i, ranks) != cut.parts[i]) return cut;
  return by_sizes;
}

bool divides_evenly(const Cut& cut, int64_t ranks) {
  return cut.parts.empty() && llvm::all_of(cut.blocks, [&](int64_t block) { return block % ranks == 0; });
}

bool can_divide(const Cut& cut, int64_t ranks) {
  if (size_of(cut) == 0) return false;
  if (!cut.parts.empty())
    return cut.parts.size() == cut.blocks.size() && llvm::all_of(llvm::zip(cut.parts, cut.blocks), [&](auto each) {
             const auto [part, block] = each;
             return part > 0 && part < block && part >= (block + ranks - 1) / ranks;
           });
  if (divides_evenly(cut, ranks)) return true;
  return cut.blocks.size() == 1 && (cut.blocks[0] + ranks - 1) / ranks * (ranks - 1) < cut.blocks[0];
}

int64_t part_size(const Cut& cut, int64_t ranks) {
  if (!cut.parts.empty()) return std::accumulate(cut.parts.begin(), cut.parts.end(), int64_t{0});
  const int64_t size = size_of(cut), part = (size + ranks - 1) / ranks;
  if (divides_evenly(cut, ranks)) return part;
  const int64_t aligned = align_up(part, part_multiple);
  return aligned * (ranks - 1) < size ? aligned : part;
}

int64_t part_of_block(const Cut& cut, size_t block, int64_t ranks) {
  if (!cut.parts.empty()) return cut.parts[block];
  return cut.blocks.size() == 1 ? part_size(cut, ranks) : cut.blocks[block] / ranks;
}

bool has_axis(llvm::ArrayRef<Division> divisions, MeshAxis axis) {
  return llvm::any_of(divisions, [&](const Division& each) { return each.axis == axis; });
}

Shape whole_shape(llvm::ArrayRef<Division> divisions, llvm::ArrayRef<int64_t> own) {
  return divisions.empty() ? Shape(own.begin(), own.end()) : divisions.front().whole;
}

std::string to_string(llvm::ArrayRef<Division> divisions) {
  std::string text;
  for (const Division& each : divisions) {
    text += (text.empty() ? "" : " then ") + to_string(each.whole) + " along " + axis_name(each.axis).str();
    if (each.cut.dim == Cut::flat) continue;
    text += " in dim " + std::to_string(each.cut.dim);
    if (each.cut.blocks.size() > 1) text += " of " + to_string(each.cut.blocks);
    if (!each.cut.parts.empty()) text += " in parts " + to_string(each.cut.parts);
  }
  return text;
}

Attrs collective_attrs(MeshAxis axis, int64_t ranks, llvm::ArrayRef<int64_t> shape) {
  Attrs attrs{{"axis", axis_name(axis).str()}, {"ranks", ranks}};
  if (!shape.empty()) attrs.set("shape", Ints(shape.begin(), shape.end()));
  return attrs;
}

void for_each_run(const Type& whole, const Type& piece, const Cut& cut, int64_t coordinate,
                  llvm::function_ref<void(const PieceRun&)> visit) {
  if (cut.dim == Cut::flat) {
    const int64_t first = std::min(coordinate * piece.elements(), whole.elements());
    return visit({first, 0, std::min(piece.elements(), whole.elements() - first)});
  }
  const auto dim = static_cast<size_t>(cut.dim);
  const llvm::ArrayRef<int64_t> shape = whole.shape;
  const int64_t outer = element_count(shape.take_front(dim)), inner = element_count(shape.drop_front(dim + 1));
  const int64_t length = whole.shape[dim], own_length = piece.shape[dim];
  const int64_t ranks = length / std::max<int64_t>(own_length, 1);  // of several blocks, which divide evenly
  int64_t block_at = 0, own_at = 0;
  for (size_t i = 0; i < cut.blocks.size(); ++i) {
    const int64_t block = cut.blocks[i];
    const int64_t part = !cut.parts.empty() ? cut.parts[i] : cut.blocks.size() == 1 ? own_length : block / ranks;
    const int64_t first = std::min(coordinate * part, block), count = std::min(part, block - first);
    for (int64_t o = 0; o < outer; ++o)
      visit({(o * length + block_at + first) * inner, (o * own_length + own_at) * inner, count * inner});
    block_at += block;
    own_at += part;
  }
}

void copy_to_piece(const TensorView& piece, const TensorView& whole, const Cut& cut, int64_t coordinate) {
  std::memset(piece.data, 0, static_cast<size_t>(piece.type.bytes()));
  for_each_run(whole.type, piece.type, cut, coordinate,
               [&](const PieceRun& run) { copy_run(piece, run.piece_at, whole, run.whole_at, run.count); });
}

void copy_from_piece(const TensorView& whole, const TensorView& piece, const Cut& cut, int64_t coordinate) {
  for_each_run(whole.type, piece.type, cut, coordinate,
               [&](const PieceRun& run) { copy_run(whole, run.whole_at, piece, run.piece_at, run.count); });
}

Tensor piece_of(Tensor whole, llvm::ArrayRef<Division> divisions, const Mesh& mesh, int64_t rank,
                llvm::ArrayRef<int64_t> own_shape) {
  for (size_t i = 0; i < divisions.size(); ++i) {
    llvm::ArrayRef<int64_t> shape = own_shape;
    if (i + 1 < divisions.size()) shape = divisions[i + 1].whole;
    Tensor piece(Type(whole.type().dtype, shape));
    copy_to_piece(piece.view(), whole.view(), divisions[i].cut, mesh.coordinate(rank, divisions[i].axis));
    whole = std::move(piece);
  }
  return whole;
}

}  // namespace plimsoll
