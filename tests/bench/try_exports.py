#!/usr/bin/env python3
"""Trains small models of many families, exported with common settings, and compares with PyTorch.

Usage: try_exports.py write FOLDER [--only REGEX] [--again] [--steps 3] [--optimizer sgd|adamw]
       try_exports.py check FOLDER PLIMSOLL [--only REGEX] [--bf16] [--ops]

`write` makes one golden case (see ../golden/README.md) per model and exporter; it needs torch, transformers, timm,
torchvision, onnxscript and safetensors. `check` compiles and runs each, and needs only numpy. The reference is computed in
float64. If the error of PyTorch's own float32 is above a quarter of the tolerance, the limit is four times its largest error,
because batch norms over a few small images amplify one rounding ten-thousandfold. With --bf16 the limit is four times
the largest error of PyTorch under autocast, or two roundings to bf16.
"""
import argparse
import collections
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden"))
ROUNDINGS = 4  # runs of one precision that measure the model's own noise


# -- writing ----------------------------------------------------------------------------------------------------------

def export(model, batch, path, how):
    """`how` is exporter, opset and words: "dynamo20+optimize+dynamic"."""
    import torch

    exporter, opset, words = re.fullmatch(r"(dynamo|script)(\d+)((?:\+\w+)*)", how).groups()
    names, dynamic = list(batch), "dynamic" in words
    if exporter == "dynamo":
        size = torch.export.Dim("batch") if dynamic else None
        shapes = {"dynamic_shapes": tuple({0: size} for _ in names)} if dynamic else {}
        torch.onnx.export(model, tuple(batch.values()), path, dynamo=True, external_data=False, optimize="optimize" in words,
                          opset_version=int(opset), input_names=names, output_names=["loss"], verbose=False, **shapes)
        return
    mode = torch.onnx.TrainingMode.EVAL if "eval" in words else torch.onnx.TrainingMode.TRAINING
    torch.onnx.export(model, tuple(batch.values()), path, dynamo=False, training=mode, do_constant_folding="optimize" in words,
                      opset_version=int(opset), input_names=names, output_names=["loss"], verbose=False,
                      dynamic_axes={n: {0: "batch"} for n in names} if dynamic else None)


def bound_dims(path, batch):
    import onnx

    options = {}
    for entry in onnx.load(path, load_external_data=False).graph.input:
        for i, dim in enumerate(entry.type.tensor_type.shape.dim):
            if dim.dim_param:
                options[dim.dim_param] = batch[entry.name].shape[i]
    return [word for name, size in options.items() for word in ("--dim", "%s=%d" % (name, size))]


def stored_statistics(path, state):
    import onnx
    import torch

    stored = {t.name: t for t in onnx.load(path).graph.initializer if "running_" in t.name and t.name in state}
    return {name: torch.from_numpy(onnx.numpy_helper.to_array(t).copy()) for name, t in stored.items()}


def train(model, batch, kind, settings, steps, in_bf16=False):
    """Losses, gradients of the first step, and the states after the last."""
    import torch

    from make_golden import unique

    make = torch.optim.AdamW if kind == "adamw" else torch.optim.SGD
    arguments = {"lr": settings["lr"], "weight_decay": settings["weight_decay"]}
    if kind == "adamw":
        arguments.update(betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"])
    else:
        arguments.update(momentum=settings["momentum"])
    optimizer = make(model.parameters(), **arguments)
    losses, gradients = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=in_bf16):
            loss = model(*batch.values())
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = unique((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
        optimizer.step()
    return losses, gradients, unique(list(model.named_parameters()) + list(model.named_buffers()))


def distance(a, b, floor):
    """The largest ||a-b|| / ||b|| over the floating-point tensors of b."""
    top = 0.0
    for name, want in b.items():
        if want.is_floating_point():
            top = max(top, (a[name].double() - want).norm().item() / max(want.norm().item(), floor))
    return top


def nudged(state, seed, precision=6e-8):
    """Changes weights within a precision, that of float32 or bf16; differences after training show how far two correct results may differ."""
    import torch

    if seed == 0:
        return state
    noise = torch.Generator().manual_seed(seed)
    return {n: t * (1 + precision * torch.randn(t.shape, generator=noise)) if t.is_floating_point() else t for n, t in state.items()}


def as_double(batch):
    return {n: t.double() if t.is_floating_point() else t for n, t in batch.items()}


OPTIMIZERS = {"sgd": dict(kind="sgd", lr=0.05, momentum=0.9, weight_decay=1e-4),
              "adamw": dict(kind="adamw", lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01)}


def errors_of(runs, losses, grads, after, norm):
    """The largest of several runs, beside the reference."""
    return dict(loss=max(abs(l[0] - losses[0]) / max(abs(losses[0]), 1e-3) for l, _, _ in runs),
                gradient=max(distance(g, grads, 1e-3 * norm) for _, g, _ in runs),
                after=max(distance(a, after, 1e-2) for _, _, a in runs))


def write_case(folder, make, how, optimizer, steps):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model, batch = make()
    model.train()
    with torch.no_grad():  # an optimizing exporter would share equal initial values and drop zeros
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    path, options = os.path.join(folder, "model.onnx"), []
    small = batch
    if "rebatch" in how:  # exported with one batch, trained with twice that
        options = ["--batch", str(2 * next(iter(batch.values())).shape[0])]
        batch = {n: torch.cat([t, t.flip(0)]) for n, t in batch.items()}
    if "eval" in how:
        model.eval()
    export(model, small, path, how)
    options += bound_dims(path, batch)
    for name in sorted(name for name, parameter in model.named_parameters() if not parameter.requires_grad):
        options += ["--freeze", "^%s$" % re.escape(name)]  # which an export does not say
    state.update(stored_statistics(path, state))  # tracing may have changed them before they were written
    model.load_state_dict(state)
    model.train()
    settings = OPTIMIZERS[optimizer]
    in_float32, in_bf16 = [], []
    for seed in range(ROUNDINGS):
        model.load_state_dict(nudged(state, seed))
        in_float32.append(train(model, batch, optimizer, settings, steps))
        model.load_state_dict(nudged(state, seed, 2e-3))
        in_bf16.append(train(model, batch, optimizer, settings, steps, in_bf16=True))
    model.load_state_dict(state)
    losses, grads, after = train(model.double(), as_double(batch), optimizer, settings, steps)
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads.values()])).item()
    tied = collections.defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied[parameter.data_ptr()].append(name)
    save_file({n: t.contiguous() for n, t in batch.items()}, os.path.join(folder, "batch.safetensors"))
    save_file(grads, os.path.join(folder, "grads.safetensors"))
    save_file(after, os.path.join(folder, "after.safetensors"))
    expected = dict(steps=steps, losses=losses, grad_norm_step0=norm, optimizer=settings, options=options,
                    tied=[names for names in tied.values() if len(names) > 1],
                    float32=errors_of(in_float32, losses, grads, after, norm), bf16=errors_of(in_bf16, losses, grads, after, norm))
    json.dump(expected, open(os.path.join(folder, "expected.json"), "w"), indent=1)


def write(folder, only, again, steps, with_optimizer):
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    import torch

    import export_zoo

    torch.set_num_threads(1)
    for name, (make, hows, optimizer) in export_zoo.table().items():
        for how in hows:
            case = os.path.join(folder, name + "." + how)
            if not re.search(only, name + "." + how) or (os.path.exists(case) and not again):
                continue
            os.makedirs(case, exist_ok=True)
            started = time.time()
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    write_case(case, make, how, with_optimizer or optimizer, steps)
                print("%-44s written in %.1f s" % (name + "." + how, time.time() - started), flush=True)
            except Exception as e:  # a failure of one exporter must not hide the rest
                open(os.path.join(case, "not_exported"), "w").write(repr(e))
                print("%-44s not exported: %s" % (name + "." + how, repr(e)[:200].replace("\n", " ")), flush=True)


# -- checking ---------------------------------------------------------------------------------------------------------

def load(path):
    """The tensors of a safetensors file by name."""
    import numpy

    dtypes = {"F64": numpy.float64, "F32": numpy.float32, "I64": numpy.int64, "I32": numpy.int32, "BOOL": numpy.bool_}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        body = file.read()
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(body[slice(*t["data_offsets"])], dtypes[t["dtype"]]).reshape(t["shape"]) for name, t in header.items()}


def apart(found, wanted, floor):
    import numpy

    if found.shape != wanted.shape:
        return float("inf")
    return float(numpy.linalg.norm(found.astype(numpy.float64) - wanted)) / max(float(numpy.linalg.norm(wanted)), floor)


def worst(got, want, tied, floor):
    """The largest ||got - want|| / max(||want||, floor), its tensor, and the missing tensors. A tied parameter may have any of its
    names, and an optimizing exporter may have transposed it under a new name."""
    import numpy

    groups, top, absent = {name: group for group in tied for name in group}, (0.0, ""), []
    renamed = [tensor for name, tensor in got.items() if name not in want]
    for name, wanted in want.items():
        if wanted.dtype.kind != "f" or name.endswith(("num_batches_tracked", "inv_freq", "position_ids")):
            continue
        found = next((got[n] for n in groups.get(name, [name]) if n in got), None)
        if found is None:  # without influence on the loss it has zeros here and no gradient there
            closest = min((apart(f, wanted, floor) for r in renamed for f in (r, r.T)), default=float("inf"))
            if closest > 1e-3 and numpy.any(wanted):
                absent.append(name)
            continue
        difference = apart(found, wanted, floor)
        if name.endswith("running_var") and difference < 0.1:
            continue  # PyTorch keeps the unbiased estimate, ONNX the population variance
        if not difference <= top[0]:
            top = (difference, name)
    return top, absent


def flags_of(optimizer):
    words = ["--optimizer", optimizer["kind"]]
    for key, value in optimizer.items():
        if key != "kind":
            words += ["--" + key.replace("_", "-"), str(value)]
    return words


def forward_ops(program, plan):
    text = subprocess.run([program, "inspect", plan, "--json"], capture_output=True, text=True, check=True).stdout
    ops = collections.Counter()
    for instruction in json.loads(text)["instructions"]:
        if instruction.get("phase") == "forward":
            ops[instruction["op"]] += 1
    return " ".join("%s:%d" % pair for pair in sorted(ops.items()))


def check_case(program, folder, in_bf16, show_ops):
    expected = json.load(open(os.path.join(folder, "expected.json")))
    model, data, steps = os.path.join(folder, "model.onnx"), os.path.join(folder, "batch.safetensors"), expected["steps"]
    precision = ["--precision", "bf16"] if in_bf16 else []
    with tempfile.TemporaryDirectory() as scratch:
        plan, metrics, after, gradients = (os.path.join(scratch, n) for n in ("plan", "metrics", "after.safetensors", "gradients.safetensors"))
        for command in ([program, "compile", model, "-o", plan, "--device", "cpu"] + precision + flags_of(expected["optimizer"]) + expected["options"],
                        [program, "run", plan, "--weights", model, "--data", data, "--steps", str(steps), "--metrics", metrics,
                         "--save", after, "--dump-gradients", gradients, "--poison"]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                lines = (done.stderr or done.stdout).strip().splitlines()
                return False, "%s exits %d: %s" % (command[1], done.returncode, lines[-1][:600] if lines else ""), ""
        ops = forward_ops(program, plan) if show_ops else ""
        rows = [json.loads(line) for line in open(metrics)]
        loss = abs((rows[0]["loss"] or 0) - expected["losses"][0]) / max(abs(expected["losses"][0]), 1e-3)
        # Errors below the precision of the whole gradient mean nothing: the gradient of a bias before a batch norm is 0.
        gradient, absent = worst(load(gradients), load(os.path.join(folder, "grads.safetensors")), expected["tied"], 1e-3 * expected["grad_norm_step0"])
        parameter = worst(load(after), load(os.path.join(folder, "after.safetensors")), expected["tied"], 1e-2)[0]
    own, tolerance = (expected["bf16"], 1e-2) if in_bf16 else (expected["float32"], 1e-4)
    good = loss <= max(tolerance / 10, 4 * own["loss"]) and gradient[0] <= max(tolerance, 4 * own["gradient"])
    text = "loss %.1e, gradient %.1e %s" % ((loss,) + gradient)
    if absent:  # later steps then differ for a known reason
        return good and "optimize" in folder, text + ", %d parameters are not in the file, e.g. %s" % (len(absent), absent[0]), ops
    good = good and parameter[0] <= max(tolerance, 4 * own["after"])
    return good, text + ", after %d steps %.1e %s" % ((steps,) + parameter), ops


def check(folder, program, only, in_bf16, show_ops):
    totals = collections.Counter()
    for name in sorted(os.listdir(folder)):
        case = os.path.join(folder, name)
        if not re.search(only, name) or not os.path.exists(os.path.join(case, "expected.json")):
            continue
        try:
            good, text, ops = check_case(program, case, in_bf16, show_ops)
        except Exception as e:
            good, text, ops = False, repr(e)[:300], ""
        totals["passed" if good else "failed"] += 1
        print("%-44s %s  %s" % (name, "ok  " if good else "FAIL", text), flush=True)
        if ops:
            print("    " + ops, flush=True)
    print("%d passed, %d failed" % (totals["passed"], totals["failed"]))
    return totals["failed"] == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["write", "check"])
    parser.add_argument("folder")
    parser.add_argument("program", nargs="?")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true", help="write cases that exist already")
    parser.add_argument("--steps", type=int, default=3, help="that write trains")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="for write; without it, each family has its own")
    parser.add_argument("--bf16", action="store_true", help="check plans with --precision bf16")
    parser.add_argument("--ops", action="store_true", help="show what the forward step of each plan consists of")
    args = parser.parse_args()
    if args.stage == "write":
        write(args.folder, args.only, args.again, args.steps, args.optimizer)
    elif not args.program:
        parser.error("check needs the program")
    else:
        sys.exit(0 if check(args.folder, args.program, args.only, args.bf16, args.ops) else 1)


if __name__ == "__main__":
    main()
