#!/usr/bin/env python3
"""Times how long planning takes: refusals, tight budgets, several GPUs, states on the host, a curve.

planning_seconds.py PLIMSOLL MODELS ZOO [--only PATTERN] [--runs 1]

MODELS is a folder of the large exports (gpt2_124m_opset20.onnx and so on), ZOO the folder of `zoo_gpu.py ZOO --export`.
Prints, for each job, seconds of wall clock and of processors (the least of --runs), the limit in seconds of wall clock
on two idle cores, and what came of it: the predicted step, or the floor that a refusal names. Exits 1 where a job takes
longer than its limit. PATTERN is a regular expression for jobs' names.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

DONE, OVER_BUDGET = 0, 4
REFUSAL, PLAN, CURVE, MESH, ON_HOST, PLAIN_72B = 5, 10, 20, 15, 20, 3  # limits, seconds of wall clock


@dataclasses.dataclass
class Job:
    name: str
    limit: float
    model: str  # a file of MODELS, or a name of the zoo
    words: str

    def path(self, asked):
        return pathlib.Path(asked.models) / self.model if self.model.endswith(".onnx") else pathlib.Path(asked.zoo) / self.model / "model.onnx"


# Of the budget sweep's twelve models, with their batches.
LARGE = {"gpt2_124m": ("gpt2_124m_opset20.onnx", "--dim batch=16"),
         "bert_base": ("bert_base_opset20.onnx", "--batch 32"),
         "vit_l16": ("vit_l16_opset20.onnx", "--batch 64"),
         "llama2_7b": ("llama2_7b_opset20.onnx", "--dim batch=2"),
         "deeplabv3": ("deeplabv3_resnet101_opset20.onnx", "--batch 16 --loss cross-entropy:upsample_bilinear2d_1:labels"),
         "resnet50": ("resnet50_opset20.onnx", "--batch 128")}
ZOO = {name: (name, "") for name in ("convnext", "swin", "unet", "t5", "modernbert", "clip")}
LLAMA, QWEN = "llama2_7b_opset20.onnx", "qwen2_72b_opset20.onnx"


def jobs():
    for device in ("h200", "rtx4090"):
        for name, (model, words) in {**LARGE, **ZOO}.items():
            yield Job(f"{name} on {device}, refused", REFUSAL, model, f"{words} --device {device} --budget 1MiB")
    for name, budget in (("llama2_7b", "2GiB"), ("llama2_7b", "30GiB"), ("gpt2_124m", "1.5GiB"), ("gpt2_124m", "3GiB"),
                         ("bert_base", "1.5GiB"), ("bert_base", "3GiB"), ("vit_l16", "2GiB"), ("vit_l16", "6GiB")):
        model, words = LARGE[name]
        yield Job(f"{name} on h200 within {budget}", PLAN, model, f"{words} --device h200 --budget {budget}")
    model, words = LARGE["resnet50"]
    yield Job("resnet50 on h200, --pareto", CURVE, model, f"{words} --device h200 --pareto")
    yield Job("llama2_7b on 8 h200 within 22GiB", MESH, LLAMA, "--gpus 8 --device h200 --dim batch=32 --budget 22GiB")
    yield Job("qwen2_72b on h200, states on the host", ON_HOST, QWEN, "--dim batch=1 --device h200 --host-budget 2TiB")
    yield Job("qwen2_72b on 8 h100 within 68GiB", ON_HOST, QWEN, "--gpus 8 --zero 3 --device h100 --budget 68GiB --dim batch=64")
    yield Job("qwen2_72b on h200 within 2TiB, plain", PLAIN_72B, QWEN, "--dim batch=1 --device h200 --budget 2TiB")


def outcome_of(code, text):
    if code == OVER_BUDGET:
        return f"{int(re.search(r'[(]([0-9]+) bytes', text).group(1)) / 2**20:.0f} MiB"
    found = re.findall(r"predicted ([\d.,]+ \w+) per step", text)
    return found[-1] if found else ""


def run(command):
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as text:
        process = subprocess.Popen(command, stdout=text, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - start
        text.seek(0)
        code, printed = os.waitstatus_to_exitcode(status), text.read()
    if code not in (DONE, OVER_BUDGET):
        raise RuntimeError(f"{' '.join(command)} exits {code}:\n{printed}")
    return wall_s, used.ru_utime + used.ru_stime, outcome_of(code, printed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("models")
    parser.add_argument("zoo")
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=1)
    asked = parser.parse_args()
    in_time = True
    print("| job | wall s | CPU s | limit, s | step or floor |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs():
            if not re.search(asked.only, job.name):
                continue
            command = [asked.plimsoll, "compile", str(job.path(asked)), *job.words.split(), "--precision", "bf16", "--optimizer", "adamw",
                       "-o", str(pathlib.Path(folder) / "model.plan")]
            wall_s, cpu_s, outcome = min(run(command) for _ in range(asked.runs))
            late = wall_s > job.limit
            in_time &= not late
            print(f"| {job.name} | {'**' if late else ''}{wall_s:.1f}{'**' if late else ''} | {cpu_s:.1f} | {job.limit:g} | {outcome} |", flush=True)
    return 0 if in_time else 1


if __name__ == "__main__":
    sys.exit(main())
