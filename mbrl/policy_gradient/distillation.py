"""Divergences between the distributions of a policy and of its teacher at every step.

The gradient of `reverse_kl` at a policy is minus that of the mean of (log pi_teacher - log pi) over
its own samples, log pi held: the sampled form, an advantage of every step, has the same expected
gradient ("On-Policy Distillation of Language Models", arXiv 2306.13649, without its sampled mixes).
"""

from torch import Tensor

from mbrl.shapes import check_shapes


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """[...]: KL(p || q) of finite log-probs [..., V], p the policy, q its teacher. Raises
    `ValueError` for shapes that differ."""
    check_shapes(log_p=(log_p, "... V"), log_q=(log_q, "... V"))
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """[...]: KL(q || p), q the teacher's; as `reverse_kl`."""
    return reverse_kl(log_q, log_p)
