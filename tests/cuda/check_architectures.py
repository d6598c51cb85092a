#!/usr/bin/env python3
"""Compiles the kernels with instructions of Hopper for compute capability 8.0, too, where they must be empty: a build for one
architecture does not show that another one's code still compiles.

usage: check_architectures.py BUILD     BUILD has compile_commands.json
"""
import json
import multiprocessing.pool
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOPPER_ALONE = re.compile(r"\b(wgmma|setmaxnreg|mbarrier|cp\.async\.bulk|barrier\.cluster|mapa)\b")
# Kernels of every card, which take a minute: they share what warpgroups have in registers.
FOR_EVERY_CARD = ("attention_mma.cu", "attention_mma_grad.cu")


def included(source, seen):
    if source not in seen:
        seen.add(source)
        for header in re.findall(r'#include "(kernels/cuda/[^"]+)"', source.read_text()):
            included(ROOT / header, seen)
    return seen


def sources():
    return [source for source in sorted(ROOT.glob("kernels/cuda/*/*.cu"))
            if source.name not in FOR_EVERY_CARD
            and any(HOPPER_ALONE.search(file.read_text()) for file in included(source, set()))]


def compile_for_ampere(command, source, folder):
    """What the compiler says against the source, or nothing."""
    words = [word for word in shlex.split(command["command"]) if not word.startswith("--generate-code")]
    words = words[:words.index("-x")] + ["--generate-code=arch=compute_80,code=[sm_80]", "-cubin", source,
                                         "-o", f"{folder}/{source.stem}.cubin"]
    ran = subprocess.run(words, cwd=command["directory"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return f"{source.relative_to(ROOT)}:\n{ran.stdout}" if ran.returncode else ""


def main():
    commands = json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text())
    # Sources may be united, and all are compiled by the same options.
    command = next(command for command in commands if command["file"].endswith(".cu"))
    chosen = sources()
    with tempfile.TemporaryDirectory() as folder, multiprocessing.pool.ThreadPool(os.cpu_count()) as pool:
        failures = pool.map(lambda source: compile_for_ampere(command, source, folder), chosen)
    print("\n".join(filter(None, failures)) or f"{len(chosen)} sources compile for compute capability 8.0")
    return 1 if any(failures) or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
