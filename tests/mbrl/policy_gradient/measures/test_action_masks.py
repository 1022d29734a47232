"""The top-p mask against a loop, and what a masked policy's log-probs are."""

import torch

from mbrl.policy_gradient.measures.action_masks import masked_log_probs, top_p


def test_the_mask_is_the_likeliest_until_the_share_is_reached() -> None:
    logits = 2 * torch.randn(50, 9, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    for share, least in ((0.9, 1), (0.5, 1), (0.1, 3), (1.0, 1)):
        found = top_p(logits, share, least)
        for row, kept in zip(logits, found, strict=True):
            order = sorted(range(9), key=lambda a, row=row: -float(row[a]))
            chosen, total = [], 0.0
            for a in order:
                if total <= share or len(chosen) < least:
                    chosen.append(a)
                total += float(row.softmax(0)[a])
            assert {a for a in range(9) if kept[a]} == set(chosen)


def test_masked_policies_are_renormalised_and_have_finite_gradients() -> None:
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    allowed = torch.tensor([[True, True, False, False, True, False]] * 3 + [[False] * 6])
    found = masked_log_probs(logits, allowed)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(4))
    assert found[:3][~allowed[:3]].isinf().all()
    torch.testing.assert_close(found[3], logits[3].log_softmax(0))
    found[allowed].sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
