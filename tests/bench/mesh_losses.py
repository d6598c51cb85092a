#!/usr/bin/env python3
"""Compares the losses and the time of a mesh of ranks with one rank's, on the same global batch. Needs Python's standard library alone.

Usage: mesh_losses.py PLIMSOLL [MODEL ...] [--mesh tensor=2 ...] [--steps 50] [--device h200] [--precision bf16] [--batch 8] [--compile OPTION ...]

A MODEL is a golden case (gpt2, llama_gqa, ...), with its own weights and batch, or an .onnx file of a language model, with fresh weights and made up
tokens. A line tells the milliseconds per step, the bytes that the first rank's process holds, the prediction and the promise, and the largest relative
difference of a loss from one rank's. Exits with 1 where that is above --tolerance.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path += [str(TESTS / "support"), str(TESTS / "golden")]
from check_golden import CASES, unpack  # noqa: E402
from start_ranks import start_ranks  # noqa: E402

WARM_UP = 5


def made_up_tokens(path, vocabulary=50000, count=1 << 20):
    """Words follow each other by a rule, with some noise, so that there is something to learn."""
    draw = random.Random(1)
    word, words = 1, []
    for _ in range(count):
        word = (word * 5 + 7) % vocabulary if draw.random() < 0.8 else draw.randrange(vocabulary)
        words.append(word)
    path.write_bytes(b"".join(word.to_bytes(2, "little") for word in words))


class Job:
    def __init__(self, args, folder, model):
        self.args, self.folder = args, folder
        self.options = ["--device", args.device, "--precision", args.precision, *args.compile]
        if model in CASES:
            case = unpack(model, folder)
            self.model, self.weights, self.data = case / "model.onnx", ["--weights", case / "model.onnx"], case / "batch.safetensors"
            return
        self.model, self.weights, self.data = pathlib.Path(model), ["--init", "1", "--init-std", "0.02"], folder / "tokens.u16"
        made_up_tokens(self.data)
        self.options += ["--batch", args.batch] if args.fixed_batch else ["--dim", f"batch={args.batch}"]

    def measure(self, mesh):
        """Losses, milliseconds a step, bytes of the process, and a note; of one rank without a mesh."""
        plan, metrics = self.folder / "job.plan", self.folder / "metrics.jsonl"
        ranks = 1
        for axis in mesh.split(",") if mesh else []:
            ranks *= int(axis.split("=")[1])
        command = [self.args.program, "compile", self.model, "-o", plan, *self.options, *(["--mesh", mesh] if mesh else [])]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        report = json.loads(subprocess.check_output([self.args.program, "inspect", plan, "--json"]))
        start_ranks([self.args.program, "run", plan, *self.weights, "--data", self.data, "--steps", self.args.steps, "--metrics", metrics],
                    ranks, self.args.timeout)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        note = (f"predicted {report['time']['predicted_step_us'] / 1e3:.1f} ms, "
                f"promised {report['memory']['device']['promised_bytes'] / 2**30:.2f} GiB")
        return ([row["loss"] for row in rows if "loss" in row], statistics.median(row["step_ms"] for row in rows[WARM_UP:] if "loss" in row),
                rows[-1].get("device_bytes") or 0, note)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--mesh", nargs="*", default=["tensor=2"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batch", default="8")
    parser.add_argument("--fixed-batch", action="store_true", help="the exporter fixed the model's batch; change it to --batch")
    parser.add_argument("--compile", nargs="*", default=[], help="more options of compile, written as --compile=--lr=1e-4")
    parser.add_argument("--tolerance", type=float, default=2e-2)
    parser.add_argument("--timeout", type=float, default=300)
    args = parser.parse_args()
    failed = False
    for model in args.models or ["gpt2", "llama_gqa"]:
        name = pathlib.Path(model).stem
        with tempfile.TemporaryDirectory() as folder:
            job = Job(args, pathlib.Path(folder), model)
            want, one_ms, held, note = job.measure("")
            print(f"{name:24} one rank         {one_ms:9.2f} ms  {held / 2**30:6.2f} GiB  loss {want[0]:.4f} -> {want[-1]:.4f}  {note}", flush=True)
            for mesh in args.mesh:
                try:
                    losses, ms, held, note = job.measure(mesh)
                except (RuntimeError, subprocess.SubprocessError, OSError, ValueError) as error:
                    print(f"{name:24} {mesh:16} {error}", flush=True)
                    failed = True
                    continue
                difference = max(abs(got - wanted) / max(abs(wanted), 1e-3) for got, wanted in zip(losses, want))
                failed |= difference > args.tolerance or len(losses) != len(want)
                print(f"{name:24} {mesh:16} {ms:9.2f} ms  {held / 2**30:6.2f} GiB  loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
                      f"largest difference {difference:.1e}  {note}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
