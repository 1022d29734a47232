"""The verb `collect`: record the local datasets anew from behaviour policies."""

import torch
import tyro

from experiments.recording.collect import Collect, collect


def main(arguments: list[str]) -> int:
    command = tyro.cli(Collect, args=arguments, prog="python -m experiments collect")
    torch.set_num_threads(1)  # sums in one order, so that files can be reproduced
    collect(command)
    return 0
