#!/usr/bin/env python3
"""Starts a command once per rank on this machine, as torchrun does: by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

Usage: start_ranks.py N COMMAND...

The first rank's output is shown. Exits with 1 if a rank fails, after its last lines.
"""
import os
import random
import socket
import subprocess
import sys


def free_port():
    """Below the ports that a system gives to connections, one of which might start before rank 0 listens."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as found:
            try:
                found.bind(("", port))
            except OSError:
                continue
        return str(port)


def start_ranks(command, ranks, timeout=None):
    """Returns the first rank's output, or raises RuntimeError with the last lines of the first rank that fails."""
    shared = dict(os.environ)
    if ranks > 1:
        shared.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    processes = [subprocess.Popen(list(map(str, command)), env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else shared,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, (_, errors)) in enumerate(zip(processes, outputs)):
        if process.returncode:
            last = " / ".join(errors.strip().splitlines()[-3:]) or "no message"
            raise RuntimeError(f"rank {rank} exits {process.returncode}: {last[:600]}")
    return outputs[0][0]


if __name__ == "__main__":
    try:
        print(start_ranks(sys.argv[2:], int(sys.argv[1])), end="")
    except RuntimeError as error:
        sys.exit(f"start_ranks: {error}")
