#!/usr/bin/env python3
"""Losses of 300 steps beside PyTorch's, from the same first values on the same batches, with all that is drawn switched off.

Usage: loss_overlay_gpu.py PLIMSOLL [MODEL ...] [--steps 300] [--device h200] [--tolerance 0.01] [--jobs 3] [--small] [--lr 1e-4] [--gradients] [--json FILE]

Models are those of zoo_models.py and zoo_untuned.py. A step takes a quarter of the model's batch there, so that four batches take turns and losses fall. Plimsoll
runs bf16 with f32 weights, PyTorch (eager) the same by autocast, and f32 with TF32 products, which shows how far apart PyTorch's own runs are. Of means over ten
steps the largest and the mean relative difference from PyTorch's in bf16 are printed, up to the step at which PyTorch's own two runs are 5 % apart, behind which
rounding decides; where the largest of Plimsoll is above --tolerance and above twice that of f32, the script fails. --gradients compares the gradients of the first step instead: of each parameter the distance from PyTorch's in f32 without
TF32, as a share of their length, beside that of PyTorch's in bf16; where Plimsoll's is above twice the latter and above --tolerance, the script fails. --small trains tiny models, on a machine without a GPU too. Needs torch, transformers, timm, onnxscript and safetensors.
"""
import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import warnings

from gpu_training import SETTINGS, compile_options, export_program

MODELS = ["gpt2", "bert", "modernbert", "t5", "deberta", "swin", "deit", "convnext", "efficientnet", "unet"]
BATCHES, MEAN_OF, COMPARABLE = 4, 10, 0.05


def case_of(name):
    from zoo_models import ZOO
    from zoo_untuned import UNTUNED

    cases = {**ZOO, **UNTUNED}
    if name not in cases:
        sys.exit(f"no model {name}; there are {', '.join(cases)}")
    return cases[name]


def make(name, small):
    """The module without chance, and the inputs of all batches: as many samples as divide by their number."""
    import torch
    from export_zoo import without_chance

    torch.manual_seed(0)
    case = case_of(name)
    inputs = case.batch(small)
    if small:
        inputs = {key: tensor.repeat_interleave(BATCHES // 2, 0) for key, tensor in inputs.items()}
    count = next(iter(inputs.values())).shape[0] // BATCHES * BATCHES
    return without_chance(case.build(small)).train(), {key: tensor[:count] for key, tensor in inputs.items()}, count // BATCHES


def export(name, folder, small):
    import safetensors.torch

    model, inputs, batch = make(name, small)
    export_program(model, {key: tensor[:batch] for key, tensor in inputs.items()}).save(folder / "model.onnx", external_data=True)
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in inputs.items()}, folder / "data.safetensors")


def train(name, small, steps, half):
    """Prints PyTorch's losses."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model, inputs, batch = make(name, small)
    model, inputs = model.to(device), {key: tensor.to(device) for key, tensor in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]), eps=SETTINGS["eps"], weight_decay=SETTINGS["weight_decay"])
    losses = []
    for step in range(steps):
        begin = step % BATCHES * batch
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16) if half else contextlib.nullcontext():
            loss = model(*(tensor[begin:begin + batch] for tensor in inputs.values()))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(json.dumps([loss.item() for loss in losses]))


def compare_gradients(name, small, ours):
    """Prints {parameter: [its length, the distance of Plimsoll's gradient, that of PyTorch's in bf16]}."""
    import safetensors.torch
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, inputs, batch = make(name, small)
    model, inputs = model.to(device), [tensor[:batch].to(device) for tensor in inputs.values()]
    gradients = []
    for context in (contextlib.nullcontext(), torch.autocast(device, dtype=torch.bfloat16)):
        model.zero_grad(set_to_none=True)
        with context:
            loss = model(*inputs)
        loss.backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None})
    exact, half = gradients
    own = safetensors.torch.load_file(ours, device=device)
    tied = {}  # a parameter's names; the dump has one of them
    for key, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(key)
    names = {keys[0]: next(key for key in keys if key in own) for keys in tied.values() if keys[0] in exact}
    result = {}
    for key, gradient in exact.items():
        result[key] = [gradient.norm().item(), (own[names[key]] - gradient).norm().item(), (half[key] - gradient).norm().item()]
    print(json.dumps(result))


def part(args, name, *words):
    command = [sys.executable, os.path.abspath(__file__), args.program, name, *(["--small"] if args.small else []), "--steps", str(args.steps), "--lr", str(args.lr), "--part", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else None


def run_plimsoll(args, folder, steps, *words):
    plan, metrics = folder / "model.plan", folder / "metrics.jsonl"
    subprocess.run([args.program, "compile", folder / "model.onnx", "-o", plan, "--device", args.device, *compile_options()], check=True, capture_output=True, text=True)
    subprocess.run([args.program, "run", plan, "--weights", folder / "model.onnx", "--data", folder / "data.safetensors", "--in-order", "--steps", str(steps), "--metrics", metrics, *words],
                   check=True, capture_output=True, text=True)
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


def means(losses):
    return [statistics.fmean(losses[at:at + MEAN_OF]) for at in range(0, len(losses), MEAN_OF)]


def differences(result):
    """{side: (the largest, the mean)} of relative differences from PyTorch's bf16, and up to which step."""
    beside = means(result["bf16"])
    apart = {side: [abs(one - other) / max(abs(other), 1e-3) for one, other in zip(means(result[side]), beside)] for side in ("plimsoll", "fp32")}
    count = next((at for at, difference in enumerate(apart["fp32"]) if difference > COMPARABLE), len(beside))
    return {side: (max(values[:count]), statistics.fmean(values[:count])) for side, values in apart.items()} if count else {}, count * MEAN_OF


def compare(args, name):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        part(args, name, "export", folder)
        if args.gradients:
            dump = folder / "gradients.safetensors"
            run_plimsoll(args, folder, 1, "--dump-gradients", dump)
            return part(args, name, "gradients", dump)
        ours = run_plimsoll(args, folder, args.steps)
    half, full = part(args, name, "bf16"), part(args, name, "fp32")
    return {"plimsoll": ours, "bf16": half, "fp32": full}


def report_losses(args, name, result):
    """Whether the losses agree."""
    apart, until = differences(result)
    (ours, ours_mean), (full, full_mean) = (apart.get(side, (math.inf, math.inf)) for side in ("plimsoll", "fp32"))
    good = until > 0 and ours <= max(args.tolerance, 2 * full)
    print(f"{name:14} loss {result['plimsoll'][0]:.4f} -> {result['plimsoll'][-1]:.4f}, PyTorch {result['bf16'][0]:.4f} -> {result['bf16'][-1]:.4f}; up to step {until} apart by {100 * ours:.2f} % at "
          f"most, {100 * ours_mean:.3f} % on average, PyTorch's f32 by {100 * full:.2f} and {100 * full_mean:.3f} %{'' if good else '  FAILED'}", flush=True)
    return good


def report_gradients(args, name, result):
    """Whether the gradients agree."""
    whole = [math.sqrt(sum(lengths[at] ** 2 for lengths in result.values())) for at in range(3)]
    bad = {key: lengths for key, lengths in result.items() if not lengths[1] <= max(args.tolerance * lengths[0], 2 * lengths[2])}
    print(f"{name:14} gradients of {len(result)} parameters apart by {100 * whole[1] / whole[0]:.2f} % of their length, PyTorch's in bf16 by {100 * whole[2] / whole[0]:.2f} %", flush=True)
    for key, (length, ours, half) in sorted(bad.items(), key=lambda item: -item[1][1] / max(item[1][2], 1e-30))[:5]:
        print(f"    {key}: {ours:.3g} of {length:.3g}, PyTorch's in bf16 {half:.3g}  FAILED", flush=True)
    return not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="PLIMSOLL")
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--jobs", type=int, default=3, help="models at a time")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--lr", type=float, default=SETTINGS["lr"], help="a rate a little beside another shows how far rounding alone carries losses apart")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    SETTINGS["lr"] = args.lr
    if args.part:
        way, *rest = args.part
        if way == "export":
            export(args.models[0], pathlib.Path(rest[0]), args.small)
        elif way == "gradients":
            compare_gradients(args.models[0], args.small, rest[0])
        else:
            train(args.models[0], args.small, args.steps, way == "bf16")
        return 0
    results, failed = {}, False
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        work = {pool.submit(compare, args, name): name for name in args.models}
        for done in concurrent.futures.as_completed(work):
            name = work[done]
            if error := done.exception():
                print(f"{name:14} failed: {getattr(error, 'stderr', None) or error}", flush=True)
                failed = True
                continue
            results[name] = done.result()
            failed |= not (report_gradients if args.gradients else report_losses)(args, name, results[name])
    if args.json:
        args.json.write_text(json.dumps(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
