#!/usr/bin/env python3
"""Saves every decision of many plans as text, to hold a refactoring against. Needs Python's standard library alone.

Usage: plan_snapshots.py PLIMSOLL FOLDER MODEL.onnx ... [--against FOLDER2] [--renamed OLD=NEW ...]

Each model is compiled for cpu, h200 and rtx4090: without a budget, and within three budgets that
leave 70 and 40 % of that plan's transient bytes and 30 % of its arena.
A file per plan lists its totals, slots with offsets and lives, and instructions with kernels and predicted times; a
refusal is listed with its numbers. With --against each file is compared with the one of the same name in FOLDER2,
after --renamed has replaced whole words there. Prints a line per model and `N passed, N failed`.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

DEVICES = ["cpu", "h200", "rtx4090"]
# What a budget leaves of the plain plan: of its transient bytes, or of the whole arena.
BUDGETS = {"transient70": ("transient", 0.70), "transient40": ("transient", 0.40), "arena30": ("arena", 0.30)}


def compile_options(model):
    options = {
        "gpt2_124m": ["--dim", "batch=8", "--precision", "bf16"],
        "llama2_7b": ["--dim", "batch=2"],
        "mistral_7b": ["--dim", "batch=2"],
        "qwen2_72b": ["--dim", "batch=1"],
        "bert_base": ["--batch", "16", "--precision", "bf16"],
        "deeplabv3": ["--batch", "4", "--precision", "bf16"],
        "resnet50_torchscript": ["--dim", "batch=32"],
    }
    name = pathlib.Path(model).stem
    return next((value for key, value in options.items() if name.startswith(key)), [])


class Compiler:
    def __init__(self, program):
        self.program = program
        self.plan = pathlib.Path(tempfile.mkdtemp()) / "snapshot.plan"

    def compile(self, model, options):
        """The plan as JSON, or the refusal's text."""
        command = [self.program, "compile", model, "-o", str(self.plan), *options]
        for _ in range(4):
            done = subprocess.run(command, capture_output=True, text=True)
            message = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""
            if done.returncode == 0:
                shown = subprocess.run([self.program, "inspect", str(self.plan), "--json"], capture_output=True, text=True, check=True)
                return json.loads(shown.stdout)
            if "no loss" in message:
                logits = re.search(r"\(([^ ]+) f", message).group(1)
                command += ["--loss", f"cross-entropy:{logits}:labels"]
            elif "--dim" in message:
                command += [word for name in re.findall(r"--dim (\w+)=", message) for word in ("--dim", f"{name}=2")]
            else:
                break
        return f"exit {done.returncode}: {message}"


def as_text(plan):
    if isinstance(plan, str):
        return plan.split("; at the peak")[0] + "\n"
    lines = [f"promised {plan['memory']['device']['promised_bytes']} step {plan['time']['predicted_step_us']:.6f}"]
    for space, memory in plan["memory"].items():
        lines.append(f"{space} arena {memory['arena_bytes']} persistent {memory.get('persistent_bytes')} peak {memory.get('peak_live_bytes')}")
    for at, slot in enumerate(plan["slots"]):
        words = [f"{key}={slot[key]}" for key in ("function", "first", "last", "view_of", "in_place_of", "part_of") if key in slot]
        lines.append(f"slot {at} {slot['type']} {slot['space']} @ {slot['offset']} {slot['bytes']} {slot['category']} " + " ".join(words))
    for at in plan["instructions"]:
        lines.append(f"{at['function']} {at['index']} {at['op']} {at['kernel']} {at['phase']} {at['operands']} -> {at['results']} "
                     f"done {at.get('done')} {at['flops']} {at['bytes_moved']} {at['predicted_us']:.6f}")
    return "\n".join(lines) + "\n"


def difference(old, new):
    """The first line that differs, or None."""
    old_lines, new_lines = old.splitlines(), new.splitlines()
    for at, (a, b) in enumerate(zip(old_lines, new_lines)):
        if a != b:
            return f"line {at + 1}: was {a[:150]}, is {b[:150]}"
    return None if len(old_lines) == len(new_lines) else f"{len(old_lines)} lines, now {len(new_lines)}"


def snapshots(compiler, model):
    """(name, text) of each plan of a model."""
    options = compile_options(model)
    for device in DEVICES:
        asked = [*options, "--device", device]
        plain = compiler.compile(model, [*asked, "--budget", "100TiB", "--offload", "off"])
        yield f"{device}.plain", as_text(plain)
        if isinstance(plain, str):
            continue
        memory = plain["memory"]["device"]
        bytes_of = {"transient": memory["arena_bytes"] - memory["persistent_bytes"], "arena": memory["arena_bytes"]}
        for name, (part, share) in BUDGETS.items():
            budget = memory["promised_bytes"] - int(bytes_of[part] * (1 - share))
            yield f"{device}.{name}", as_text(compiler.compile(model, [*asked, "--budget", str(budget)]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--renamed", action="append", default=[])
    args = parser.parse_args()
    compiler = Compiler(args.program)
    args.folder.mkdir(parents=True, exist_ok=True)
    passed = failed = 0
    for model in args.models:
        stem = pathlib.Path(model).stem if pathlib.Path(model).stem != "model" else pathlib.Path(model).parent.name
        plans = refused = 0
        for name, text in snapshots(compiler, model):
            (args.folder / f"{stem}.{name}.txt").write_text(text)
            plans += 1
            refused += text.startswith("exit")
            if args.against:
                old = (args.against / f"{stem}.{name}.txt").read_text()
                for pair in args.renamed:
                    was, now = pair.split("=")
                    old = re.sub(rf"(?<![\w.]){re.escape(was)}(?![\w.])", now, old)
                found = difference(old, text)
                passed, failed = passed + (found is None), failed + (found is not None)
                if found:
                    print(f"{stem}.{name}: {found}", flush=True)
        print(f"{stem}: {plans} plans, {refused} refused", flush=True)
    if args.against:
        print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
