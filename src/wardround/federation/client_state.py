"""What a run keeps per client between rounds, and whether that fits into memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from wardround.aggregators.base import Aggregator
from wardround.errors import ConfigError
from wardround.federation.schedule import Schedule
from wardround.training.base import TrainingParams
from wardround.updates import Layout

__all__ = ["check_client_state", "free_memory", "kept_per_client", "tensor_bytes"]


def kept_per_client(training: TrainingParams, rule: Aggregator, layout: Layout) -> dict[str, int]:
    """Option → bytes that every client that has taken part keeps because of it.

    All else that a simulation has per client is small, whatever the model: its rows, and the profiles of a rule.
    """
    each = torch.tensor([], dtype=torch.get_default_dtype()).element_size()
    kept = {}
    if training.method == "scaffold":
        # Where updates are split, the server follows every client's control variate, too.
        split = training.strata == "outcome" or (rule.client_policy.by_outcome and training.strata != "none")
        kept["training.method scaffold"] = each * layout.size * (2 if split else 1)
    if training.client_momentum:
        kept["training.client_momentum"] = each * layout.size
    if rule.rows_per_client:
        kept[f"aggregator '{rule.name}'"] = each * layout.size * rule.rows_per_client
    if rule.client_policy.local_batch_norm and (own := int(layout.batch_norm_mask.sum())):
        kept["BatchNorm that stays with the clients"] = each * own
    return kept


def check_client_state(
    training: TrainingParams,
    rule: Aggregator,
    layout: Layout,
    schedule: Schedule,
    clients: int,
    free: int | None = None,
) -> None:
    """Refuse a run whose clients would keep more than fits into memory, before its first round.

    Args:
        training: How clients train.
        rule: What it keeps, and asks clients to keep.
        layout: Of the model.
        schedule: How many clients take part, and how often.
        clients: All clients of the run.
        free: Bytes of memory; None: what is free now, and no check where the platform does not tell.
    """
    free = free_memory() if free is None else free
    kept = kept_per_client(training, rule, layout)
    most = min(clients, schedule.rounds * schedule.per_round(clients))
    needed = most * sum(kept.values())
    if free is not None and needed > free:
        raise ConfigError(
            f"{' and '.join(kept)}: {most} clients would keep {_amount(sum(kept.values()))} each, "
            f"{_amount(needed)} together, and {_amount(free)} of memory are free: use fewer clients, a smaller model, "
            "more memory, or another rule or option"
        )


def free_memory() -> int | None:
    """Bytes that a process can take before the machine swaps or kills; None where the platform does not tell."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(AttributeError, OSError, ValueError):  # macOS, Windows
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def tensor_bytes(state: object) -> int:
    """Bytes of all tensors in nested dictionaries and sequences.

    >>> tensor_bytes({"weights": torch.zeros(10), "clients": [{"control": torch.zeros(5)}], "round": 3})
    60
    """
    if isinstance(state, torch.Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(map(tensor_bytes, state.values()))
    if isinstance(state, list | tuple):
        return sum(map(tensor_bytes, state))
    return 0


def _amount(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
