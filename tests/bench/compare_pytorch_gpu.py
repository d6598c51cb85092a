#!/usr/bin/env python3
"""Training steps on one GPU: Plimsoll, PyTorch eager and torch.compile on the same model, batch and precision.

Usage: compare_pytorch_gpu.py PLIMSOLL [CASE ...] [--rounds 2] [--steps 30] [--sides plimsoll,eager,compile,best]
                              [--device h200] [--budget BYTES] [--json FILE]

A step is forward, backward and AdamW in bf16 with fp32 weights, on one random batch; dropout is off on every side.
Rounds of the sides alternate, each in a process of its own; medians are over the steps of all rounds after each
round's warm-up. Exports the models itself. Needs torch, torchvision, transformers, onnxscript and safetensors.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WARM_UP = 10
SETTINGS = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
# name: (family, batch, rows of a sequence or of an image)
CASES = {
    "gpt2_b16": ("gpt2", 16, 1024),
    "gpt2_b64": ("gpt2", 64, 1024),
    "resnet50_b256": ("resnet50", 256, 224),
    "bert_base_b64": ("bert", 64, 512),
    "vit_l16_b64": ("vit", 64, 224),
}


def build(family, rows):
    import torch

    class WithLoss(torch.nn.Module):
        def __init__(self, model, logits):
            super().__init__()
            self.model, self.logits = model, logits

        def forward(self, x, labels):
            logits = self.logits(self.model, x)
            return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    torch.manual_seed(0)
    if family == "gpt2":
        import transformers
        config = transformers.GPT2Config(attn_implementation="sdpa", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        return WithLoss(transformers.GPT2LMHeadModel(config), lambda m, x: m(input_ids=x, use_cache=False).logits)
    if family == "bert":
        import transformers
        config = transformers.BertConfig(attn_implementation="sdpa", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return WithLoss(transformers.BertForSequenceClassification(config), lambda m, x: m(input_ids=x).logits)
    import torchvision
    model = torchvision.models.vit_l_16() if family == "vit" else torchvision.models.resnet50()
    return WithLoss(model, lambda m, x: m(x))


def make_batch(family, batch, rows):
    import torch

    generator = torch.Generator().manual_seed(1)
    def whole(high, *shape):
        return torch.randint(0, high, shape, generator=generator)
    if family == "gpt2":
        return {"x": whole(50257, batch, rows), "labels": whole(50257, batch, rows)}
    if family == "bert":
        return {"x": whole(30522, batch, rows), "labels": whole(2, batch)}
    return {"x": torch.randn(batch, 3, rows, rows, generator=generator), "labels": whole(1000, batch)}


def export(case, folder):
    import safetensors.torch
    import torch

    family, batch, rows = CASES[case]
    inputs = make_batch(family, batch, rows)
    torch.onnx.export(build(family, rows).train(), tuple(inputs.values()), folder / "model.onnx", dynamo=True, optimize=False,
                      opset_version=20, input_names=list(inputs), output_names=["loss"], external_data=True, verbose=False)
    safetensors.torch.save_file(inputs, folder / "batch.safetensors")


def process_bytes():
    import pynvml

    pynvml.nvmlInit()
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0)):
        if process.pid == os.getpid():
            return process.usedGpuMemory
    return None


def train_with_pytorch(case, side, steps):
    import torch

    family, batch, rows = CASES[case]
    model = build(family, rows).cuda().train()
    inputs = {name: tensor.cuda() for name, tensor in make_batch(family, batch, rows).items()}
    if family == "resnet50":
        model = model.to(memory_format=torch.channels_last)
        inputs["x"] = inputs["x"].to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                                  eps=SETTINGS["eps"], weight_decay=SETTINGS["weight_decay"], fused=True)
    run = model if side == "eager" else torch.compile(model, mode="default" if side == "compile" else "max-autotune")
    begin, times, first_ms = time.perf_counter(), [], None
    for step in range(WARM_UP + steps):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(**inputs)
        loss.backward()
        optimizer.step()
        end.record()
        end.synchronize()
        first_ms = first_ms or 1e3 * (time.perf_counter() - begin)
        if step >= WARM_UP:
            times.append(start.elapsed_time(end))
    print(json.dumps({"step_ms": times, "loss": loss.item(), "compile_ms": first_ms,
                      "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
                      "process": process_bytes()}))


class Plimsoll:
    """One side: compile once, run each round."""

    def __init__(self, args, folder):
        self.args, self.folder, self.plan = args, folder, folder / "model.plan"
        options = [part for key, value in SETTINGS.items() for part in ("--" + key.replace("_", "-"), str(value))]
        if args.budget:
            options += ["--budget", args.budget]
        start = time.perf_counter()
        subprocess.run([args.program, "compile", folder / "model.onnx", "-o", self.plan, "--device", args.device,
                        "--precision", "bf16", "--optimizer", "adamw", *options], check=True, stdout=subprocess.DEVNULL)
        self.compile_ms = 1e3 * (time.perf_counter() - start)
        self.report = json.loads(subprocess.check_output([args.program, "inspect", self.plan, "--json"]))

    def measure(self):
        metrics = self.folder / "metrics.jsonl"
        subprocess.run([self.args.program, "run", self.plan, "--init", "1", "--data", self.folder / "batch.safetensors",
                        "--steps", str(WARM_UP + self.args.steps), "--metrics", metrics], check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        memory = self.report["memory"]["device"]
        return {"step_ms": [row["step_ms"] for row in rows[WARM_UP:]], "loss": rows[-1]["loss"], "compile_ms": self.compile_ms,
                "promised": memory["promised_bytes"], "allocated": memory["arena_bytes"], "process": rows[-1]["device_bytes"],
                "roofline_ms": self.report["time"]["predicted_step_us"] / 1e3}


def measure_pytorch(args, case, side):
    command = [sys.executable, os.path.abspath(__file__), args.program, case, "--part", side, "--steps", str(args.steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def gib(value):
    return f"{value / 2**30:7.2f}" if value else "      -"


def compare(args, case):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        sides = args.sides.split(",")
        rounds = {side: [] for side in sides}
        if "plimsoll" in sides:
            subprocess.run([sys.executable, os.path.abspath(__file__), args.program, case, "--part", "export", "--folder", folder],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            ours = Plimsoll(args, folder)
        for _ in range(args.rounds):
            for side in sides:
                rounds[side].append(ours.measure() if side == "plimsoll" else measure_pytorch(args, case, side))
    summary = {}
    for side, runs in rounds.items():
        times = sorted(ms for run in runs for ms in run["step_ms"])
        summary[side] = {"step_ms": statistics.median(times), "p10": times[len(times) // 10], "p90": times[len(times) * 9 // 10],
                         **{key: runs[-1].get(key) for key in ("loss", "compile_ms", "promised", "allocated", "reserved", "process", "roofline_ms")}}
        s = summary[side]
        roofline = f"  roofline {100 * s['roofline_ms'] / s['step_ms']:.0f} %" if s["roofline_ms"] else ""
        print(f"{case:14} {side:9} {s['step_ms']:8.2f} ms ({s['p10']:.2f} to {s['p90']:.2f})  GiB promised {gib(s['promised'])} "
              f"allocated {gib(s['allocated'])} reserved {gib(s['reserved'])} process {gib(s['process'])}  "
              f"compile {s['compile_ms'] / 1e3:6.1f} s  loss {s['loss']:.4f}{roofline}", flush=True)
    return summary


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sides", default="plimsoll,eager,compile")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--budget")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--part", choices=["compare", "export", "eager", "compile", "best"], default="compare", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [case for case in args.cases if case not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(CASES)}")
    if args.part == "export":
        export(args.cases[0], args.folder)
    elif args.part != "compare":
        train_with_pytorch(args.cases[0], args.part, args.steps)
    else:
        results = {case: compare(args, case) for case in args.cases or CASES}
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
