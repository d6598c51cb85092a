#!/usr/bin/env python3
"""Predicts how a training job scales: plans it for 8, 16, ... cards, each with the mesh that the search chooses, and prints a row for each number.

Usage: scaling.py PLIMSOLL MODEL [--device h100] [--cards 8,64,1024] [--rows 4] [--tokens 2048] [--host 8] [--network 40] [OPTION ...]

Every card adds --rows samples to the batch. Hosts have --host cards; the network between them gives each card --network GB/s. With --tokens a sample is that
many tokens. Further options go to `plimsoll compile` as they are. Nothing runs: all figures are predictions.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import tempfile

GIB = 1 << 30


def plan(arguments, rest, cards, folder):
    """The plan for so many cards as `inspect --json` has it, the processor's seconds that compiling took, and the file's bytes."""
    hosts = max(1, cards // arguments.host)
    cluster, output = folder / "cluster.json", folder / "job.plan"
    cluster.write_text(json.dumps({"hosts": hosts, "cards": min(cards, arguments.host), "network": {"base_us": 60, "gb_per_s": arguments.network}}))
    command = [arguments.plimsoll, "compile", arguments.model, "-o", output, "--device", arguments.device, "--dim", f"{arguments.batch}={cards * arguments.rows}"]
    begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([*command, "--gpus", str(cards), "--cluster", cluster, *rest], check=True, capture_output=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - begin
    return json.loads(subprocess.check_output([arguments.plimsoll, "inspect", output, "--json"])), seconds, output.stat().st_size


def shares(report):
    """Of the step, averaged over stages: computing, exposed communication and copies, waiting for other stages."""
    stages = [report["time"], *(stage["time"] for stage in report.get("later_stages", []))]
    step = report["time"]["predicted_step_us"]
    exposed = sum(stage["exposed_us"] for stage in stages) / len(stages) / step
    bubble = sum(stage["awaited_us"] for stage in stages) / len(stages) / step
    return max(0.0, 1 - exposed - bubble), exposed, bubble


def row(report, cards, arguments, seconds, size):
    chosen = report["mesh_search"]["compiled"][0]
    how = chosen["mesh"] + (f", ZeRO {chosen['zero']}" if "data" in chosen["mesh"] else "")
    if "schedule" in chosen:
        how += f", {chosen['micro_batches']} in {chosen['schedule']}"
    step_us = report["time"]["predicted_step_us"]
    rate = cards * arguments.rows * (arguments.tokens or 1) / step_us * 1e6 / cards
    computing, exposed, bubble = shares(report)
    bound = max((computing, "computing"), (exposed, "communication"), (bubble, "bubble"))[1]
    return (f"| {cards:,} | {how} | {step_us / 1000:.0f} | {rate:,.0f} | {computing:.0%} | {exposed:.0%} | {bubble:.0%} | {bound} | "
            f"{chosen['bytes'] / GIB:.1f} | {report['mesh_search']['considered']:,} | {seconds:.1f} | {size / 1e6:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("model")
    parser.add_argument("--device", default="h100")
    parser.add_argument("--cards", default="8,16,32,64,128,256,512,1024")
    parser.add_argument("--rows", type=int, default=4, help="samples of the batch per card")
    parser.add_argument("--batch", default="batch", help="the model's dimension that is the batch")
    parser.add_argument("--tokens", type=int, default=0, help="of a sample; rates are tokens per second then")
    parser.add_argument("--host", type=int, default=8, help="cards of a host")
    parser.add_argument("--network", type=float, default=40, help="GB/s of each card between hosts")
    arguments, rest = parser.parse_known_args()
    unit = "tokens/s" if arguments.tokens else "samples/s"
    print(f"| cards | mesh | step, ms | {unit} a card | computing | exposed | bubble | bound by | GiB a rank | candidates | processor, s | plan, MB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for cards in map(int, arguments.cards.split(",")):
            report, seconds, size = plan(arguments, rest, cards, pathlib.Path(folder))
            print(row(report, cards, arguments, seconds, size), flush=True)


if __name__ == "__main__":
    main()
