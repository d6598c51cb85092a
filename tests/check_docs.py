#!/usr/bin/env python3
"""Checks that every file and folder that README.md and docs/ name exists. Needs Python's standard library alone.

Usage: check_docs.py [REPOSITORY]

It checks links to files and headings, paths that begin with a folder of the repository, and file names in backticks.
Prints one line per name that does not exist, then `N passed, N failed`.
"""
import fnmatch
import pathlib
import re
import sys

FOLDERS = ["ir", "frontend", "passes", "kernels", "runtime", "tests", "docs", "examples", "cmake", "third_party"]
PATH = re.compile(r"(?<![\w/.\-])(?:" + "|".join(FOLDERS) + r")/(?:[\w./*\-]|<\w+>|\{[\w,.]+\})*")
FILE_NAME = re.compile(r"`([a-z0-9_*]+(?:\{[\w,.]+\}|\.(?:cpp|h|cu|cuh|py|sh|def|proto|json|md)))`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors_of(document):
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def alternatives(name):
    """`a.{h,cpp}` names two files."""
    choice = re.search(r"\{([^}]*)\}", name)
    if not choice:
        return [name]
    return [other for each in choice.group(1).split(",") for other in alternatives(name[:choice.start()] + each + name[choice.end():])]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    root = root if root.is_dir() else root.parents[1]
    file_names = {path.name for folder in FOLDERS for path in (root / folder).rglob("*")}
    passed, failures = 0, []
    for document in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = document.read_text()
        found = []
        for link in LINK.findall(text):
            file, _, anchor = link.partition("#")
            target = document.parent / file if file else document
            if "://" not in link:
                found.append((link, target.exists() and (not anchor or anchor in anchors_of(target))))
        for path in PATH.findall(text):
            for name in alternatives(re.sub(r"<\w+>", "*", path).rstrip(".,")):
                found.append((name, any(root.glob(name.rstrip("/")))))
        for file_name in FILE_NAME.findall(text):
            for name in alternatives(file_name):
                found.append((name, bool(fnmatch.filter(file_names, name)) or (root / name).exists()))
        passed += sum(exists for _, exists in found)
        failures += [f"{document.relative_to(root)}: {name} does not exist" for name, exists in found if not exists]
    print("\n".join([*failures, f"{passed} passed, {len(failures)} failed"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
