"""GDRO for diffusion: a group of stored samples is ranked by reward, and nothing is sampled: "GDRO:
Group-level Reward Post-training Suitable for Diffusion Models". No code was published; the loss is
reconstructed from the abstract as the cross-entropy of which Diffusion-DPO (arXiv 2311.12908) is
the case of two samples and hard labels."""

from torch import Tensor


def group_loss(error: Tensor, reference: Tensor, reward: Tensor, beta: float, tau: float) -> Tensor:
    """-sum_i softmax(R / (tau s))_i log softmax(-beta (e - e_ref))_i, the mean over groups, from
    the denoising errors [P, G] of stored samples under the network and under the reference (means
    over entries; a group has one level and one noise) and rewards [P, G], whose deviation in the
    group is s. Groups of equal rewards ask for nothing and are left out."""
    wanted = weights(reward, tau)
    implied = (-beta * (error - reference)).log_softmax(1)
    differ = (reward != reward[:, :1]).any(1).to(error)
    return -((wanted * implied).sum(1) * differ).sum() / differ.sum().clamp_min(1.0)


def weighted_error(error: Tensor, reward: Tensor, tau: float) -> Tensor:
    """Denoising errors [P, G] weighted by softmax(R / (tau s)) in their group: the fit to what is
    good, a peer of `group_loss`."""
    return (weights(reward, tau) * error).sum(1).mean()


def weights(reward: Tensor, tau: float) -> Tensor:
    """softmax(R / (tau s)) of rewards [P, G] in their group, whose deviation is s."""
    below = reward - reward.amax(1, keepdim=True)  # large rewards over a small s have no digits
    return (below / (tau * below.std(1, keepdim=True).clamp_min(1e-12))).softmax(1)
