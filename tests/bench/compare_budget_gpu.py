#!/usr/bin/env python3
"""Compares training throughput with equal memory caps on one GPU: Plimsoll within a budget against PyTorch's fastest way that fits.

Usage: compare_budget_gpu.py PLIMSOLL [CASE[:GiB,GiB...] ...] [--quick] [--minutes 40] [--rounds 2] [--steps 10] [--device h200]
                             [--way WAY]... [--divisions 1,2,4,8] [--json FILE] [--markdown FILE] [--compile-options "..."]

A step is the case's whole batch: forward, backward and AdamW in bf16 with fp32 weights. PyTorch is tried eager and compiled, plain, with activation
checkpoints around its blocks, and with torch.compile's activation_memory_budget, each from the whole batch down to an eighth of it with accumulation.
The fastest way whose context and allocator peak fit a cap then runs in turn with Plimsoll's plan. Each side has its own process, and PyTorch's allocator
is limited to the cap; if it runs out of memory, the next way runs. --way (a name in WAYS below) and --divisions try fewer. Plimsoll is planned as by a
user: once without a GPU, with the micro-batch of the least predicted time, and once with the times of --tune and a profile of the plain plan. The faster
plan runs. Medians are over all rounds. A failure is a line of the result and does not end the run; after --minutes no further candidate is tried.
`--torch-device cpu` with the case tiny_gpt2 tests the script itself.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_training import CASES, compile_options, export_apart, train

CAPS = {"gpt2_b16": [4, 6, 8, 12], "vit_l16_b64": [8, 10, 12, 14], "resnet50_b256": [6, 8, 10, 12], "vit_l16_b256": [10, 23.5], "deeplabv3_b48": [8, 12, 23.5]}  # GiB
QUICK = {"gpt2_b16": [6]}
TRIAL_STEPS, TRIAL_WARM_UP, WARM_UP = 4, 3, 5
REFUSED = 4  # exit code of `compile` if nothing fits
# name: what train() is given
WAYS = {
    "eager": {},
    "eager, checkpoints": {"checkpoints": True},
    "compile": {"compile_mode": "default"},
    "compile, half saved": {"compile_mode": "default", "saved_share": 0.5},
    "compile, fifth saved": {"compile_mode": "default", "saved_share": 0.2},
    "compile, checkpoints": {"compile_mode": "default", "checkpoints": True},
}
QUICK_WAYS = ["eager, checkpoints", "compile", "compile, half saved"]


def run_apart(args, settings, timeout=600):
    """Runs PyTorch in its own process. Returns its measurements, or {"failed": why}."""
    command = [sys.executable, __file__, args.program, "--train", json.dumps(settings)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    except subprocess.TimeoutExpired:
        return {"failed": f"longer than {timeout} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    error = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"failed": "out of memory" if "out of memory" in done.stderr else error[:160]}


def needed_bytes(result):
    """The smallest cap that works: the context and the peak of the allocator."""
    return result["allocated"] + result["process"] - result["reserved"] if result.get("process") else 0


def survey(args, case, caps_bytes, deadline):
    """Time and memory of PyTorch in each way without a cap, with the settings, fastest first."""
    ways = {way: WAYS[way] for way in args.way or (QUICK_WAYS if args.quick else WAYS)}
    def settings_of(way, parts):
        return {"case": case, "steps": TRIAL_STEPS, "warm_up": TRIAL_WARM_UP, "micro_batches": parts, "device": args.torch_device, **ways[way]}
    parts_of = [parts for parts in args.divisions if CASES[case][1] % parts == 0]
    if args.torch_device == "cuda":  # fills the compiler's cache in parallel, so that timed runs are alone
        first = [{**settings_of(way, parts), "steps": 1, "warm_up": 1} for way in ways if "compile_mode" in ways[way] for parts in parts_of[:args.compiled_ahead]]
        with concurrent.futures.ThreadPoolExecutor(args.compilers) as pool:
            list(pool.map(lambda settings: run_apart(args, settings), first))
    results = []
    for way in ways:
        for parts in parts_of:
            if time.monotonic() > deadline:
                break
            result = run_apart(args, settings_of(way, parts))
            result.update(way=way, settings=settings_of(way, parts))
            results.append(result)
            good = "failed" not in result
            if good:
                result.update(step_ms=statistics.median(result["step_ms"]), needs=needed_bytes(result))
            note = f"{result['step_ms']:.1f} ms, needs {gib(result['needs'])} GiB" if good else result["failed"]
            print(f"    {way}, {parts} x {CASES[case][1] // parts}: {note}", file=sys.stderr, flush=True)
            if (good and result["needs"] <= min(caps_bytes)) or (not good and result["failed"] != "out of memory"):
                break  # a smaller batch is slower, or fails too
    return sorted((result for result in results if "failed" not in result), key=lambda result: result["step_ms"])


def last_line(done):
    return (done.stderr.strip().splitlines() or ["no message"])[-1][:300]


def profile_plain_plan(args, folder, case):
    """The options that give `compile` the measured times of the plain plan on this GPU."""
    plan, times = folder / "plain.plan", folder / "times.jsonl"
    for words in (["compile", folder / "model.onnx", "-o", plan, "--device", args.device, "--tune", times, *compile_options(), *args.compile_options.split()],
                  ["run", plan, "--init", "1", "--init-std", "0.02", "--data", folder / f"batch_{CASES[case][1]}.safetensors", "--steps", "3", "--profile", times]):
        done = subprocess.run([args.program, *words], capture_output=True, text=True)
        if done.returncode:
            print(f"    no profile of the plain plan: {last_line(done)}", file=sys.stderr, flush=True)
            return None
    return ["--timings", str(times)]


class Plimsoll:
    """A plan for a cap. The batch stays whole if `extra` or the model does not allow to divide it."""

    def __init__(self, args, case, cap_bytes, folder, way, extra):
        self.args, self.case, self.folder, self.way, self.failed = args, case, folder, way, None
        self.plan = folder / f"{way.replace(' ', '_')}.plan"
        command = [args.program, "compile", folder / "model.onnx", "-o", self.plan, "--device", args.device, "--budget", str(cap_bytes),
                   *compile_options(), *args.compile_options.split()]
        begin = time.monotonic()
        for more in (extra, []):
            done = subprocess.run([*command, *more], capture_output=True, text=True)
            if done.returncode in (0, REFUSED):
                break
        self.compile_s = time.monotonic() - begin
        if done.returncode:
            self.failed = last_line(done)
            return
        self.report = json.loads(subprocess.check_output([args.program, "inspect", self.plan, "--json"]))
        self.batch = self.report["training"]["batch"] or CASES[case][1]

    def measure(self, steps):
        if self.failed:
            return {"failed": self.failed}
        data = self.folder / f"batch_{self.batch}.safetensors"
        if not data.exists():
            export_batch(self.case, data, self.batch)
        metrics = self.folder / "metrics.jsonl"
        done = subprocess.run([self.args.program, "run", self.plan, "--init", "1", "--init-std", "0.02", "--data", data, "--steps", str(WARM_UP + steps), "--metrics", metrics],
                              capture_output=True, text=True)
        if done.returncode:
            return {"failed": last_line(done)}
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return {"step_ms": [row["step_ms"] for row in rows[WARM_UP:]], "process": rows[-1]["device_bytes"]}


def best_plan(args, case, cap_bytes, folder, timings):
    """The faster of the plans without and with measured times, by a short run of each."""
    plans = [Plimsoll(args, case, cap_bytes, folder, "planned", ["--global-batch", str(CASES[case][1])])]
    if timings:
        plans.append(Plimsoll(args, case, cap_bytes, folder, "by measured times", timings))
    best, best_ms = plans[0], None
    for plan in plans:
        result = plan.measure(TRIAL_STEPS)
        step_ms = statistics.median(result["step_ms"]) if "failed" not in result else None
        print(f"    Plimsoll, {plan.way}: {f'{step_ms:.1f} ms' if step_ms else result['failed']}, compiled in {plan.compile_s:.1f} s", file=sys.stderr, flush=True)
        if step_ms and (best_ms is None or step_ms < best_ms):
            best, best_ms = plan, step_ms
    return best


def export_batch(case, path, batch):
    import safetensors.torch
    from gpu_training import make_batch

    family, _, rows = CASES[case]
    safetensors.torch.save_file(make_batch(family, batch, rows), path)


def summary(runs):
    good = [run for run in runs if "failed" not in run]
    if not good:
        return {"failed": runs[-1]["failed"] if runs else "not run"}
    return {"step_ms": statistics.median(ms for run in good for ms in run["step_ms"]), "process": good[-1].get("process")}


def compare(args, case, cap_gib, folder, timings, surveyed):
    cap_bytes = int(cap_gib * 2**30)
    print(f"{case} within {cap_gib} GiB", file=sys.stderr, flush=True)
    ours = best_plan(args, case, cap_bytes, folder, timings)
    candidates = [result for result in surveyed if result["needs"] <= cap_bytes]
    rounds = {"plimsoll": [], "pytorch": []}
    for _ in range(args.rounds):
        rounds["plimsoll"].append(ours.measure(args.steps))
        while candidates:
            run = run_apart(args, {**candidates[0]["settings"], "steps": args.steps, "warm_up": WARM_UP, "cap_bytes": cap_bytes})
            if "failed" not in run and (run.get("process") or 0) <= cap_bytes:
                rounds["pytorch"].append(run)
                break
            print(f"    {candidates[0]['way']}, {candidates[0]['settings']['micro_batches']} parts: {run.get('failed', 'above the cap')}", file=sys.stderr, flush=True)
            candidates.pop(0)
            rounds["pytorch"].clear()
    result = {"case": case, "cap_gib": cap_gib, "batch": CASES[case][1], "plimsoll": summary(rounds["plimsoll"]), "plan_way": ours.way,
              "pytorch": summary(rounds["pytorch"]) if candidates else {"failed": "nothing fits"}, "way": ""}
    if candidates:
        parts = candidates[0]["settings"]["micro_batches"]
        result["way"] = f"{candidates[0]['way']}, {parts} x {CASES[case][1] // parts}"
    if not ours.failed:
        training, time_of, memory = ours.report["training"], ours.report["time"], ours.report["memory"]
        result["plan"] = {"accumulate": training["accumulate"], "batch": ours.batch, "predicted_ms": time_of["predicted_step_us"] / 1e3,
                          "recompute_ms": time_of["recompute_us"] / 1e3, "stalled_ms": time_of["stalled_us"] / 1e3,
                          "promised": memory["device"]["promised_bytes"], "host": memory["host"]["promised_bytes"], "compile_s": ours.compile_s}
    return result


def gib(value):
    return f"{value / 2**30:.2f}" if value else "-"


def row(result):
    ours, theirs, plan = result["plimsoll"], result["pytorch"], result.get("plan")
    def time_of(side):
        return f"{side['step_ms']:.1f}" if "step_ms" in side else side["failed"]
    ratio = f"{theirs['step_ms'] / ours['step_ms']:.2f}" if "step_ms" in ours and "step_ms" in theirs else "-"
    made = f"{plan['accumulate']} x {plan['batch']}, {result['plan_way']}, {gib(plan['host'])} GiB of the host" if plan else ""
    promise = f"{gib(plan['promised'])} | {plan['predicted_ms']:.1f}" if plan else "- | -"
    return (f"| {result['case']} | {result['cap_gib']} | {time_of(ours)} | {promise} | {gib(ours.get('process'))} | {made} | "
            f"{time_of(theirs)} | {gib(theirs.get('process'))} | {result['way']} | {ratio} |")


def table(results):
    heads = ["| case | cap GiB | Plimsoll ms | promised GiB | predicted ms | holds GiB | with | PyTorch ms | holds GiB | with | ratio |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    return "\n".join(heads + [row(result) for result in results]) + "\n"


def asked_for(args):
    if not args.cases:
        return QUICK if args.quick else CAPS
    asked = {}
    for case in args.cases:
        name, _, caps = case.partition(":")
        if name not in CASES:
            sys.exit(f"no case {name}; there are {', '.join(CASES)}")
        asked[name] = [float(cap) for cap in caps.split(",")] if caps else CAPS.get(name, [8])
    return asked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*", metavar="CASE[:GiB,...]")
    parser.add_argument("--quick", action="store_true", help="GPT-2 at one cap, three ways, within six minutes")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--torch-device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--compile-options", default="", help="further words for `compile`")
    parser.add_argument("--compilers", type=int, default=4, help="torch.compile runs at a time while its cache is filled")
    parser.add_argument("--compiled-ahead", type=int, default=3, help="divisions of the batch that are compiled ahead")
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--divisions", type=lambda text: [int(word) for word in text.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        print(json.dumps(train(**json.loads(args.train))))
        return
    deadline = time.monotonic() + 60 * (args.minutes or (4.5 if args.quick else 40))
    results = []
    for case, caps in asked_for(args).items():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            try:
                export_apart(case, folder)
            except subprocess.CalledProcessError as error:
                print(f"{case} cannot be exported: {error}", file=sys.stderr)
                continue
            (folder / "batch.safetensors").rename(folder / f"batch_{CASES[case][1]}.safetensors")
            timings = profile_plain_plan(args, folder, case)
            surveyed = survey(args, case, [cap * 2**30 for cap in caps], deadline)
            for cap in caps:
                results.append(compare(args, case, cap, folder, timings, surveyed))
                print(row(results[-1]), flush=True)
                # Results are written at once, because the machine may disappear.
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1))
                if args.markdown:
                    args.markdown.write_text(table(results))


if __name__ == "__main__":
    main()
