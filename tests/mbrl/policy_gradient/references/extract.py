"""Functions of others' files, one by one, and what runs them."""

import ast
import math
import textwrap
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.mbrl.policy_gradient.references.record_verl import Config


@dataclass(frozen=True)
class Case:
    """What a recipe is compared with: a repository at a commit, and its loss of a batch."""

    recipe: str
    source: str
    loss: Callable[[dict[str, Any]], Tensor]
    batch: str = "all"
    given: bool = False  # True: the loss of the advantages `batches.given`, which it has none for
    valued: bool = True  # False: the code's value is not the objective's, its gradient is


class Sources:
    """Checkouts in a folder, and verl's functions."""

    def __init__(self, folder: Path, verl: Any) -> None:
        self.folder, self.verl = folder, verl

    def functions(self, path: str, *names: str, **given: Any) -> SimpleNamespace:
        """The functions and classes `names` of the file owner/name/..., in a scope with torch,
        numpy, verl's helpers and `given`. Decorators and annotations are dropped."""
        scope: dict[str, Any] = {
            "torch": torch,
            "nn": torch.nn,
            "np": np,
            "F": F,
            "math": math,
            "uuid": uuid,
            "defaultdict": defaultdict,
            "verl_F": self.verl.verl_F,
            "print": lambda *_, **__: None,
            **given,
        }
        tree = ast.parse((self.folder / path).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                plain = Bare().visit(node)
                exec(compile(ast.Module([plain], []), path, "exec"), scope)
        return SimpleNamespace(**{name: scope[name] for name in names})

    def run(self, path: str, first: str, last: str, given: dict[str, Any]) -> dict[str, Any]:
        """What the lines of the file owner/name/... from the one that begins with `first` to the
        next that ends with `last` make of `given`: statements in the middle of a function."""
        lines = (self.folder / path).read_text().splitlines()
        begin = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
        end = next(i for i in range(begin, len(lines)) if lines[i].strip().endswith(last))
        scope: dict[str, Any] = {"torch": torch, "np": np, "F": F, "math": math, **given}
        text = textwrap.dedent("\n".join(lines[begin : end + 1]))
        exec(compile(text, path, "exec"), scope)
        return scope

    def clipped(
        self,
        b: dict[str, Any],
        advantage: Tensor,
        low: float = 0.2,
        high: float = 0.2,
        agg: str = "token-mean",
    ) -> Tensor:
        """PPO's loss as verl has it."""
        ranges = {"clip_ratio": low, "clip_ratio_low": low, "clip_ratio_high": high}
        config = Config(clip_ratio_c=1e9, global_batch_info={}, **ranges)
        vanilla = self.verl.get_policy_loss_fn("vanilla")
        loss: Tensor = vanilla(b["old"], b["log_prob"], advantage, b["mask"], agg, config)[0]
        return loss

    def kl(self, b: dict[str, Any], weight: float, agg: str = "token-mean") -> Tensor:
        penalty = self.verl.kl_penalty_forward(b["log_prob"], b["reference"], "k3")
        return weight * self.verl.agg_loss(penalty, b["mask"], agg)


class Bare(ast.NodeTransformer):
    """Without decorators, annotations and defaults that name types."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None or not isinstance(node.target, ast.Name):
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)
