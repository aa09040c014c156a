"""Updates that are split by outcome, for tests of several rules."""

from dataclasses import replace

import torch

from wardround.updates import Parts


def split_by_outcome(updates):
    """The same updates with parts of two outcomes that push against each other, as a rule may ask for them."""
    rows = updates.matrix
    push = torch.linspace(-1, 1, rows.shape[1], dtype=rows.dtype)
    known = torch.nan_to_num(rows)
    length = known.abs().amax(1).clamp(max=1e30) * known.sum(1).sign()  # a reversed row has reversed parts
    parts = rows[:, None] / 2 + torch.stack([-push, push]) * length[:, None, None]
    halves = (updates.num_samples / 2)[:, None].expand(-1, 2)
    return replace(updates, parts=Parts(parts, halves))
