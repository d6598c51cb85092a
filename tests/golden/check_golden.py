#!/usr/bin/env python3
"""Compare `plimsoll compile` and `plimsoll run` with what PyTorch computed. Needs Python's standard library alone.

Usage: check_golden.py PLIMSOLL [CASE ...] [--device cpu] [--precision fp32|bf16|fp16|fp8] [--layout auto] [--split off] [--ranks 1 | --mesh stage=2 | --mesh tensor=2] [--tolerance 1e-4] ...

Without a CASE it runs all of them. Prints one line per case and `N passed, N failed`. The precision decides the limits:
PyTorch's results are float32, so bf16 and fp16 are compared within 8 and 11 significant bits. Parameters are compared only
in fp32, because Adam makes full steps even of gradients that are pure rounding.
"""
import argparse
import array
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
CASES = {
    "bert_classifier": "bert", "bert_classifier_torchscript": "bert", "gpt2": "gpt2", "gpt2_opset23": "gpt2",
    "llama_gqa": "llama", "lstm": "lstm", "mlp": "mlp", "resnet": "resnet", "resnet_torchscript": "resnet",
    "unet": "unet", "vit": "vit", "gemma2": "attention", "bloom": "attention", "gpt_oss": "attention", "llama_packed": "attention",
}
OPTIMIZER_OPTIONS = {
    "kind": "--optimizer", "lr": "--lr", "momentum": "--momentum", "weight_decay": "--weight-decay",
    "beta1": "--beta1", "beta2": "--beta2", "eps": "--eps", "clip_grad_norm": "--clip-grad-norm",
}
FLOATS = {"F64": "d", "F32": "f"}
# Limits for gradients, loss and global gradient norm; and the share of that norm below which a gradient is rounding.
LIMITS = {"fp32": (1e-4, 1e-5, 1e-5, 1e-6), "bf16": (2e-2, 5e-3, 2e-2, 1e-5), "fp16": (5e-3, 1e-3, 5e-3, 1e-5),
          "fp8": (0.2, 2e-2, 6e-2, 1e-4)}
# In these cases rounding the input switches ReLU units (mlp: 8 samples; resnet: batch norm over 4 values). The figures are the
# worst gradients of PyTorch 2.11's own autocast against its float32; the limit is 1.2 times that.
AUTOCAST = {"bf16": {"mlp": 7.3e-2, "resnet": 1.4, "resnet_torchscript": 1.4},
            "fp16": {"resnet": 1.4e-1, "resnet_torchscript": 1.4e-1}}
UNSTEADY = {"resnet", "resnet_torchscript"}  # later steps of these are not compared
NOISE = 1e-8  # share of the global gradient norm: error of float32 sums if the true gradient is zero
UNTRAINED = ("num_batches_tracked", "inv_freq", "position_ids", "embed_scale")


def unpack(case, folder):
    with tarfile.open(FOLDER / f"{CASES[case]}.tar.xz") as archive:
        for member in archive.getmembers():
            if member.name.startswith(case + "/"):
                archive.extract(member, folder)
    return pathlib.Path(folder) / case


def load_floats(path):
    """Float tensors of a safetensors file by name, and the shapes of all its tensors."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        body = file.read()
    header.pop("__metadata__", None)
    floats = {}
    for name, tensor in header.items():
        if tensor["dtype"] in FLOATS:
            begin, end = tensor["data_offsets"]
            floats[name] = array.array(FLOATS[tensor["dtype"]], body[begin:end])
    return floats, {name: tensor["shape"] for name, tensor in header.items()}


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def relative(got, want, smallest=1e-12):
    if len(got) != len(want):
        return math.inf
    difference = norm([g - w for g, w in zip(got, want)])
    return difference / max(norm(want), smallest) if math.isfinite(difference) else math.inf


def worst(got, want, tied, smallest=1e-12):
    """The largest relative difference and its tensor. A tied parameter may carry any of its names."""
    groups = {name: group for group in tied for name in group}
    top = (0.0, "")
    for name, wanted in want.items():
        if name.endswith(UNTRAINED):
            continue
        found = next((got[n] for n in groups.get(name, [name]) if n in got), None)
        if found is None:
            return math.inf, name + " is missing"
        difference = relative(found, wanted, smallest)
        # PyTorch keeps the unbiased estimate of the variance, ONNX specifies the population variance.
        if name.endswith("running_var") and difference < 0.1:
            continue
        top = max(top, (difference, name))
    return top


def without_noise(got, want, got_gradients, want_gradients, noise, reach):
    """Adam divides a gradient by its own size, so it magnifies rounding of small ones: an error of `noise` in a gradient g moves
    a parameter by up to noise / |g| of its `reach`, and by all of it where the gradient is pure rounding (a key's bias, whose
    true gradient is zero). Elements count as equal within that. Those whose gradients are both exactly zero must be equal."""
    settled = {}
    for name, values in got.items():
        columns = (values, want.get(name, ()), got_gradients.get(name, ()), want_gradients.get(name, ()))
        if len({len(column) for column in columns}) == 1:
            values = array.array("d", (w if abs(v - w) <= reach * min(1, noise / (max(abs(g), abs(h)) or math.inf)) else v
                                       for v, w, g, h in zip(*columns)))
        settled[name] = values
    return settled


def launcher(ranks):
    """How `ranks` processes are started on this machine; nothing for one."""
    if ranks == 1:
        return []
    mpirun = shutil.which("mpirun.openmpi")
    if not mpirun:
        return [sys.executable, FOLDER.parent / "support" / "start_ranks.py", str(ranks)]
    return [mpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]


def reason_of(done):
    """Why a command failed: the first error of the program, behind which a launcher of ranks may say more, or the last line."""
    lines = (done.stderr or done.stdout).strip().splitlines() or [""]
    return next((line for line in lines if "plimsoll: error: " in line), lines[-1])


def execute(command, timeout):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:2]))} exits {done.returncode}: {reason_of(done)[:200]}")
    return done.stdout


def train(case, expected, args):
    """Compiles and runs one case; returns metrics, gradients of the first step, and parameters at the end."""
    plan, metrics = case / "case.plan", case / "metrics.jsonl"
    gradients, after = case / "got_grads.safetensors", case / "got_after.safetensors"
    options = ["--devices", args.devices] if args.devices else ["--device", args.device]
    options += ["--device-file", args.device_file] if args.device_file else []
    options += ["--budget", args.budget] if args.budget else []
    options += ["--precision", args.precision, "--layout", args.layout, "--split", args.split]
    options += ["--mesh", args.mesh, "--zero", args.zero] if args.ranks > 1 else []
    if "stage" in args.mesh:
        options += ["--micro-batches", args.micro_batches, "--schedule", args.schedule]
    options += ["--loss-scale", args.loss_scale] if args.loss_scale else []
    for key, value in expected["optimizer"].items():
        options += [OPTIMIZER_OPTIONS[key], str(value)]
    if expected["exporter"] == "torchscript":
        _, shapes = load_floats(case / "batch.safetensors")
        options += ["--dim", f"batch={next(iter(shapes.values()))[0]}"]
    execute([args.program, "compile", case / "model.onnx", "-o", plan, *options], args.timeout)
    dump = ["--dump-gradients", gradients] if args.ranks == 1 else ["--threads", "1"]
    execute([*launcher(args.ranks), args.program, "run", plan, "--weights", case / "model.onnx", "--data",
             case / "batch.safetensors", "--steps", str(expected["steps"]), "--metrics", metrics, "--save", after, *dump],
            args.timeout)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row for row in rows if "loss" in row], load_floats(gradients)[0] if args.ranks == 1 else {}, load_floats(after)[0]


def check(case, args):
    expected = json.loads((case / "expected.json").read_text())
    rows, gradients, after = train(case, expected, args)
    if len(rows) < expected["steps"]:
        raise RuntimeError(f"metrics hold {len(rows)} losses of {expected['steps']}")

    def loss_difference(step):
        want = expected["losses"][step]
        return abs(rows[step]["loss"] - want) / max(abs(want), 1e-3)

    want_norm = expected["grad_norm_step0"]
    last = expected["steps"] - 1
    tolerance = max(args.tolerance, 1.2 * AUTOCAST.get(args.precision, {}).get(case.name, 0))
    unsteady = args.precision != "fp32" and case.name in UNSTEADY
    later_tolerance = math.inf if unsteady else args.loss_tolerance * (100 if args.precision == "fp32" else 4)
    norm_tolerance = math.inf if unsteady else args.norm_tolerance
    want_gradients = load_floats(case / "grads.safetensors")[0]
    want_after = load_floats(case / "after.safetensors")[0]
    if args.ranks > 1:
        # Several ranks write none: where PyTorch's gradient is rounding, so is theirs.
        gradients = {name: array.array("d", [1e-30] * len(values)) for name, values in want_gradients.items()}
    optimizer = expected["optimizer"]
    if optimizer["kind"].startswith("adam"):
        after = without_noise(after, want_after, gradients, want_gradients, NOISE * want_norm,
                              expected["steps"] * optimizer["lr"])
    gradient = worst(gradients, want_gradients, expected["tied"], LIMITS[args.precision][3] * want_norm)
    parameter = worst(after, want_after, expected["tied"])
    checks = [
        ("loss", loss_difference(0), args.loss_tolerance, ""),
        (f"after {last} updates", loss_difference(last), later_tolerance, ""),
        ("gradient norm", abs(rows[0].get("grad_norm", math.nan) - want_norm) / want_norm, norm_tolerance, ""),
    ]
    if args.ranks == 1:
        checks.append(("worst gradient", gradient[0], tolerance, " " + gradient[1]))
    if args.precision == "fp32":
        checks.append(("worst parameter", parameter[0], args.tolerance, " " + parameter[1]))
    passed = all(value <= limit for _, value, limit, _ in checks)
    return passed, ", ".join(f"{what} {value:.1e}{where}" for what, value, _, where in checks)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--devices", help="of each rank")
    parser.add_argument("--device-file")
    parser.add_argument("--budget")
    parser.add_argument("--precision", default="fp32", choices=LIMITS)
    parser.add_argument("--layout", default="auto")
    parser.add_argument("--split", default="off")
    parser.add_argument("--ranks", type=int, default=1, help="processes that share the batch, by mpirun or by their environment")
    parser.add_argument("--mesh", default="", help="the processes along each axis, where they do not only share the batch")
    parser.add_argument("--micro-batches", default="auto", help="of a pipeline")
    parser.add_argument("--schedule", default="auto", help="of a pipeline")
    parser.add_argument("--zero", default="auto")
    parser.add_argument("--loss-scale", help="for fp16: small enough for the first step, which is compared")
    parser.add_argument("--tolerance", type=float, help="of gradients and parameters, by ||a-b||/||b||")
    parser.add_argument("--loss-tolerance", type=float)
    parser.add_argument("--norm-tolerance", type=float, help="of the global gradient norm")
    parser.add_argument("--timeout", type=float, default=120, help="seconds a command may take")
    args = parser.parse_args()
    if args.mesh:
        args.ranks = math.prod(int(axis.split("=")[1]) for axis in args.mesh.split(","))
    else:
        args.mesh = f"data={args.ranks}"
    for option, limit in zip(("tolerance", "loss_tolerance", "norm_tolerance"), LIMITS[args.precision]):
        if getattr(args, option) is None:
            setattr(args, option, limit)
    unknown = [case for case in args.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(CASES)}")

    failed = 0
    names = args.cases or list(CASES)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            try:
                passed, text = check(unpack(name, folder), args)
            except (RuntimeError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                passed, text = False, str(error)
        failed += not passed
        print(f"{name:30} {'ok  ' if passed else 'FAIL'}  {text}", flush=True)
    print(f"{len(names) - failed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
