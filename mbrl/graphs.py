"""Whole updates as CUDA graphs: what a GPU is asked for is recorded once and asked for again by one
call, which saves the hundreds of launches that small networks wait for."""

from typing import Any

import torch

from mbrl.agent import Agent
from mbrl.errors import ConfigError
from mbrl.training import Metrics

WARMUP = 4  # updates on a stream of their own before the capture, as CUDA graphs ask for


class GraphedUpdates:
    """Batch, random draws and update of `agent` in one replay each; on another device than a CUDA
    GPU it updates as ever.

    Updates that differ in turn (TD3's delayed policy) are a graph each. What a replay reads stays
    where it is: the data must not grow (no online learning) and rates must be constant. Metrics
    are those of the newest replay, in the same tensors every time. `close` gives the memory of the
    graphs back; checkpoints may be written at any time. Raises `ConfigError` for a rate that
    decays.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        learner = agent.learner
        if getattr(learner, "offline", False) and getattr(learner.config, "decay_steps", 0):
            raise ConfigError(
                f"the learning rate of {type(agent).__name__} decays over "
                f"{learner.config.decay_steps} updates, which a graph cannot follow; set "
                "decay_steps to 0"
            )
        self.agent = agent
        self.period: int = getattr(learner.config, "policy_every", 1)
        self._graphs: list[tuple[torch.cuda.CUDAGraph, Metrics]] = []
        if agent.device.type == "cuda":
            self._capture_all()

    def __call__(self) -> Metrics:
        """The next update; counts it as `agent.update` does."""
        agent = self.agent
        if not self._graphs:
            return agent.update(agent.next_batch())
        graph, metrics = self._graphs[agent.updates % self.period]
        graph.replay()
        agent.updates += 1
        return metrics

    def close(self) -> None:
        self._graphs.clear()

    def _capture_all(self) -> None:
        agent = self.agent
        stream = torch.cuda.Stream(agent.device)
        stream.wait_stream(torch.cuda.current_stream(agent.device))
        with torch.cuda.stream(stream):
            for _ in range(-(-WARMUP // self.period) * self.period):
                agent.update(agent.next_batch())
        torch.cuda.current_stream(agent.device).wait_stream(stream)
        groups = [group for o in agent.optimisers.values() for group in o.param_groups]
        for group in groups:
            group["capturable"] = True
        try:
            first = agent.updates
            for place in range(self.period):
                agent.updates = first + place
                self._graphs.append(self._capture())
            agent.updates = first  # a capture records and does nothing
            # In the order in which they are asked for.
            turn = first % self.period
            self._graphs = self._graphs[-turn:] + self._graphs[:-turn] if turn else self._graphs
        finally:
            for group in groups:
                group["capturable"] = False  # a checkpoint of it is for any device

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, Metrics]:
        agent, graph = self.agent, torch.cuda.CUDAGraph()
        graph.register_generator_state(agent.generator)
        with torch.cuda.graph(graph):
            metrics = agent.update(agent.next_batch())
        return graph, metrics
