#pragma once

// What the records of parameter updates share.

#include "ir/ops/common/support.h"

#include <initializer_list>
#include <optional>

namespace plimsoll {

// The operand is a float of the parameter's shape.
Status need_like_parameter(const OpCall& call, PortKey operand);
Status need_float_scalar(const OpCall& call, PortKey operand);

// The operand {scale}, 1 where it is absent.
double scale_of(const ReferenceCall& call);
// Does the call leave everything as it was? Then copies each of the states.
bool skips(const ReferenceCall& call, std::initializer_list<llvm::StringRef> states);

// Updates of a parameter in bf16 round it stochastically where {rounding_id} is not 0: element i by draw {first_draw} +
// i of the stream of that id, of seed 0 and of the update's number, so that the bits do not depend on the plan.
inline constexpr AttrSpec rounding_attr{"rounding_id", 0};
Status need_rounding(const OpCall& call);
// A new element of the parameter as it is stored.
double rounded(const ReferenceCall& call, int64_t i, double value);

// Updates of an f32 parameter also give the new one rounded to {copy_dtype}, bf16 or f16, where they have it: what a
// 16-bit step reads, so that it need not read and cast the parameter.
inline constexpr AttrSpec copy_dtype_attr{"copy_dtype", AttrKind::DType, AttrNeed::Optional};
Status need_copy_dtype(const OpCall& call);

void add_copy(const OpCall& call, Types& results);
void write_copy(const ReferenceCall& call);  // of the parameter that was written

// The update of the elements in one chunk. Elements are updated each by itself; a norm is of a block, which no chunk
// cuts.
std::optional<ChunkCall> cut_update(const OpCall& call, Chunk chunk, std::initializer_list<PortKey> operands);

inline constexpr AttrSpecs adamw_attrs = {{"beta1", AttrKind::Float},
                                          {"beta2", AttrKind::Float},
                                          {"eps", AttrKind::Float},
                                          {"weight_decay", 0.0},
                                          {"decoupled", 1},
                                          {"norms", 0},
                                          rounding_attr,
                                          first_draw_attr,
                                          draws_per_rank_attr,
                                          draws_per_part_attr};

// One norm per block of grad: f32, or f64 of an f64 gradient.
void add_norms(const OpCall& call, Types& results);
void write_norms(const ReferenceCall& call);

// Ten operations for each element of the parameter.
double ten_each(const OpCall& call, llvm::ArrayRef<Type> results);

}  // namespace plimsoll
