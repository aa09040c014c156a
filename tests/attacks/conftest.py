"""What the tests of attacks share: a federation of honest updates, and knowledge of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from wardround.attacks import Knowledge


@pytest.fixture
def honest() -> Tensor:
    """Ten clients that agree in a direction and differ in the rest."""
    generator = torch.Generator().manual_seed(7)
    common = torch.randn(57, generator=generator, dtype=torch.float64)
    return common + torch.randn(10, 57, generator=generator, dtype=torch.float64)


@pytest.fixture
def knowledge(honest: Tensor) -> Callable[..., Knowledge]:
    """All that any attack may know of a round; the first rows of `honest` are the attackers'."""

    def build(byzantine: int = 3, **changes: Any) -> Knowledge:
        generator = torch.Generator().manual_seed(8)
        weights = torch.randn(honest.shape[1], generator=generator, dtype=honest.dtype)
        fields: dict[str, Any] = {
            "round": 3,
            "global_weights": weights,
            "previous_global_weights": weights - honest.mean(0),
            "honest": honest,
            "clients": tuple(f"c{i}" for i in range(byzantine)),
            "visible": tuple(f"c{i}" for i in range(len(honest))),
            "own_rows": tuple(range(byzantine)),
            "total_clients": len(honest),
            "seed": 5,
        }
        return Knowledge(**{**fields, **changes})

    return build


@pytest.fixture
def world() -> Callable[..., Iterator[Tensor]]:
    """Rounds of honest updates: a slowly turning common direction of norm 1, lasting differences between
    clients (`different`) and noise."""

    def rounds(
        seed: int,
        count: int,
        different: float,
        noise: float,
        clients: int = 20,
        d: int = 1000,
        turn: float = 0.3,
    ) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def unit(*shape: int) -> Tensor:
            return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)

        common, own = unit(d), different * unit(clients, d)
        own *= torch.exp(0.3 * torch.randn(clients, 1, generator=generator))
        for _ in range(count):
            common = torch.nn.functional.normalize(common + turn * unit(d), dim=0)
            yield common + own + noise * unit(clients, d)

    return rounds
