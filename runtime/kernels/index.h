#pragma once

#include "runtime/kernels/cuda_candidate.h"

namespace plimsoll {

namespace kernel {
extern const CudaCandidate gather_rows, gather_grad_sorted, gather_elements_elements, gather_nd_tuples,
    one_hot_elements, scatter_elements_sorted, scatter_nd_sorted, cumsum_scan, triangular_elements,
    reverse_sequence_elements, top_k_repeated_search, arg_max_search, arg_min_search;
}

inline constexpr const CudaCandidate* index_candidates[] = {&kernel::gather_rows,
                                                            &kernel::gather_grad_sorted,
                                                            &kernel::gather_elements_elements,
                                                            &kernel::gather_nd_tuples,
                                                            &kernel::one_hot_elements,
                                                            &kernel::scatter_elements_sorted,
                                                            &kernel::scatter_nd_sorted,
                                                            &kernel::cumsum_scan,
                                                            &kernel::triangular_elements,
                                                            &kernel::reverse_sequence_elements,
                                                            &kernel::top_k_repeated_search,
                                                            &kernel::arg_max_search,
                                                            &kernel::arg_min_search};

}  // namespace plimsoll
