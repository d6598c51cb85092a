#!/usr/bin/env python3
"""Trains two language models in bf16 and in fp8 from the same first values on the same batches, and compares their losses.

Usage: fp8_losses.py PLIMSOLL [gpt] [llama] [--scales tensor,rows,blocks] [--rules LINE;LINE] [--steps 300] [--device cpu] [--limit 0.01] [--folder DIR]

gpt:   the quickstart's GPT of 1.3 M parameters; llama: a Llama of 1.7 M that write_llama.py writes, with drawn weights. Both read the quickstart's text,
       batch 8 of 128 characters, with AdamW at 3e-4, since at higher rates every precision has steps of many times the usual gradient norm. Compared
       are means over 10 steps: printed are the largest and the mean of their relative differences, and the last of them. Exit 1 where the largest is
       above --limit. --scales says what shares a scale in each run of fp8, --rules are more lines of its precision file.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
QUICKSTART = HERE.parent.parent / "examples" / "quickstart"
WINDOW = 10
LLAMA = {"layers": 6, "hidden": 128, "gated": 352, "heads": 4, "kv-heads": 2, "vocabulary": 128, "batch": 8, "sequence": 128}


def execute(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def job_of(name, folder):
    """Model, options of compile and first values."""
    if name == "gpt":
        return QUICKSTART / "small_gpt.onnx", ["--dim", "batch=8"], ["--weights", QUICKSTART / "small_gpt.onnx"]
    model = folder / "llama.onnx"
    execute(sys.executable, HERE / "write_llama.py", model, *(f"--{size}={number}" for size, number in LLAMA.items()))
    return model, [], ["--init", "1", "--init-std", "0.02"]


def losses(plimsoll, name, scales, folder, args):
    """Of bf16 where there are no scales."""
    model, options, first = job_of(name, folder)
    run, precision = f"{name}.{scales or 'bf16'}", "fp8" if scales else "bf16"
    plan, metrics, rules = folder / f"{run}.plan", folder / f"{run}.jsonl", folder / f"{run}.precision"
    if scales:
        rules.write_text(f"scales = {scales}\n{args.rules}\n")
        options = [*options, "--precision-file", rules]
    execute(plimsoll, "compile", model, "-o", plan, "--device", args.device, "--precision", precision, "--lr", "3e-4", "--beta2", "0.99",
            "--weight-decay", "0.01", *options)
    execute(plimsoll, "run", plan, *first, "--data", QUICKSTART / "tokens.bin", "--steps", args.steps, "--seed", "1", "--metrics", metrics)
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


def means(values):
    return [sum(values[i:i + WINDOW]) / WINDOW for i in range(0, len(values) - WINDOW + 1, WINDOW)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll", type=pathlib.Path)
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--scales", type=lambda text: text.split(","), default=["tensor"])
    parser.add_argument("--rules", default="")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=0.01)
    parser.add_argument("--folder", type=pathlib.Path)
    args = parser.parse_args()
    above = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or pathlib.Path(scratch)
        folder.mkdir(exist_ok=True)
        for name in args.models or ("gpt", "llama"):
            half = means(losses(args.plimsoll, name, None, folder, args))
            for scales in args.scales:
                eight = means(losses(args.plimsoll, name, scales, folder, args))
                apart = [abs(b - a) / a for a, b in zip(half, eight)]
                print(f"{name}: {args.steps} steps, means of {WINDOW}: bf16 {half[0]:.4f} to {half[-1]:.4f}, fp8 by {scales} {eight[0]:.4f} to {eight[-1]:.4f}; "
                      f"apart at most {100 * max(apart):.2f} %, on average {100 * sum(apart) / len(apart):.2f} %, at the end {100 * apart[-1]:.2f} %", flush=True)
                above |= max(apart) > args.limit
    return above


if __name__ == "__main__":
    sys.exit(main())
