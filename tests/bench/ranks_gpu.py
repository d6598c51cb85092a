#!/usr/bin/env python3
"""Times data parallel training on the GPUs of one machine: Plimsoll on one card and on several, beside PyTorch's DDP.

Usage: ranks_gpu.py PLIMSOLL [CASE ...] [--ranks 2] [--steps 20] [--device h200] [--zero 0 1] [--gradient-sums bf16] [--no-torch] [--markdown FILE]

A step is gpu_training.py's: bf16 with fp32 weights and AdamW; each card has the case's whole batch. Both sides run alone, one after the other, in
the same order for one card and for several. PyTorch's model is compiled, and DDP keeps gradients as views of its buckets. A line tells the milliseconds
per step, the throughput per card against one card's, the bytes that the first card's process holds, and for ours the prediction and the promise.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_ranks import start_ranks  # noqa: E402
from gpu_training import CASES, SETTINGS, build, compile_options, export_apart, make_batch, process_bytes, timed

WARM_UP = 5


class Ours:
    def __init__(self, args, folder, ranks, zero):
        self.args, self.folder, self.ranks = args, folder, ranks
        self.name = "Plimsoll, one card" if ranks == 1 else f"Plimsoll, {ranks} cards, ZeRO-{zero}"
        self.plan = folder / f"ranks{ranks}_zero{zero}.plan"
        batch = args.batch * ranks
        command = [args.program, "compile", folder / "model.onnx", "-o", self.plan, "--device", args.device, "--batch", str(batch), *compile_options()]
        command += ["--mesh", f"data={ranks}", "--zero", zero, "--gradient-sums", args.gradient_sums] if ranks > 1 else []
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        report = json.loads(subprocess.check_output([args.program, "inspect", self.plan, "--json"]))
        self.note = f"predicted {report['time']['predicted_step_us'] / 1e3:.1f} ms, promised {report['memory']['device']['promised_bytes'] / 2**30:.2f} GiB"
        self.data = folder / f"batch_{batch}.safetensors"
        if not self.data.exists():
            import safetensors.torch
            family, _, rows = CASES[args.case]
            safetensors.torch.save_file(make_batch(family, batch, rows), self.data)

    def measure(self):
        metrics = self.folder / "metrics.jsonl"
        start_ranks([self.args.program, "run", self.plan, "--init", "1", "--init-std", "0.02", "--data", self.data, "--steps", WARM_UP + self.args.steps, "--metrics", metrics],
                    self.ranks, self.args.timeout)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return {"step_ms": [row["step_ms"] for row in rows[WARM_UP:]], "process": rows[-1]["device_bytes"], "losses": [rows[0]["loss"], rows[-1]["loss"]]}


class Theirs:
    note = ""

    def __init__(self, args, ranks):
        self.args, self.ranks = args, ranks
        self.name = "torch.compile, one card" if ranks == 1 else f"DDP + torch.compile, {ranks} cards"

    def measure(self):
        settings = json.dumps({"case": self.args.case, "steps": self.args.steps, "ranks": self.ranks})
        return json.loads(start_ranks([sys.executable, __file__, self.args.program, "--train", settings], self.ranks, self.args.timeout).strip().splitlines()[-1])


def train_torch(case, steps, ranks):
    import torch

    rank = int(os.environ.get("RANK", 0))
    torch.cuda.set_device(rank)
    family, batch, rows = CASES[case]
    model = build(family, rows).cuda().train()
    inputs = {name: tensor[rank * batch:(rank + 1) * batch].cuda() for name, tensor in make_batch(family, batch * ranks, rows).items()}
    if ranks > 1:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]), eps=SETTINGS["eps"],
                                  weight_decay=SETTINGS["weight_decay"], fused=True)
    run, times = torch.compile(model), []
    for _ in range(2 * WARM_UP + steps):
        with timed("cuda", times):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = run(**inputs)
            loss.backward()
            optimizer.step()
    result = {"step_ms": times[2 * WARM_UP:], "process": process_bytes(), "losses": [loss.item()]}
    if ranks > 1:
        torch.distributed.destroy_process_group()
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--zero", nargs="*", default=["0", "1"])
    parser.add_argument("--gradient-sums", default="fp32")
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        print(json.dumps(train_torch(**json.loads(args.train))))
        return
    lines = ["| case | way | ms | per card against one | first card holds GiB | |", "|---|---|---|---|---|---|"]
    for case in args.cases or ["gpt2_b16"]:
        args.case, args.batch = case, CASES[case][1]
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            export_apart(case, folder, 2)
            sides = [[lambda: Ours(args, folder, 1, "0"), *(lambda zero=zero: Ours(args, folder, args.ranks, zero) for zero in args.zero)],
                     [] if args.no_torch else [lambda: Theirs(args, 1), lambda: Theirs(args, args.ranks)]]
            for ways in sides:
                one_card = None
                for make in ways:
                    try:
                        way = make()
                        result = way.measure()
                    except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                        print(f"{case}: {error}", file=sys.stderr, flush=True)
                        continue
                    ms = statistics.median(result["step_ms"])
                    one_card = one_card or ms
                    lines.append(f"| {case} | {way.name} | {ms:.2f} | {one_card / ms:.3f} | {(result['process'] or 0) / 2**30:.2f} | {way.note}; "
                                 f"loss {' -> '.join(f'{loss:.4f}' for loss in result['losses'])} |")
                    print(lines[-1], flush=True)
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
