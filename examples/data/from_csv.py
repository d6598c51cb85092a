#!/usr/bin/env python3
"""Turns a table into a safetensors file with a row of features and a label per sample.

Usage: from_csv.py TABLE.csv OUT.safetensors --label COLUMN [--features NAME] [--labels NAME] [--regression]

The first line has the columns' names. Features are the other columns; numbers stay numbers, and a column of words becomes
one number per word, 1 or 0. Features are shifted and scaled to mean 0 and deviation 1. Labels are classes, numbered in the
order of their names (classes that are whole numbers keep them), or with --regression numbers. NAME is that of the model's
input.
"""
import argparse
import csv
import sys

import numpy

from tensors import write_safetensors


def numbers(column):
    try:
        return numpy.array([float(cell) for cell in column], numpy.float64)
    except ValueError:
        return None


def features_of(name, column):
    """One array per feature that the column makes, with its name."""
    values = numbers(column)
    if values is not None:
        return [(name, values)]
    return [(f"{name}={word}", numpy.array([cell == word for cell in column], numpy.float64)) for word in sorted(set(column))]


def classes_of(column):
    if all(cell.isdigit() for cell in column):
        return numpy.array([int(cell) for cell in column], numpy.int64)
    names = {name: number for number, name in enumerate(sorted(set(column)))}
    print("classes: " + ", ".join(f"{number} is {name}" for name, number in names.items()))
    return numpy.array([names[cell] for cell in column], numpy.int64)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("out")
    parser.add_argument("--label", required=True)
    parser.add_argument("--features", default="x")
    parser.add_argument("--labels", default="labels")
    parser.add_argument("--regression", action="store_true")
    args = parser.parse_args()
    with open(args.table, newline="") as table:
        rows = list(csv.DictReader(table))
    if not rows or args.label not in rows[0]:
        sys.exit(f"{args.table}: has no rows with a column {args.label}")
    columns = {name: [row[name].strip() for row in rows] for name in rows[0]}
    labels = columns.pop(args.label)
    features = [feature for name, column in columns.items() for feature in features_of(name, column)]
    x = numpy.stack([values for _, values in features], axis=1)
    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0)) / numpy.where(deviation > 0, deviation, 1)
    y = numbers(labels).astype(numpy.float32) if args.regression else classes_of(labels)
    write_safetensors(args.out, {args.features: x.astype(numpy.float32), args.labels: y})
    print(f"{args.out}: {len(rows)} samples of {len(features)} features: " + ", ".join(name for name, _ in features))


if __name__ == "__main__":
    main()
