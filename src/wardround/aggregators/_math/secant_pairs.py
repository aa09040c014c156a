"""How a vector changes with another, estimated from past changes of both: limited-memory BFGS."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from wardround.aggregators._math.kernels import dots_with_two, norm, row_dots, weighted_sum

__all__ = ["SecantPairs"]


class SecantPairs:
    r"""The last `window` pairs of a move s and the change y that went with it, and their BFGS matrix Ĥ.

    .. math:: \hat H v = \sigma v - [\sigma S\; Y] \begin{bmatrix} \sigma S^\top S & L \\ L^\top & -D \end{bmatrix}^{-1}
        \begin{bmatrix} \sigma S^\top v \\ Y^\top v \end{bmatrix}, \qquad \sigma = \frac{y^\top s}{s^\top s}

    with D the diagonal of SᵀY, L its part below the diagonal, σ from the last pair. All products of the vectors are
    kept, so that a round reads them twice: for the products with v and with the last change, and to sum up.

    Byrd, Nocedal, Schnabel, "Representations of quasi-Newton matrices and their use in limited memory methods", 1994.

    >>> pairs = SecantPairs(window=2)
    >>> pairs.append(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0]))
    >>> pairs.estimate(torch.tensor([2.0, 0.0]))
    tensor([6., 0.])
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.count = 0
        """Pairs ever appended; the next goes to place count mod window, and that of a full window is overwritten."""
        self._vectors: Tensor | None = None
        """(2·window + 1) × D: s of place p in line p, y in line window + p; in the last line the v of an estimate."""
        self._products = torch.zeros(2 * window, 2 * window, dtype=torch.float64)
        """2·window × 2·window inner products, but for those of the last change where it is pending."""
        self._pending = False
        self._seen: tuple[Tensor, Tensor] | None = None
        """The last v whose change was estimated, and its products with all vectors and itself."""

    def append(self, move: Tensor, change: Tensor) -> None:
        """Add a pair of D values each; the oldest goes where there are too many."""
        if self._vectors is None:
            self._vectors = move.new_zeros(2 * self.window + 1, len(move))
        self._settle(self._vectors)
        place = self.count % self.window
        seen = (
            self._seen[1]
            if self._seen and self._seen[0] is move
            else self._products_with(self._vectors, move)
        )
        for line, vector in ((place, move), (self.window + place, change)):
            self._vectors[line].copy_(vector)
        self._fill(place, seen)
        self._products[place, place] = seen[-1]
        self._pending, self._seen = True, None
        self.count += 1

    def _fill(self, line: int, products: Tensor) -> None:
        self._products[line] = self._products[:, line] = products[:-1]

    def _settle(self, vectors: Tensor) -> None:
        if self._pending:
            self._fill(self._last_change, row_dots(vectors, vectors[self._last_change]))
        self._pending = False

    @property
    def _last_change(self) -> int:
        return self.window + (self.count - 1) % self.window

    def _products_with(self, vectors: Tensor, move: Tensor) -> Tensor:
        """2·window + 1 products of a vector, the last with itself; those of the last change come with them."""
        vectors[-1].copy_(move)
        if self._pending:
            products, own = dots_with_two(vectors, move, vectors[self._last_change])
            self._fill(self._last_change, own)
            self._pending = False
        else:
            products = row_dots(vectors, move)
        self._seen = move, products
        return products

    def estimate(self, move: Tensor) -> Tensor | None:
        """Estimate the change that goes with a move v of D values: Ĥv.

        Returns:
            D values; None without pairs, or where they tell nothing (the model stood still, or a value is not finite).
        """
        vectors, m = self._vectors, min(self.count, self.window)
        if vectors is None:
            return None
        first = self.count % self.window if self.count > self.window else 0
        order = (torch.arange(m) + first) % self.window  # oldest first
        lines = torch.cat([order, self.window + order])
        seen = self._products_with(vectors, move)[lines]
        products = self._products[lines][:, lines]
        ss, sy = products[:m, :m], products[:m, m:]
        if not bool(products.isfinite().all() and seen.isfinite().all()) or not float(ss[-1, -1]) > 0:
            return None
        sigma = float(sy[-1, -1] / ss[-1, -1])
        lower = sy.tril(-1)
        middle = torch.cat(
            [torch.cat([sigma * ss, lower], 1), torch.cat([lower.T, -sy.diagonal().diag()], 1)]
        )
        right = torch.cat([sigma * seen[:m], seen[m:]])
        if not bool(middle.isfinite().all() and right.isfinite().all()):
            return None
        solved = torch.linalg.pinv(middle, hermitian=True) @ right
        factors = torch.zeros(2 * self.window + 1, dtype=torch.float64)
        factors[lines] = torch.cat([-sigma * solved[:m], -solved[m:]])
        factors[-1] = sigma
        change = weighted_sum(vectors, factors, in_float64=True)
        return change if math.isfinite(norm(change)) else None

    def state_dict(self) -> dict[str, Any]:
        """The pairs and what is known of them."""
        kept, vectors = min(self.count, self.window), self._vectors
        rows = [] if vectors is None else [vectors[i].clone() for i in range(2 * self.window)]
        return {
            "moves": rows[:kept],
            "changes": rows[self.window : self.window + kept],
            "appended": self.count,
            "products": self._products.clone(),
            "pending": self._pending,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        moves, changes = list(state["moves"]), list(state["changes"])
        self.__init__(self.window)  # type: ignore[misc]
        for move, change in zip(moves, changes, strict=True):
            self.append(move, change)
        if "products" in state:  # else from a version that kept the pairs in their order, and nothing more
            self.count, self._products = state["appended"], state["products"].clone()
            self._pending = state["pending"]
