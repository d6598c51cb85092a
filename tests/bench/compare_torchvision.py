#!/usr/bin/env python3
"""Images per second of Plimsoll's loader beside PyTorch's DataLoader with torchvision: JPEG of 500 x 375 in a folder,
RandomResizedCrop(224), flip, normalised, batches of 64.

Usage: compare_torchvision.py LOAD_IMAGES [--images N] [--workers N] [--batches N] [--rounds N]

LOAD_IMAGES is the program of tests/bench/load_images.cpp. Needs torch, torchvision and Pillow. The images are made: a
smooth picture with noise, of about the bytes that a photograph of this size has.
"""
import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from made_images import make_images
from torchvision import datasets, transforms


def torch_images_per_s(folder, workers, batches):
    data = datasets.ImageFolder(folder, transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, num_workers=workers, drop_last=True,
                                         persistent_workers=True)
    batch = iter(loader)
    next(batch)  # starting the processes does not count
    start, seen = time.perf_counter(), 0
    for _ in range(batches):
        try:
            images, _ = next(batch)
        except StopIteration:
            batch = iter(loader)
            images, _ = next(batch)
        seen += len(images)
    return seen / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("load_images")
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_images(folder, args.images)
        sizes = [path.stat().st_size for path in folder.rglob("*.jpg")]
        print(f"{len(sizes)} images of {statistics.mean(sizes) / 1024:.0f} KiB, {args.workers} workers")
        ratios = []
        for _ in range(args.rounds):  # in turns, so that what else the machine does meets both
            ours = subprocess.run([args.load_images, folder, str(args.workers), str(args.batches)], check=True, text=True,
                                  capture_output=True).stdout
            ours, theirs = float(ours.split()[0]), torch_images_per_s(folder, args.workers, args.batches)
            ratios.append(ours / theirs)
            print(f"plimsoll {ours:.0f} images/s, torchvision {theirs:.0f}: {ratios[-1]:.2f} times")
        print(f"median {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
