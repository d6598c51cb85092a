"""Writes tests/passes/train/eight_bit_numbers.h: what torchao's AdamW with 8-bit moments makes (torchao 0.18 or later).

    python make_eight_bit_numbers.py > ../passes/train/eight_bit_numbers.h

The loss is sum(x * w * w) / 2, so that a gradient is x * w. torchao's update runs as it stands, without torch.compile.
"""
import math

import torch
from torchao.optim.adam import single_param_adam
from torchao.optim.subclass_8bit import OptimState8bit

SHAPE = (24, 256)
STEPS = 5
SAMPLED = 61  # every so many elements are written


def values(phase):
    """The same formula as in the test."""
    count = math.prod(SHAPE)
    return torch.tensor([math.sin(1.3 * i + phase) * 10.0 ** -(i % 7) for i in range(count)], dtype=torch.float32)


def rows(name, numbers, kind):
    text = ", ".join(f"{n:.9g}" if kind == "double" else str(int(n)) for n in numbers)
    return f"inline const std::vector<{kind}> {name}{{{text}}};\n"


def main():
    w, x = values(0.5).reshape(SHAPE), values(2.0).reshape(SHAPE)
    step = torch.tensor(0.0, dtype=torch.float64)  # in f32, 1 - beta2 ** step has four digits
    m, v = OptimState8bit.zeros(SHAPE, True), OptimState8bit.zeros(SHAPE, False)
    lr = torch.tensor(0.05)
    for _ in range(STEPS):
        step += 1
        single_param_adam(w, x * w, step, m, v, None, lr, 0.9, 0.999, 0.1, 1e-8, True, False)
    print("#pragma once\n")
    print("// Written by tests/golden/make_eight_bit_numbers.py.\n")
    print("#include <vector>\n\nnamespace plimsoll::testing {\n")
    print(f"inline constexpr int eight_bit_steps = {STEPS}, sampled_every = {SAMPLED};")
    print("// clang-format off")
    print(rows("eight_bit_weights", w.flatten()[::SAMPLED], "double"), end="")
    print(rows("eight_bit_means", m.codes.flatten()[::SAMPLED], "int"), end="")
    print(rows("eight_bit_squares", v.codes.flatten()[::SAMPLED], "int"), end="")
    print(rows("eight_bit_scales", torch.stack([m.scale, v.scale], 1).flatten(), "double"), end="")
    print("// clang-format on\n\n}  // namespace plimsoll::testing")


main()
