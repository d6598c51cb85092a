#!/usr/bin/env python3
"""Plans within budgets on one GPU: predicted and measured steps, promised and held memory.

Usage: budget_predictions_gpu.py PLIMSOLL DIR MODELS [JOB ...] [--budgets B,...] [--compile] [--time] [--device h100] [--device-file FILE] [--at-once 1] [--steps 12] [--json FILE]

--compile writes DIR/JOB-BUDGET.plan of the ONNX files in the folder MODELS and needs no GPU; --time runs the plans that are there, and needs neither
models nor weights. Without either both are done. --device-file has the description of --device, such as `plimsoll devices --measure` prints of a card. A JOB is a name in JOBS, or a model of MODELS
with its batch in it, such as clip of clip/model.onnx; without any, all of JOBS run. --budgets has other budgets than theirs; floor is the least that compile names. Weights and batches are drawn, since neither time nor
memory depends on them. Columns: the budget, predicted and measured ms a step, their ratio, promised and held GiB, and the part of the promise that is not held.
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import re
import statistics
import struct
import subprocess
import sys
import time

WARM_UP = 4
# name: (file, options of compile, budgets: from close to the floor to where little is missing)
JOBS = {
    "gpt2_124m-b16": ("gpt2_124m_opset20.onnx", ["--dim", "batch=16"], ["1.5GiB", "4GiB", "7GiB"]),
    "bert_base-b32": ("bert_base_opset20.onnx", ["--batch", "32"], ["1.5GiB", "3GiB", "5GiB"]),
    "vit_l16-b64": ("vit_l16_opset20.onnx", ["--batch", "64"], ["2GiB", "6GiB", "10GiB"]),
    "resnet50-b128": ("resnet50_opset20.onnx", ["--batch", "128"], ["3GiB", "4GiB", "5GiB"]),
    "deeplabv3-b16": ("deeplabv3_resnet101_opset20.onnx", ["--batch", "16", "--loss", "cross-entropy:upsample_bilinear2d_1:labels"], ["5GiB", "8GiB", "12GiB"]),
    "llama2_7b-b2": ("llama2_7b_opset20.onnx", ["--dim", "batch=2", "--host-budget", "100GiB"], ["12GiB", "30GiB", "60GiB"]),
}
DTYPES = {"f32": ("F32", "f"), "i64": ("I64", "q"), "i32": ("I32", "i"), "bool": ("BOOL", "B")}


def plan_of(args, job, budget):
    return args.folder / f"{job}-{budget}.plan"


def compile_job(args, job, budget):
    file, options, _ = JOBS.get(job, (f"{job}/model.onnx", [], []))
    plan = plan_of(args, job, budget)
    if plan.exists():
        return
    described = ["--device-file", args.device_file] if args.device_file else []
    command = [args.program, "compile", args.models / file, "-o", plan, *described, "--device", args.device, "--precision", "bf16", *options]
    within = budget
    if budget == "floor":
        refused = subprocess.run([*command, "--budget", "1MiB"], capture_output=True, text=True)
        floor = re.search(r"\((\d+) bytes", refused.stderr)
        within = floor.group(1) if floor else "1MiB"
    done = subprocess.run([*command, "--budget", within], capture_output=True, text=True)
    said = (done.stdout.strip() or done.stderr.strip() or "no message").splitlines()
    print(f"{job} {budget}: {said[-1] if done.returncode == 0 else said[0]}", flush=True)


def write_batch(path, plan):
    """Random numbers for each input: indices below their count, ones for other integers, normal numbers else."""
    counts = {each["name"]: each["count"] for each in plan["training"]["index_inputs"]}
    draw = random.Random(1)
    header, parts, offset = {}, [], 0
    for slot in plan["slots"]:
        if slot.get("category") != "input" or slot.get("persistent"):
            continue
        name, (dtype, dims) = slot["name"], slot["type"].rstrip("]").split("[")
        shape = [int(dim) for dim in dims.split(",")] if dims else []
        rows = plan["training"]["accumulate"]
        shape = [shape[0] * rows, *shape[1:]] if shape else shape
        kind, code = DTYPES[dtype]
        few = 4099  # values that are drawn and repeated
        if name in counts:
            values = [draw.randrange(counts[name]) for _ in range(few)]
        else:
            values = [draw.gauss(0, 1) for _ in range(few)] if dtype == "f32" else [1] * few
        count = math.prod(shape)
        data = struct.pack(f"<{few}{code}", *values) * (count // few + 1)
        data = data[:count * struct.calcsize(code)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def time_plan(args, plan_path):
    plan = json.loads(subprocess.check_output([args.program, "inspect", plan_path, "--json"]))
    batch, metrics = args.folder / "batch.safetensors", args.folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    write_batch(batch, plan)
    done = subprocess.run([args.program, "run", plan_path, "--init", "1", "--init-std", "0.02", "--data", batch, "--steps", str(WARM_UP + args.steps), "--metrics", metrics,
                           "--on-bad-loss", "continue"], capture_output=True, text=True)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    rows = [row for row in rows if "step_ms" in row]
    if done.returncode or len(rows) <= WARM_UP:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return {"predicted_ms": plan["time"]["predicted_step_us"] / 1e3, "step_ms": statistics.median(row["step_ms"] for row in rows[WARM_UP:]),
            "promised": plan["memory"]["device"]["promised_bytes"], "held": rows[-1]["device_bytes"], "rematerialised": plan["fit"]["rematerialised"], "chunks": plan["fit"]["chunks"],
            "copies_ms": (plan["time"]["to_host_us"] + plan["time"]["to_device_us"]) / 1e3}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("models", type=pathlib.Path, metavar="MODELS")
    parser.add_argument("jobs", nargs="*", metavar="JOB")
    parser.add_argument("--budgets")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--device", default="h100")
    parser.add_argument("--device-file")
    parser.add_argument("--at-once", type=int, default=1, help="compilations that run at a time")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    budgets = {job: args.budgets.split(",") if args.budgets else JOBS[job][2] if job in JOBS else [] for job in args.jobs or JOBS}
    for job, those in budgets.items():
        if not those:
            parser.error(f"{job} needs --budgets; jobs that have some are {', '.join(JOBS)}")
    if args.compile or not args.time:
        with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            list(pool.map(lambda plan: compile_job(args, *plan), [(job, budget) for job, those in budgets.items() for budget in those]))
    if args.compile and not args.time:
        return
    print(f"{'job':16} {'budget':>8} {'predicted':>9} {'ms':>9} {'ratio':>6} {'promised':>8} {'held':>6} {'spare':>6} again chunks copies, ms   s", flush=True)
    found = {}
    for job, those in budgets.items():
        for budget in those:
            plan, begin = plan_of(args, job, budget), time.perf_counter()
            if not plan.exists():
                print(f"{job:16} {budget:>8} has no plan", flush=True)
                continue
            try:
                row = time_plan(args, plan)
            except RuntimeError as error:
                print(f"{job:16} {budget:>8} {error}", flush=True)
                continue
            found[f"{job} {budget}"] = row
            print(f"{job:16} {budget:>8} {row['predicted_ms']:9.1f} {row['step_ms']:9.1f} {row['step_ms'] / row['predicted_ms']:6.3f} {row['promised'] / 2**30:8.3f} {row['held'] / 2**30:6.3f} "
                  f"{1 - row['held'] / row['promised']:6.1%} {row['rematerialised']:5d} {row['chunks']:6d} {row['copies_ms']:10.1f} {time.perf_counter() - begin:3.0f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
