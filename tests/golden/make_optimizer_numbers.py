"""Writes tests/passes/train/optimizer_numbers.h: parameters after steps of PyTorch's optimizers (torch 2.9 or later).

    python make_optimizer_numbers.py > ../passes/train/optimizer_numbers.h

The loss is sum(x * w * w) / 2 over some parameters w, so that a gradient is x * w. LAMB and Lion, which PyTorch does not
have, follow their papers.
"""
import math

import torch

SHAPES = {"tall": (3, 2), "wide": (2, 4), "bias": (3,), "cube": (2, 2, 3)}
STEPS = 4


def values(name, phase):
    """The same formula as in the test."""
    shape = SHAPES[name]
    count = math.prod(shape)
    offset = list(SHAPES).index(name)
    return torch.tensor([math.sin(1.3 * i + offset + phase) for i in range(count)], dtype=torch.float64).reshape(shape)


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of You et al. 2020, with bias correction; parameters without decay keep AdamW's rate."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state.setdefault(p, {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)})
                state["t"] += 1
                state["m"].lerp_(p.grad, 1 - beta1)
                state["v"].lerp_(p.grad * p.grad, 1 - beta2)
                m, v = state["m"] / (1 - beta1 ** state["t"]), state["v"] / (1 - beta2 ** state["t"])
                r = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                trust = p.norm() / r.norm() if group["weight_decay"] else 1
                p -= group["lr"] * trust * r


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state.setdefault(p, {"m": torch.zeros_like(p)})["m"]
                c = beta1 * m + (1 - beta1) * p.grad
                p -= group["lr"] * (c.sign() + group["weight_decay"] * p)
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def muon_and_adamw(groups, lr):
    """Matrices have Muon, everything else AdamW."""
    muon = torch.optim.Muon([p for g in groups for p in g["params"] if p.ndim == 2], lr=lr, weight_decay=0.1,
                            adjust_lr_fn="match_rms_adamw")
    rest = [{**g, "params": [p for p in g["params"] if p.ndim != 2]} for g in groups]
    adamw = torch.optim.AdamW(rest, lr=lr, weight_decay=0.1)

    class Both:
        def step(self):
            muon.step()
            adamw.step()

        def zero_grad(self):
            muon.zero_grad()
            adamw.zero_grad()

    return Both()


# By the test's name: makes the optimizer of parameter groups, of which the second has no decay.
CASES = {
    "sgd": lambda g: torch.optim.SGD(g, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda g: torch.optim.Adam(g, lr=0.05, weight_decay=0.1),
    "adamw": lambda g: torch.optim.AdamW(g, lr=0.05, weight_decay=0.1),
    "adafactor": lambda g: torch.optim.Adafactor(g, lr=0.1, weight_decay=0.1, eps=(torch.finfo(torch.float32).eps, 1e-3)),
    "lion": lambda g: Lion(g, lr=0.05, weight_decay=0.1),
    "rmsprop": lambda g: torch.optim.RMSprop(g, lr=0.02, weight_decay=0.1, momentum=0.5),
    "adagrad": lambda g: torch.optim.Adagrad(g, lr=0.1, weight_decay=0.1),
    "lamb": lambda g: Lamb(g, lr=0.05, weight_decay=0.1),
    "muon": lambda g: muon_and_adamw(g, lr=0.05),
}


def train(make, change_gradients=lambda params: None, bias_group=None, ema=None):
    params = {name: torch.nn.Parameter(values(name, 0.5)) for name in SHAPES}
    averages = {name: p.detach().clone() for name, p in params.items()}
    groups = [{"params": [p for name, p in params.items() if name != "bias"]},
              {"params": [params["bias"]], **(bias_group or {"weight_decay": 0})}]
    optimizer = make(groups)
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum((values(name, 2.0) * p * p).sum() / 2 for name, p in params.items()).backward()
        change_gradients(list(params.values()))
        optimizer.step()
        for name, p in params.items():
            averages[name].mul_(ema or 0).add_(p.detach(), alpha=1 - (ema or 0))
    return torch.cat([(averages if ema else params)[name].detach().flatten() for name in SHAPES])


def clip_both(params):
    torch.nn.utils.clip_grad_value_(params, 0.6)
    torch.nn.utils.clip_grad_norm_(params, 1.5)


def show(name, numbers):
    text = ", ".join(f"{x:.9g}" for x in numbers.tolist())
    print(f"    {{\"{name}\", {{{text}}}}},")


def main():
    print("#pragma once\n\n// Made by tests/golden/make_optimizer_numbers.py from PyTorch's optimizers.\n")
    print("#include <map>\n#include <string>\n#include <vector>\n\nnamespace plimsoll::testing {\n")
    print("// By optimizer: all parameters after the last step, one after the other.")
    print("inline const std::map<std::string, std::vector<double>> optimizer_numbers = {")
    for name, make in CASES.items():
        show(name, train(make))
    show("clipped", train(CASES["sgd"], clip_both))
    show("slow bias", train(CASES["adamw"], bias_group={"lr": 0.005}))
    show("ema", train(CASES["adamw"], ema=0.75))
    print("};\n\n}  // namespace plimsoll::testing")


if __name__ == "__main__":
    main()
