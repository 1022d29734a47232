"""Where the time of a workload of `bench` goes, by operation."""

import time

from torch.profiler import ProfilerActivity, profile

from experiments.bench.peer_programs import Step

LARGEST = 10  # operations that are named
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mkldnn_convolution", "convolution_backward")
COMPILED = ("Pass", "PassBackward")  # whole networks in the library's compiled code
OUTSIDE = "outside operations"


def shares(step: Step, seconds: float) -> dict[str, float]:
    """Shares of the time of steps, of `seconds` and one step at least, largest first; they add up
    to 1. Each operation's time is its own, without the operations that it calls. Products of
    matrices and convolutions are one entry, compiled passes of whole networks another, beside them
    stand the largest others, all the rest together, and the time outside of PyTorch's operations:
    Python, whole updates in compiled code, and the profiler itself, which makes workloads of many
    small operations look worse than they are."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
        began = time.perf_counter()
        while True:
            step()
            whole = time.perf_counter() - began
            if whole >= seconds:
                break
    own: dict[str, float] = {}
    for event in profiler.key_averages():
        space, _, name = event.key.rpartition("::")
        if space:  # others are names of Python's functions and of backward passes
            label = "matrix products" if name in PRODUCTS else name
        elif name in COMPILED:
            label = "compiled passes"
        else:
            continue
        own[label] = own.get(label, 0.0) + 1e-6 * event.self_cpu_time_total / whole
    ordered = sorted(own.items(), key=lambda item: -item[1])
    named = dict(ordered[:LARGEST])
    named["other operations"] = sum(share for _, share in ordered[LARGEST:])
    named[OUTSIDE] = max(0.0, 1.0 - sum(own.values()))
    return named
