#!/usr/bin/env python3
"""Training steps of the models in zoo_models.py, or zoo_untuned.py, on one GPU: Plimsoll, torch.compile in three modes, PyTorch eager and, of some, JAX, in bf16 with f32 weights and AdamW.

Usage: zoo_gpu.py DIR --export [--jobs 12]             DIR/NAME/model.onnx: weights are declared and not written, since a plan needs none
       zoo_gpu.py DIR --compile --plimsoll PROGRAM     DIR/NAME/model.plan; needs no GPU
       zoo_gpu.py DIR --warm [--jobs 6]                fills torch.compile's cache, DIR/inductor, and writes DIR/NAME/batch.safetensors
       zoo_gpu.py DIR --time --plimsoll PROGRAM [--minutes 9]
       zoo_gpu.py DIR --table

Phases may be named together and run in this order; --only and --skip choose models, --small makes them tiny for a machine without a GPU. --export and
--compile may run on another machine: of DIR, --warm and --time need the plans alone. What a phase finds out is in the file of --json (DIR/results.json)
after each model, and of PyTorch after each side. --time goes on where it was stopped: a side that has a time, or failed, is not timed again without --again. A failure is the last line of the error.

Only one process at a time takes timed steps; PyTorch's next processes (--ahead) build and compile their models meanwhile, which can disturb a step, so that of
three rounds of steps the one with the least median counts. --warm and --time admit as many as the memory of the GPU holds by our plans' sizes. Needs torch, transformers, timm, onnxscript, safetensors and pynvml; says which are absent.
"""
import argparse
import concurrent.futures
import contextlib
import fcntl
import gc
import importlib.util
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings

from gpu_training import WARM_UP, compile_options, export_program, train_model

MODES = {"compile": "default", "graphs": "reduce-overhead", "eager": None, "best": "max-autotune"}  # in the order in which a process runs them
COMPILED = ("compile", "graphs", "best")  # of which the ratio takes the fastest
PACKAGES = {"export": ["torch", "transformers", "timm", "onnx", "onnxscript"], "warm": ["torch", "transformers", "timm", "safetensors"],
            "time": ["torch", "transformers", "timm", "safetensors"]}
EXPORT_S = 900  # seconds of an export; a busy machine takes minutes for the largest models
JAX_MODELS = ("gpt2", "llama", "deit", "mixer", "lstm")  # of zoo_jax.py
ROUNDS = 3  # of PyTorch's timed steps
LARGE = 65536  # weights of more elements are not drawn when a model is built
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


# -- results ----------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def locked(path):
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def alone_on_gpu(folder):
    return locked(folder / "gpu.lock")


class Results:
    """{model: {part: numbers or {"failed": why}}}, in a file that is whole at any time and that several runs may write."""

    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        self.of = self.read()

    def read(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def put(self, name, part, result):
        with self.lock, locked(self.path.with_suffix(".lock")):
            self.of = self.read()
            self.of.setdefault(name, {})[part] = result
            scratch = self.path.with_suffix(".tmp")
            scratch.write_text(json.dumps(self.of, indent=1))
            scratch.replace(self.path)
        print(f"{name:14} {part:9} {summary(result)}", flush=True)

    def good(self, name, part):
        result = self.of.get(name, {}).get(part)
        return result if result and "failed" not in result else None


def summary(result):
    if "failed" in result:
        return f"failed: {result['failed']}"
    numbers = {"step_ms": "{:.2f} ms", "predicted_ms": "predicted {:.2f} ms", "seconds": "in {:.1f} s"}
    return ", ".join(form.format(result[key]) for key, form in numbers.items() if result.get(key) is not None)


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip()[:400] if lines else "no message"


def root_cause(error):
    """The first line of the innermost error; exporters and compilers wrap theirs in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0][:400]}"


def run_part(args, part, name, limit_s, *words, seen=lambda result: None):
    """Runs this script for one model. Returns the JSON lines it prints, and a failure behind them where it does not end well; each goes to seen() as it comes."""
    command = [sys.executable, __file__, args.folder, "--part", part, "--only", name, *(["--small"] if args.small else []), *map(str, words)]
    threads = max(2, 2 * (os.cpu_count() or 2) // args.jobs)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(args.folder.resolve() / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    results = []

    def add(result):
        results.append(result)
        seen(result)

    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as child:
        timer = threading.Timer(limit_s, child.kill)
        timer.start()
        for line in child.stdout:
            if line.startswith('{"'):
                add(json.loads(line))
        code, late = child.wait(), not timer.is_alive()
        timer.cancel()
        errors.seek(0)
        if late:
            add({"failed": f"takes longer than {limit_s:.0f} s"})
        elif code == -signal.SIGALRM:
            add({"failed": "takes longer than the limit on the GPU"})
        elif code or not results:
            add({"failed": last_line(errors.read())})
    return results


def run_jax(args, name, steps):
    """The line of zoo_jax.py, or a failure. What it compiles is kept in a folder."""
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(args.folder.resolve() / "jax")}
    command = [sys.executable, pathlib.Path(__file__).with_name("zoo_jax.py"), name, "--steps", str(steps), *(["--small"] if args.small else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, env=environment)
    except subprocess.TimeoutExpired:
        return {"failed": f"takes longer than {args.limit} s"}
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": last_line(done.stderr)}


# -- models -----------------------------------------------------------------------------------------------------------

def build(case, small):
    """The module on the CPU. Its large weights are not drawn, which saves minutes for the largest models; fill() draws them."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class WithoutLargeDraws(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if function in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default) and arguments[0].numel() > LARGE:
                return arguments[0]
            return function(*arguments, **(keywords or {}))

    torch.manual_seed(0)
    with WithoutLargeDraws():
        return case.build(small).train()


def fill(model):
    """Draws the large weights as `plimsoll run --init-std 0.02` does: the speed of a GPU depends on the values."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > LARGE:
                parameter.normal_(0.0, 0.02)


def write_without_weights(program, model, path):
    """Writes the program; parameters name places in a file that does not exist."""
    import onnx_ir

    names, offset = {name for name, _ in model.named_parameters(remove_duplicate=False)}, 0
    for value in program.model.graph.initializers.values():
        tensor = value.const_value
        if value.name in names and tensor.nbytes > LARGE:
            value.const_value = onnx_ir.ExternalTensor("model.onnx.data", offset, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name, base_dir=path.parent)
            offset += tensor.nbytes
    onnx_ir.save(program.model, path)


def export_model(args, case, folder):
    import torch

    begin = time.monotonic()
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    model = build(case, args.small)
    try:
        write_without_weights(export_program(model, case.batch(args.small)), model, folder / "model.onnx")
    except Exception as error:  # an exporter may raise anything
        print(json.dumps({"failed": root_cause(error)}))
        return
    print(json.dumps({"seconds": time.monotonic() - begin, "parameters": sum(parameter.numel() for parameter in model.parameters()), "torch": torch.__version__}))


def write_batch(case, small, folder):
    import safetensors.torch

    if not (folder / "batch.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / "batch.tmp"
        safetensors.torch.save_file({name: tensor.clone() for name, tensor in case.batch(small).items()}, scratch)
        scratch.replace(folder / "batch.safetensors")


def train_pytorch(args, case, folder):
    """Prints one JSON line per side. `--part warm` takes one step beside others, `--part pytorch` is timed alone."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    timed = args.part == "pytorch"
    write_batch(case, args.small, folder)
    model, inputs = build(case, args.small), case.batch(args.small)
    settings = {"steps": args.steps, "alone": lambda: alone_on_gpu(args.folder), "rounds": ROUNDS} if timed else {"steps": 1, "warm_up": 0}
    signal.alarm(args.limit)
    model = model.to(device)
    fill(model)
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    for side in MODES:
        if side not in args.sides:
            continue
        begin = time.monotonic()
        try:
            result = train_model(model, inputs, compile_mode=MODES[side], channels_last=case.channels_last, **settings)
            times = sorted(result["step_ms"])
            result.update(step_ms=statistics.median(times), p10=times[len(times) // 10], p90=times[len(times) * 9 // 10])
        except Exception as error:  # the other sides still run
            result = {"failed": root_cause(error)}
        print(json.dumps({"side": side, **result, "seconds": time.monotonic() - begin}), flush=True)
        model.zero_grad(set_to_none=True)
        torch._dynamo.reset()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


# -- phases -----------------------------------------------------------------------------------------------------------

def export_all(args, names, results):
    def export(name):
        results.put(name, "export", run_part(args, "export", name, max(args.limit, EXPORT_S))[-1])

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(export, names))


def compile_plan(args, name):
    folder = args.folder / name
    plan = folder / "model.plan"
    begin = time.monotonic()
    done = subprocess.run([args.plimsoll, "compile", folder / "model.onnx", "-o", plan, "--device", args.device, *compile_options()], capture_output=True, text=True)
    seconds = time.monotonic() - begin
    if done.returncode:
        plan.unlink(missing_ok=True)
        return {"failed": last_line(done.stderr or done.stdout)}
    report = json.loads(subprocess.check_output([args.plimsoll, "inspect", plan, "--json"]))
    kinds = {}
    for instruction in report["instructions"]:
        kind = kinds.setdefault(f"{instruction['op']}/{instruction.get('kernel', '')}", {"calls": 0, "predicted_us": 0.0, "roofline_us": 0.0})
        kind["calls"] += 1
        kind["predicted_us"] += instruction["predicted_us"]
        kind["roofline_us"] += instruction["roofline_us"]
    memory, times = report["memory"]["device"], report["time"]
    return {"seconds": seconds, "predicted_ms": times["predicted_step_us"] / 1e3, "roofline_ms": times["roofline_us"] / 1e3, "promised": memory["promised_bytes"],
            "allocated": memory["arena_bytes"], "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1]["predicted_us"]))}


def compile_all(args, names, results):
    def compile_one(name):
        if (args.folder / name / "model.onnx").exists():
            results.put(name, "plan", compile_plan(args, name))

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(compile_one, names))


def expected_bytes(args, results, name):
    """PyTorch's process, guessed from our plan's: eager steps took up to twice as much, compiled ones most often up to 1.4 times."""
    plan = results.good(name, "plan")
    return (2 if "eager" in args.sides else 1.4) * plan["promised"] + 2**30 if plan else 40 * 2**30


class GpuMemory:
    """Admits processes beside each other while the bytes that they are expected to hold fit; one that is expected to hold more than there is runs alone."""

    def __init__(self, gib):
        self.whole = self.free = gib * 2**30
        self.changed = threading.Condition()

    @contextlib.contextmanager
    def held(self, need):
        need = min(need, self.whole)
        with self.changed:
            self.changed.wait_for(lambda: self.free >= need)
            self.free -= need
        try:
            yield
        finally:
            with self.changed:
                self.free += need
                self.changed.notify_all()


def warm_all(args, names, results):
    memory = GpuMemory(args.gpu_gib)

    def warm(name):
        sides = [side for side in args.sides if MODES.get(side)]
        with memory.held(expected_bytes(args, results, name)):
            if "jax" in args.sides and name in JAX_MODELS:
                run_jax(args, name, 1)
            if sides:
                results.put(name, "warm", run_part(args, "warm", name, args.limit, "--sides", ",".join(sides), "--limit", args.limit)[-1])

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(warm, sorted(names, key=lambda name: -expected_bytes(args, results, name))))


def kinds_of(profile):
    """The milliseconds of each kind of kernel in the table that `run --profile` prints."""
    rows = re.findall(r"^(\S+/\S+) +\d+ +([\d.]+) (us|ms|s) ", profile, re.MULTILINE)
    return {kind: float(number) * UNITS[unit] for kind, number, unit in rows}


def losses(plan, times):
    """The three kinds of kernels whose measured time is furthest above their roofline: [name, ms lost, ms measured]."""
    lost = [[kind, ms - plan["kinds"].get(kind, {}).get("roofline_us", 0.0) / 1e3, ms] for kind, ms in times.items()]
    return sorted(lost, key=lambda entry: -entry[1])[:3]


def time_plimsoll(args, name, plan):
    folder = args.folder / name
    if not (folder / "batch.safetensors").exists():
        run_part(args, "batch", name, args.limit)
    metrics = folder / "metrics.jsonl"
    words = ["run", folder / "model.plan", "--init", "1", "--init-std", "0.02", "--data", folder / "batch.safetensors", "--steps", str(WARM_UP + args.steps),
             "--metrics", metrics, "--profile", folder / "profile.jsonl", "--on-bad-loss", "continue"]
    with alone_on_gpu(args.folder):
        begin = time.monotonic()
        try:
            done = subprocess.run([args.plimsoll, *words], capture_output=True, text=True, timeout=args.limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"takes longer than {args.limit} s"}
    if done.returncode:
        return {"failed": last_line(done.stderr)}
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    times = sorted(row["step_ms"] for row in rows[WARM_UP:])
    kinds = kinds_of(done.stdout)
    return {"step_ms": statistics.median(times), "p10": times[len(times) // 10], "p90": times[len(times) * 9 // 10], "loss": rows[-1]["loss"],
            "process": rows[-1]["device_bytes"], "allocated": plan["allocated"], "losses": losses(plan, kinds), "kinds": kinds, "seconds": time.monotonic() - begin}


class SideResults:
    """Puts one result for each side, in the order in which a process runs them; a failure is of the first side that has none."""

    def __init__(self, results, name, sides):
        self.results, self.name, self.sides = results, name, list(sides)

    def __call__(self, result):
        if self.sides:
            self.results.put(self.name, self.sides.pop(0), result)


def time_all(args, names, results):
    deadline, memory = time.monotonic() + 60 * args.minutes, GpuMemory(args.gpu_gib)

    def missing(name, side):
        return args.again or side not in results.of.get(name, {})

    def time_one(name):
        plan = results.good(name, "plan")
        if "plimsoll" in args.sides and plan and missing(name, "plimsoll") and time.monotonic() < deadline:
            with memory.held(plan["promised"]):
                results.put(name, "plimsoll", time_plimsoll(args, name, plan))
        if "jax" in args.sides and name in JAX_MODELS and missing(name, "jax") and time.monotonic() < deadline:
            with alone_on_gpu(args.folder):
                results.put(name, "jax", run_jax(args, name, args.steps))
        sides = [side for side in MODES if side in args.sides and missing(name, side)]
        if not sides:
            return
        with memory.held(expected_bytes(args, results, name)):
            left_s = deadline - time.monotonic()
            if left_s < 0:
                return
            run_part(args, "pytorch", name, left_s + args.limit, "--sides", ",".join(sides), "--steps", args.steps, "--limit", args.limit, seen=SideResults(results, name, sides))

    with concurrent.futures.ThreadPoolExecutor(args.ahead) as pool:
        list(pool.map(time_one, names))


# -- table ------------------------------------------------------------------------------------------------------------

HEADS = ["model", "Plimsoll ms", "torch.compile", "with CUDA graphs", "max-autotune", "eager", "JAX", "ratio", "GiB of the process", "torch.compile", "eager", "allocated", "torch.compile", "predicted ms",
         "predicted / measured", "roofline", "lose most: ms above their roofline, of ms"]


def cell(result, key, scale=1.0, form="{:.1f}"):
    return form.format(result[key] * scale) if result and result.get(key) is not None else ""


def ratio_of(record):
    """The time of the fastest mode of torch.compile over ours, or None."""
    times = [record[side]["step_ms"] for side in COMPILED if "step_ms" in record.get(side, {})]
    return min(times) / record["plimsoll"]["step_ms"] if times and "step_ms" in record.get("plimsoll", {}) else None


def row(name, title, record):
    """One line of the table; a failure's reason takes the place of the last column."""
    def good(part):
        return record[part] if part in record and "failed" not in record[part] else None

    ours, plan, ratio = good("plimsoll"), good("plan"), ratio_of(record)
    gib = 1 / 2**30
    failed = [f"{part}: {record[part]['failed']}" for part in ("export", "plan", "plimsoll", *MODES, "jax") if "failed" in record.get(part, {})]
    lost = [f"{kind} {above:.1f} of {ms:.1f}" for kind, above, ms in ours["losses"]] if ours else []
    return [title, *[cell(good(part), "step_ms") for part in ("plimsoll", *COMPILED, "eager", "jax")], f"{ratio:.2f}" if ratio else "",
            *[cell(good(part), "process", gib) for part in ("plimsoll", "compile", "eager")], *[cell(good(part), "allocated", gib) for part in ("plimsoll", "compile")],
            cell(plan, "predicted_ms"), f"{plan['predicted_ms'] / ours['step_ms']:.2f}" if plan and ours else "", f"{100 * plan['roofline_ms'] / ours['step_ms']:.0f} %" if plan and ours else "",
            "; ".join(lost + failed).replace("|", "\\|")]


def table(zoo, results):
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    lines += ["| " + " | ".join(row(name, case.title + (f" ({case.note})" if case.note else ""), results.of.get(name, {}))) + " |" for name, case in zoo.items()]
    records = [results.of.get(name, {}) for name in zoo]
    ratios = [ratio for record in records if (ratio := ratio_of(record))]
    if ratios:
        lines += ["", f"Geometric mean of the ratio over {len(ratios)} models: {math.exp(statistics.fmean(map(math.log, ratios))):.2f}; at least {min(ratios):.2f}."]
    return "\n".join(lines)


# -- command line -----------------------------------------------------------------------------------------------------

def parse():
    def names(text):
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=pathlib.Path)
    for phase in ("export", "compile", "warm", "time", "table"):
        parser.add_argument(f"--{phase}", action="store_true")
    parser.add_argument("--plimsoll", metavar="PROGRAM", help="for --compile and --time")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,...")
    parser.add_argument("--untuned", action="store_true", help="the models of zoo_untuned.py, not those of zoo_models.py")
    parser.add_argument("--skip", type=names, default=[], metavar="NAME,...")
    parser.add_argument("--sides", type=names, default=["plimsoll", "compile", "eager"], help="of plimsoll, compile, graphs (reduce-overhead), eager, best (max-autotune) and jax")
    parser.add_argument("--small", action="store_true", help="tiny models and batches of 2")
    parser.add_argument("--again", action="store_true", help="also time sides that have a result")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes at a time of --export, --compile and --warm")
    parser.add_argument("--ahead", type=int, default=2, help="models at a time in --time, of which one has the GPU")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=int, default=300, help="seconds of one warming, or one model's sides of PyTorch, with what they wait for each other")
    parser.add_argument("--minutes", type=float, default=9.0, help="--time starts nothing after these")
    parser.add_argument("--gpu-gib", type=float, default=125.0, help="memory that processes beside each other may fill")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--part", choices=["export", "batch", "warm", "pytorch"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if (args.compile or args.time and "plimsoll" in args.sides) and not args.plimsoll:
        parser.error("--compile and --time need --plimsoll PROGRAM")
    return args


def say_absent_packages(args):
    absent = sorted({package for phase, packages in PACKAGES.items() if getattr(args, phase) for package in packages if importlib.util.find_spec(package) is None})
    if absent:
        sys.exit(f"absent Python packages: {', '.join(absent)}")
    if args.time and importlib.util.find_spec("pynvml") is None:
        print("absent Python package: pynvml (in nvidia-ml-py); the table will lack PyTorch's GiB of the process", file=sys.stderr)


def main():
    args = parse()
    say_absent_packages(args)
    warnings.filterwarnings("ignore")
    from zoo_models import ZOO
    from zoo_untuned import UNTUNED

    cases = {**ZOO, **UNTUNED}
    unknown = [name for name in args.only + args.skip if name not in cases]
    if unknown:
        sys.exit(f"no model {unknown[0]}; there are {', '.join(cases)}")
    names = [name for name in args.only or (UNTUNED if args.untuned else ZOO) if name not in args.skip]
    if args.part:
        case, folder = cases[names[0]], args.folder / names[0]
        if args.part == "export":
            export_model(args, case, folder)
        elif args.part == "batch":
            write_batch(case, args.small, folder)
            print(json.dumps({"written": True}))
        else:
            train_pytorch(args, case, folder)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    results = Results(args.json or args.folder / "results.json")
    for phase, work in {"export": export_all, "compile": compile_all, "warm": warm_all, "time": time_all}.items():
        if getattr(args, phase):
            work(args, names, results)
    if args.table:
        print(table({name: cases[name] for name in names}, results))


if __name__ == "__main__":
    main()
