#!/usr/bin/env python3
"""Prints the lines of source by folder, tests aside."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["ir", "frontend", "passes", "kernels", "runtime", "examples"]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".def"}


def lines(folder):
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return sum(path.read_text().count("\n") for path in files)


def main():
    counts = {folder: lines(folder) for folder in FOLDERS}
    print("lines:", ", ".join(f"{folder} {count:,}" for folder, count in counts.items()) + f"; {sum(counts.values()):,} in all")


if __name__ == "__main__":
    main()
