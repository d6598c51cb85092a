#!/usr/bin/env python3
"""Looks into the backend's library, without a card: does it hold code for the architectures asked for, and do its kernels keep
everything in registers? A kernel whose stack grows past what is listed here has begun to spill, or indexes registers at run time.

usage: check_kernels.py LIBRARY ARCHITECTURES CUOBJDUMP     architectures as CMake names them: "80-real;90a-real;90-virtual"
"""
import re
import subprocess
import sys

# Bytes of stack a thread may have on Hopper, by kernel: all others have none.
STACK = {
    r"\d+dk_dv_kernelILi64E": 32,  # numbers of dropout, beside two accumulators
    r"\d+dq_kernelILi128E": 8,
    # Launch bounds keep several blocks on a multiprocessor, and the registers left are a few less than a tile and the
    # numbers of its dropout take.
    r"\d+attention_mma_kernelI": 136,
    # The branches that cap scores and close other documents' pairs take some more.
    r"\d+dk_dv_mma_kernelI": 200,
    r"\d+dq_mma_kernelI": 176,
    # Heads of 256 elements and their sums fill the registers; shorter heads spill 56 bytes at most, and only beside the
    # branches for caps, slopes, segments and masks with rows.
    r"\d+attention_warpgroup_kernelI": 128,
    r"\d+ring_dx_kernelI": 8,  # 17 warps have 96 registers a thread
    # 32 registers of a loading thread, or 128 of a computing one, are a few less than dropout takes. Of four computing
    # warpgroups a thread has 112.
    r"\d+attention_short_forward_kernelI": 24,
    r"\d+dk_dv_warpgroup_kernelI": 80,
    r"\d+dk_dv_warpgroup_kernelI.*ELb[01]ELb1E": 128,  # capped: part of dP waits there until masks are added
    # Two computing warpgroups leave few registers to the warps that load, and fewer where those draw dropout's bits.
    r"\d+one_pass_short_kernelI.*ShortTileILi32ELb1E": 32,
    r"\d+one_pass_short_kernelI.*ShortTileILi64ELb0E": 16,
    r"\d+one_pass_short_kernelI.*ShortTileILi64ELb1E": 80,
    r"\d+one_pass_short_kernelI.*ShortTileILi80E": 8,
    r"\d+one_pass_short_kernelI.*ShortTileILi96E": 72,
    r"\d+one_pass_kernelI.*OnePassTileILi128E.*ELb[01]ELb1E": 48,  # capped, of which weights and derivatives are held
    r"\d+short_heads_kernelILi[24]ELb1E": 8,  # numbers of dropout; without them 122 of 128 registers are used
    r"\d+whole_heads_kernelI": 24,  # four warpgroups on a multiprocessor, of which each thread has 128 registers
    r"\d+dq_warpgroup_kernelI": 136,
    r"\d+dq_warpgroup_kernelI.*StoresE[12]": 168,  # where dS is written, too
    # 80 registers a thread, for three blocks on a multiprocessor, hold the operands of 7 x 7 taps; where tiles lie does not fit.
    r"\d+depthwise_bands_kernelI.*Li7E": 32,
    # Five blocks of 128 threads, or two of 256, hold a strip or the sums of a piece of taps; f32 pixels take twice the registers.
    r"\d+lines_kernelI": 16,
    r"\d+lines_dw_kernelI": 40,
    r"\d+lines_dw_kernelIf": 136,
    # 640 threads leave 96 registers each, and slopes of f16 take a few more than those of bf16.
    r"\d+finished_product_kernelI6__half.*SlopeI": 16,
    r"\d+finished_product_kernelI.*HalvedTileI": 16,  # as many threads, whose sums of a half wait beside the next products
    r"\d+mask_grad_flash_kernelI": 32,
    r"\d+attention_windows_kernelI.*Li8E": 16,  # windows of 64 columns, of which four blocks are on a multiprocessor
    r"\d+attention_window_boxes_kernelI.*Li8ELb1E": 8,  # the same with segments
    # Three blocks; the most where each thread has the sums of its scores over the windows, too.
    r"\d+attention_grad_windows_kernelI": 48,
    r"\d+attention_grad_windows_kernelI.*SegmentsILb1E": 88,  # and the numbers of its segments
    r"\d+attention_grad_window_boxes_kernelI.*SegmentsILb1E": 16,  # three blocks, which have the sums and the segments
    # 128 registers hold the sums of three accesses, but not the numbers of the dropout behind the gradient besides.
    r"\d+norm_grad_kernelI.*ELb1ENS.*RowSharesILi3E": 40,
    r"\d+norm_grad_kernelIff.*ELb0ENS.*RowSharesILi1ELi2E": 8,  # two rows of f32 on their way
    r"\d+norm_grad_kernelI.*ELb1ENS.*RowSharesILi2ELi2E": 8,  # two accesses of two rows, and dropout
    # 1024 threads leave 64 registers each, which the activation behind a norm and its derivative do not quite fit.
    r"\d+group_norm_kernelIf": 16,
    r"\d+group_dx_kernelI": 16,
    r"\d+slab_dx_kernelI": 32,  # two blocks of 512
    r"\d+held_grad_kernelILi1ELi32ELb1Ef": 16,  # 32 elements of two operands in f32, one by one
    r"\dreduce_any_kernel": 96,             # dimensions indexed at run time, as in the next two
    r"\dreduce_integers_kernel": 16,
    r"\dpad_grad_kernel": 480,
    r"\drandom_kernelI.*Normal": 40,        # cosines of any argument, as in the next
    r"\dmap_kernelI.*NarrowSineI": 32,       # in 16 bits those of large ones alone
    r"\dmap_kernelI.*ChosenI.*PT1_PKT2_$": 96,  # a function of one operand, chosen at run time
}


def architectures(library, tool):
    """What the library holds: {"sm_90a", "compute_90"}, and (architecture, kernel, bytes of stack) of each kernel."""
    usage = subprocess.run([tool, "--dump-resource-usage", library], capture_output=True, text=True, check=True).stdout
    held, kernels, arch, name, is_machine_code = set(), [], None, None, False
    for line in usage.splitlines():
        if match := re.match(r"Fatbin (\w+) code", line):
            is_machine_code = match[1] == "elf"
        elif (match := re.match(r"arch = (\S+)", line)) and is_machine_code:
            arch = match[1]
            held.add(arch)
        elif match := re.match(r" Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"STACK:(\d+)", line):
            kernels.append((arch, name, int(match[1])))
    listed = subprocess.run([tool, "--list-ptx", library], capture_output=True, text=True).stdout
    return held | {"compute_" + number for number in re.findall(r"(?:sm|compute)_(\w+)\.ptx", listed)}, kernels


def main():
    library, wanted, tool = sys.argv[1], sys.argv[2].split(";"), sys.argv[3]
    if tool.endswith("-NOTFOUND"):
        print("skipped: no cuobjdump here")
        return 77
    held, kernels = architectures(library, tool)
    failures = []
    for name in wanted:
        number, _, kind = name.partition("-")
        for prefix in {"real": ["sm_"], "virtual": ["compute_"]}.get(kind, ["sm_", "compute_"]):
            if prefix + number not in held:
                failures.append(f"no code for {prefix}{number}; there is {', '.join(sorted(held))}")
    for arch, name, stack in kernels:
        allowed = max((bytes for pattern, bytes in STACK.items() if re.search(pattern, name)), default=0)
        if arch.startswith("sm_90") and stack > allowed:
            failures.append(f"{name} on {arch}: {stack} bytes of stack a thread, {allowed} are expected")
    print("\n".join(failures) or f"{len(kernels)} kernels for {', '.join(sorted(held))}")
    return 1 if failures or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
