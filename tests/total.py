#!/usr/bin/env python3
"""Add up what CTest ran, cases inside a test program included, and close with `N passed, N failed, N skipped`.

Usage: total.py TESTS.xml

A test program that prints its own counts (doctest's summary, or a line `N passed, N failed`) contributes those; any
other counts as one. Exits 1 when something failed or nothing ran.
"""
import re
import sys
import xml.etree.ElementTree

SUMMARIES = (
    re.compile(r"^\[doctest\] test cases: +\d+ \| +(?P<passed>\d+) passed \| +(?P<failed>\d+) failed", re.M),
    re.compile(r"^(?P<passed>\d+) passed, (?P<failed>\d+) failed(, (?P<skipped>\d+) skipped)?$", re.M),
)


def count(test):
    """Passed, failed and skipped of one CTest test."""
    not_run = test.find("skipped")
    if not_run is not None and not_run.get("message", "").startswith("SKIP_"):
        return 0, 0, 1
    output = test.findtext("system-out") or ""
    failed = test.get("status") != "run"
    for summary in SUMMARIES:
        found = summary.search(output)
        if found:
            counts = [int(n or 0) for n in found.groupdict(default=0).values()]
            passed, inner_failed, skipped = (counts + [0])[:3]
            # A program that fails after its last case has still failed.
            return passed, max(inner_failed, int(failed)), skipped
    return (0, 1, 0) if failed else (1, 0, 0)


def main():
    (path,) = sys.argv[1:]
    totals = [0, 0, 0]
    for test in xml.etree.ElementTree.parse(path).iter("testcase"):
        counts = count(test)
        totals = [a + b for a, b in zip(totals, counts)]
        if counts[1] or counts[2]:
            print(f"{'failed' if counts[1] else 'skipped'}: {test.get('name')}")
    print("%d passed, %d failed, %d skipped" % tuple(totals))
    sys.exit(totals[1] > 0 or totals[0] == 0)


if __name__ == "__main__":
    main()
