#!/usr/bin/env python3
"""Holds every source to .clang-format and the names in headers to .clang-tidy, with pinned versions of both tools.

Usage: style.py BUILD      BUILD has compile_commands.json, and gets a virtual environment with the tools

Exits 77 where the tools cannot be installed.
"""
import json
import pathlib
import shlex
import subprocess
import sys
import venv

TOOLS = ["clang-format==14.0.6", "clang-tidy==14.0.6"]
ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["examples", "frontend", "ir", "kernels", "passes", "runtime", "tests"]
# The tool knows neither CUDA nor OpenMP; the public header has some names of the program's own in another namespace.
NO_HEADERS = ("kernels/cpu/common/parallel.h", "kernels/cuda/", "runtime/cuda/backend/", "frontend/api/plimsoll", "tests/")


def install(folder):
    """The folder of the tools' programs, which appear there at the first call."""
    programs = folder / "bin"
    if not (programs / "clang-tidy").exists():
        try:
            venv.create(folder, with_pip=True)
            subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", "--retries", "1", *TOOLS], check=True)
        except (subprocess.CalledProcessError, OSError) as failure:
            print(f"style: {' and '.join(TOOLS)} cannot be installed: {failure}")
            sys.exit(77)
    return programs


def sources(*suffixes):
    return sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*")
                  if path.suffix in suffixes)


def include_flags(build):
    """Of a source that may include what it likes."""
    # The wheel of clang-tidy comes without the compiler's own headers.
    own = subprocess.run(["g++", "-print-file-name=include"], text=True, capture_output=True, check=True).stdout.strip()
    for command in json.loads((build / "compile_commands.json").read_text()):
        if command["file"].endswith("frontend/driver/main.cpp"):
            words = shlex.split(command["command"])
            pairs = zip(words, words[1:])
            return ([w for w in words if w.startswith("-I")] + [w for pair in pairs if pair[0] == "-isystem" for w in pair]
                    + ["-isystem", own])
    sys.exit("style: compile_commands.json lacks frontend/driver/main.cpp")


def check_names(tidy, build, headers, name):
    """One source that includes all the headers: reading each header once takes seconds where sources take minutes."""
    source = build / f"{name}.cpp"
    source.write_text("".join(f'#include "{header}"\n' for header in headers))
    ran = subprocess.run([tidy, "--quiet", "--warnings-as-errors=*", f"--config-file={ROOT}/.clang-tidy", source, "--",
                          "-std=c++20", "-w", *include_flags(build)], cwd=ROOT, text=True, capture_output=True)
    print(ran.stdout, ran.stderr if ran.returncode and not ran.stdout else "", sep="", end="")
    return ran.returncode == 0


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    programs = install(build / "style")
    formatted = subprocess.run([programs / "clang-format", "--dry-run", "--Werror", *sources(".cpp", ".h", ".cu", ".cuh")],
                               cwd=ROOT).returncode == 0
    headers = [path for path in sources(".h") if not path.startswith(NO_HEADERS)]
    named = [check_names(programs / "clang-tidy", build, headers, "all_headers"),
             check_names(programs / "clang-tidy", build, ["frontend/api/plimsoll.h"], "public_header")]
    print(f"style: formatted {'as declared' if formatted else 'otherwise'}, "
          f"names of {len(headers) + 1} headers {'as declared' if all(named) else 'otherwise'}")
    sys.exit(not (formatted and all(named)))


if __name__ == "__main__":
    main()
