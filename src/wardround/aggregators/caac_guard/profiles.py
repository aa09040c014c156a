"""What `caac-guard` remembers of each client: only what it accepted, and nothing of full length.

A profile learns from rows that were not flagged, with innovations cut off at what is usual, so that no attack
becomes "normal for this client". Directions are kept as short random projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Past", "Profiles"]

SEEN, LEVEL, LEVEL_SPREAD, HEADING, HEADING_SPREAD, OFFENCES, COMPARED, CONTRADICTION = range(8)
"""Columns of the table of numbers. Level: mean log-norm; heading: mean cosine to the own past direction."""
COLUMNS = (
    "accepted rounds",
    "usual norm",
    "log-norm spread",
    "cosine to own past",
    "cosine spread",
    "recent flags",
    "contradiction rounds",
    "contradicting share",
)
"""The same columns in words, as `Profiles.table` shows them."""
FIRST_SPREAD = 0.15
"""Spread of log-norm and heading that a client starts with."""
KNOWN_AFTER = 3
"""Accepted rounds after which a client is judged by its own past."""
WINDOWS = {"turned": 5, "fallen": 3}
"""Rounds that are remembered of a client's loss of heading, and of the fall of its log-norm."""
MOST_OFFENCES, PROBATION = 6, 3
"""Flagged rounds that are remembered; from how many on a client stays flagged although a round looks honest."""
HEADING_RATE, SPREAD_RATE = 0.3, 0.2
"""Rates at which the mean heading, and both spreads, follow new rounds."""
LEVEL_RATE = 0.05
"""Least weight of a round in the averages of log-norm and past direction, else 1/(accepted rounds)."""
CONTRADICTION_RATE = 0.2
"""Least weight of a round in the share of rounds in which a client contradicts the others."""


@dataclass(frozen=True)
class Past:
    """The profiles of a round's N clients, in the order of the round, as they were before it."""

    rows: Tensor
    """N places of the clients in the tables of `Profiles`."""
    scalars: Tensor
    """N × 8 numbers, in the columns named above."""
    direction: Tensor
    """N × width: mean accepted row, projected."""

    @property
    def known(self) -> Tensor:
        """N booleans: accepted often enough to be judged by its own past."""
        return self.scalars[:, SEEN] >= KNOWN_AFTER

    def headings(self, projected: Tensor) -> Tensor:
        """Compare this round's rows with the clients' own past.

        Args:
            projected: N × width, the projected rows of the round.

        Returns:
            N cosines; 1 where a client has no past, or sent nothing.
        """
        lengths = (self.direction.square().sum(1) * projected.square().sum(1)).sqrt()
        dots = (self.direction * projected).sum(1)
        return torch.where(lengths > 0, dots / lengths.clamp(min=1e-300), 1.0)


class Profiles:
    """Tables with one line per client."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.scalars = torch.empty(0, 8, dtype=torch.float64)
        self.windows = {name: torch.empty(0, rounds, dtype=torch.float64) for name, rounds in WINDOWS.items()}
        self.direction = torch.empty(0, 0, dtype=torch.float64)

    def of(self, clients: Sequence[str], width: int) -> Past:
        """Look up the clients' profiles; a newcomer gets an empty one.

        `width` is the length of a projected row; where it has changed, all past directions are forgotten.
        """
        if self.direction.shape[1] != width:
            self.direction = self.direction.new_zeros(len(self.direction), width)
        newcomers = [client for client in clients if client not in self.index]
        for client in newcomers:
            self.index[client] = len(self.index)
        blank = torch.zeros(len(newcomers), 8, dtype=torch.float64)
        blank[:, [LEVEL_SPREAD, HEADING_SPREAD]] = FIRST_SPREAD
        blank[:, HEADING] = 1.0
        self.scalars = torch.cat([self.scalars, blank])
        for name, window in self.windows.items():
            self.windows[name] = torch.cat([window, window.new_zeros(len(newcomers), window.shape[1])])
        self.direction = torch.cat([self.direction, self.direction.new_zeros(len(newcomers), width)])
        rows = torch.tensor([self.index[client] for client in clients])
        return Past(rows, self.scalars[rows], self.direction[rows])

    def extend_window(self, past: Past, name: str, values: Tensor) -> Tensor:
        """Add a round's N values to one of the windows, and drop its oldest; returns N × rounds."""
        window = torch.cat([self.windows[name][past.rows, 1:], values[:, None]], 1)
        self.windows[name][past.rows] = window
        return window

    def count_offences(self, past: Past, suspicious: Tensor) -> Tensor:
        """Count a round's suspicious clients (N booleans); returns who is on probation (N booleans)."""
        before = past.scalars[:, OFFENCES]
        offences = torch.where(suspicious, before + 1, before - 1).clamp(0, MOST_OFFENCES)
        self.scalars[past.rows, OFFENCES] = offences
        return offences >= PROBATION

    def count_contradictions(self, past: Past, compared: Tensor, contradicts: Tensor) -> Tensor:
        """Take in who contradicted the others in a round.

        Args:
            past: The clients of the round.
            compared: N booleans, who took part in the comparison.
            contradicts: N values, 1 for a client that contradicted the others and 0 else.

        Returns:
            N values: each client's share of such rounds, the recent ones counting more.
        """
        rows = past.rows[compared]
        count = self.scalars[rows, COMPARED] + 1
        share = self.scalars[rows, CONTRADICTION]
        self.scalars[rows, COMPARED] = count
        self.scalars[rows, CONTRADICTION] = share + (1 / count).clamp(min=CONTRADICTION_RATE) * (
            contradicts[compared] - share
        )
        return self.scalars[past.rows, CONTRADICTION]

    def add_offence(self, clients: Sequence[str]) -> None:
        """Count an offence that is not in the rows."""
        rows = [self.index[client] for client in clients]
        self.scalars[rows, OFFENCES] = (self.scalars[rows, OFFENCES] + 1).clamp(max=MOST_OFFENCES)

    def learn(
        self, past: Past, accepted: Tensor, log_norms: Tensor, headings: Tensor, projected: Tensor
    ) -> None:
        """Take in the accepted clients' round: levels by winsorised innovations, the direction by its mean.

        Args:
            past: The clients of the round.
            accepted: N booleans.
            log_norms: N values.
            headings: N cosines of the rows to the clients' own past.
            projected: N × width, the projected rows.
        """
        rows, old = past.rows[accepted], past.scalars[accepted]
        log_norms, headings, projected = log_norms[accepted], headings[accepted], projected[accepted]
        seen = old[:, SEEN]
        first = seen == 0
        rate = torch.where(first, 1.0, (1 / (seen + 1)).clamp(min=LEVEL_RATE))
        level, spread = _moved(log_norms, old[:, LEVEL], old[:, LEVEL_SPREAD], rate)
        self.scalars[rows, LEVEL] = torch.where(first, log_norms, level)
        self.scalars[rows, LEVEL_SPREAD] = torch.where(first, old[:, LEVEL_SPREAD], spread)
        heading, spread = _moved(headings, old[:, HEADING], old[:, HEADING_SPREAD], HEADING_RATE)
        self.scalars[rows, HEADING] = torch.where(first, old[:, HEADING], heading)
        self.scalars[rows, HEADING_SPREAD] = torch.where(first, old[:, HEADING_SPREAD], spread)
        direction = past.direction[accepted]
        self.direction[rows] = direction + rate[:, None] * (projected - direction)
        self.scalars[rows, SEEN] = seen + 1

    def table(self) -> dict[str, dict[str, float]]:
        """Client → column → value, in words of `COLUMNS`; the usual norm is 0 until a round was accepted."""
        values = self.scalars.clone()
        values[:, LEVEL] = torch.where(values[:, SEEN] > 0, values[:, LEVEL].exp(), 0.0)
        return {
            client: dict(zip(COLUMNS, values[row].tolist(), strict=True))
            for client, row in self.index.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and strings."""
        windows = {name: window.clone() for name, window in self.windows.items()}
        tables = {"scalars": self.scalars.clone(), "direction": self.direction.clone()}
        return {"clients": list(self.index), **windows, **tables}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.index = {client: row for row, client in enumerate(state["clients"])}
        self.scalars, self.direction = state["scalars"].clone(), state["direction"].clone()
        self.windows = {name: state[name].clone() for name in WINDOWS}


def _moved(values: Tensor, mean: Tensor, spread: Tensor, rate: Tensor | float) -> tuple[Tensor, Tensor]:
    """Mean and spread after an innovation that counts for three spreads at most."""
    innovation = (values - mean).clamp(-3 * spread, 3 * spread)
    return mean + rate * innovation, torch.sqrt((1 - SPREAD_RATE) * spread**2 + SPREAD_RATE * innovation**2)
