#!/usr/bin/env python3
"""Training throughput at equal memory caps on one GPU: Plimsoll under a budget against the best that PyTorch makes of the same cap.

Usage: compare_budget_gpu.py PLIMSOLL [CASE[:GiB,GiB...] ...] [--quick] [--minutes 40] [--rounds 2] [--steps 10] [--device h200]
                             [--json FILE] [--markdown FILE] [--compile-options "..."]

A step is the case's whole batch: forward, backward and AdamW in bf16 with fp32 weights. PyTorch is tried eager and compiled, plain, with activation
checkpoints around its blocks, and with torch.compile's activation_memory_budget, each from the whole batch down to an eighth of it with accumulation
until one stays within the cap (PyTorch's allocator is held to what its context leaves of it). The fastest and Plimsoll's plan then run in turn, each in a process of its own;
medians are over all rounds. What fails or does not fit is a line of the result, not the end of the run; past --minutes no
further candidate is tried. `--torch-device cpu` with the case tiny_gpt2 tries the script itself.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_training import CASES, compile_options, export_apart, train

CAPS = {"gpt2_b16": [4, 6, 8, 12], "vit_l16_b64": [8, 10, 12, 14], "resnet50_b256": [6, 8, 10, 12]}  # GiB
QUICK = {"gpt2_b16": [6]}
TRIAL_STEPS, TRIAL_WARM_UP, WARM_UP = 4, 3, 5
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
    """PyTorch in a process of its own. What it measured, or {"failed": why}."""
    command = [sys.executable, __file__, args.program, "--train", json.dumps(settings)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"longer than {timeout} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    error = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"failed": "out of memory" if "out of memory" in done.stderr else error[:160]}


def within(result, cap_bytes):
    return "failed" not in result and (not result.get("process") or result["process"] <= cap_bytes)


def best_of_pytorch(args, case, cap_bytes, deadline):
    """The settings of the fastest way within the cap, and a line on each that was tried."""
    best, tried = None, []
    for way in QUICK_WAYS if args.quick else WAYS:
        for parts in (1, 2, 4, 8):
            if CASES[case][1] % parts or time.monotonic() > deadline:
                break
            settings = {"case": case, "steps": TRIAL_STEPS, "warm_up": TRIAL_WARM_UP, "micro_batches": parts, "cap_bytes": cap_bytes,
                        "device": args.torch_device, **WAYS[way]}
            result = run_apart(args, settings)
            fits = within(result, cap_bytes)
            step_ms = statistics.median(result["step_ms"]) if "failed" not in result else None
            tried.append({"way": way, "micro_batches": parts, "step_ms": step_ms, "fits": fits, "process": result.get("process"),
                          "failed": result.get("failed")})
            note = f"{step_ms:.1f} ms" + ("" if fits else ", above the cap") if step_ms else result["failed"]
            print(f"    {way}, {parts} x {CASES[case][1] // parts}: {note}", file=sys.stderr, flush=True)
            if fits:
                if not best or step_ms < best["step_ms"]:
                    best = {"way": way, "step_ms": step_ms, "settings": settings}
                break
            if "failed" in result and result["failed"] != "out of memory":
                break  # a smaller batch does not mend it
    return best, tried


class Plimsoll:
    """Compiled once for a cap: the split of the batch with the least predicted time, or the batch as exported where it cannot be split."""

    def __init__(self, args, case, cap_bytes, folder):
        self.args, self.folder, self.plan, self.failed = args, folder, folder / "model.plan", None
        command = [args.program, "compile", folder / "model.onnx", "-o", self.plan, "--device", args.device, "--budget", str(cap_bytes),
                   *compile_options(), *args.compile_options.split()]
        for split in (["--global-batch", str(CASES[case][1])], []):
            done = subprocess.run([*command, *split], capture_output=True, text=True)
            if done.returncode == 0:
                break
        if done.returncode:
            self.failed = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
            return
        self.report = json.loads(subprocess.check_output([args.program, "inspect", self.plan, "--json"]))
        if self.report["training"]["batch"] not in (0, CASES[case][1]):
            export_batch(case, self.folder, self.report["training"]["batch"])

    def measure(self):
        metrics = self.folder / "metrics.jsonl"
        done = subprocess.run([self.args.program, "run", self.plan, "--init", "1", "--data", self.folder / "batch.safetensors", "--steps",
                               str(WARM_UP + self.args.steps), "--metrics", metrics], capture_output=True, text=True)
        if done.returncode:
            return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return {"step_ms": [row["step_ms"] for row in rows[WARM_UP:]], "process": rows[-1]["device_bytes"]}


def export_batch(case, folder, batch):
    import safetensors.torch
    from gpu_training import make_batch

    family, _, rows = CASES[case]
    safetensors.torch.save_file(make_batch(family, batch, rows), folder / "batch.safetensors")


def summary(runs):
    good = [run for run in runs if "failed" not in run]
    if not good:
        return {"failed": runs[-1]["failed"] if runs else "not run"}
    return {"step_ms": statistics.median(ms for run in good for ms in run["step_ms"]), "process": good[-1].get("process")}


def compare(args, case, cap_gib, folder, deadline):
    cap_bytes = int(cap_gib * 2**30)
    print(f"{case} within {cap_gib} GiB", file=sys.stderr, flush=True)
    ours = Plimsoll(args, case, cap_bytes, folder)
    best, tried = best_of_pytorch(args, case, cap_bytes, deadline)
    rounds = {"plimsoll": [], "pytorch": []}
    for _ in range(args.rounds):
        rounds["plimsoll"].append({"failed": ours.failed} if ours.failed else ours.measure())
        if best:
            rounds["pytorch"].append(run_apart(args, {**best["settings"], "steps": args.steps, "warm_up": WARM_UP}))
    result = {"case": case, "cap_gib": cap_gib, "batch": CASES[case][1], "plimsoll": summary(rounds["plimsoll"]),
              "pytorch": summary(rounds["pytorch"]) if best else {"failed": "nothing fits" if tried else "not tried"}, "tried": tried,
              "way": f"{best['way']}, {best['settings']['micro_batches']} x {CASES[case][1] // best['settings']['micro_batches']}" if best else ""}
    if not ours.failed:
        training, time_of = ours.report["training"], ours.report["time"]
        result["plan"] = {"accumulate": training["accumulate"], "batch": training["batch"], "predicted_ms": time_of["predicted_step_us"] / 1e3,
                          "recompute_ms": time_of["recompute_us"] / 1e3, "stalled_ms": time_of["stalled_us"] / 1e3,
                          "promised": ours.report["memory"]["device"]["promised_bytes"]}
    return result


def gib(value):
    return f"{value / 2**30:.2f}" if value else "-"


def row(result):
    ours, theirs, plan = result["plimsoll"], result["pytorch"], result.get("plan")
    def rate(side):
        return f"{1e3 * result['batch'] / side['step_ms']:.1f}" if "step_ms" in side else side["failed"]
    ratio = f"{theirs['step_ms'] / ours['step_ms']:.2f}" if "step_ms" in ours and "step_ms" in theirs else "-"
    split = f"{plan['accumulate']} x {plan['batch']}, {plan['recompute_ms']:.1f} ms again" if plan else ""
    return (f"| {result['case']} | {result['cap_gib']} | {rate(ours)} | {gib(ours.get('process'))} | {split} | "
            f"{rate(theirs)} | {gib(theirs.get('process'))} | {result['way']} | {ratio} |")


def table(results):
    heads = ["| case | cap GiB | Plimsoll samples/s | holds GiB | with | PyTorch samples/s | holds GiB | with | ratio |", "|---|---|---|---|---|---|---|---|---|"]
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
            whole = (folder / "batch.safetensors").read_bytes()
            for cap in caps:
                (folder / "batch.safetensors").write_bytes(whole)
                results.append(compare(args, case, cap, folder, deadline))
                print(row(results[-1]), flush=True)
                # Written as it goes: the machine may be taken away.
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1))
                if args.markdown:
                    args.markdown.write_text(table(results))


if __name__ == "__main__":
    main()
