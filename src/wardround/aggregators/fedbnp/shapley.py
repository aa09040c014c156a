"""Shapley values of a round's clients: what each adds to the global model, over all orders of joining.

>>> import torch
>>> worth = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
>>> game = Game(3, lambda members: members.double() @ worth)
>>> exact_shapley(game).tolist()
[3.0, 1.0, 0.0]
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from wardround.errors import ParameterError

__all__ = ["Game", "coalition_game", "exact_shapley", "monte_carlo_shapley", "temporary_matrix"]

MOST_EXACT = 16
"""Above so many clients, 2^N coalitions are too many."""
LARGE = 1 << 20
"""Bytes from which memory is asked of the system itself."""


class Game:
    """What every coalition is worth, each asked for once.

    `worth` takes K × N booleans (one coalition per row) and gives K values; coalitions that are not known yet are
    evaluated together. `evaluations` counts them: the cost.
    """

    def __init__(self, players: int, worth: Callable[[Tensor], Tensor]) -> None:
        self.players = players
        self.evaluations = 0
        self._worth = worth
        self._known: dict[bytes, float] = {}

    def unknown(self, coalitions: Tensor) -> int:
        """How many evaluations asking for these would cost."""
        return len({_key(row) for row in coalitions} - self._known.keys())

    def __call__(self, coalitions: Tensor) -> Tensor:
        """Values of K coalitions (K × N booleans), in float64."""
        keys = [_key(row) for row in coalitions]
        new = {key: row for key, row in zip(keys, coalitions, strict=True) if key not in self._known}
        if new:
            values = self._worth(torch.stack([*new.values()])).double().tolist()
            self._known.update(zip(new, values, strict=True))
            self.evaluations += len(new)
        return torch.tensor([self._known[key] for key in keys], dtype=torch.float64)

    @property
    def nobody(self) -> float:
        """v(∅)."""
        return float(self(torch.zeros(1, self.players, dtype=torch.bool)))

    @property
    def everybody(self) -> float:
        """v of all."""
        return float(self(torch.ones(1, self.players, dtype=torch.bool)))


def coalition_game(
    matrix: Tensor,
    global_weights: Tensor,
    value: Callable[[Tensor], Tensor],
    rows: Sequence[int] | None = None,
    at_a_time: int = 16_000_000,
) -> Game:
    """The game of one round: v(S) = value of the global weights plus the mean of S's updates.

    `value` takes K × D weights, which are overwritten once it has answered, and gives K metrics. At most
    `at_a_time` numbers of candidate weights are made at once (but always one candidate).

    >>> updates = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> game = coalition_game(updates, torch.zeros(2), lambda weights: weights[:, 0])
    >>> exact_shapley(game).tolist()
    [0.75, -0.25]
    """
    order = torch.arange(len(matrix)) if rows is None else torch.tensor(list(rows), dtype=torch.long)
    step = max(1, at_a_time // max(1, matrix.shape[1]))

    def worth(coalitions: Tensor) -> Tensor:
        shares = torch.zeros(len(coalitions), len(matrix), dtype=matrix.dtype)
        members = coalitions.to(matrix.dtype)
        shares[:, order] = members / members.sum(1, keepdim=True).clamp(min=1)
        room = temporary_matrix(min(step, len(shares)), matrix)
        values = []
        for some in shares.split(step):
            candidates = torch.mm(some, matrix, out=room[: len(some)]).add_(global_weights)
            values.append(value(candidates).double())
        return torch.cat(values)

    return Game(len(order), worth)


def exact_shapley(game: Game) -> Tensor:
    r"""All :math:`2^N` coalitions:

    .. math:: \phi_k = \sum_{S \subseteq N \setminus \{k\}} \frac{|S|!\,(N-|S|-1)!}{N!}\,[v(S\cup\{k\}) - v(S)]
    """
    n = game.players
    if n > MOST_EXACT:
        raise ParameterError(
            f"exact Shapley values need 2^N evaluations: at most {MOST_EXACT} clients, got {n}; "
            "monte_carlo_shapley does more"
        )
    numbers = torch.arange(2**n)
    members = (numbers[:, None] >> torch.arange(n)) & 1 > 0
    values = game(members)
    sizes = members.sum(1)
    weights = torch.tensor(
        [math.factorial(s) * math.factorial(n - s - 1) / math.factorial(n) for s in range(n)],
        dtype=torch.float64,
    )
    result = torch.zeros(n, dtype=torch.float64)
    for k in range(n):
        without = numbers[~members[:, k]]
        gains = values[without + 2**k] - values[without]
        result[k] = (weights[sizes[without]] * gains).sum()
    return result


def monte_carlo_shapley(
    game: Game,
    generator: torch.Generator,
    permutations: int = 10,
    tolerance: float = 0.0,
    budget: int | None = None,
) -> Tensor:
    r"""The mean gain over M random orders of joining, the orders walked side by side.

    .. math:: \hat\phi_k = \frac1M \sum_{m=1}^M [v(S_m \cup \{k\}) - v(S_m)]

    An order is cut short where the coalition so far is worth as much as all within `tolerance`, and all orders
    are where the next step would cost more than `budget` evaluations in total; what is then left of
    v(all) − v(S) is shared equally by those who have not joined. So the values always sum to v(all) − v(∅).

    Castro, Gómez & Tejada, "Polynomial calculation of the Shapley value based on sampling", Computers &
    Operations Research 36(5), 2009; truncation: Ghorbani & Zou, "Data Shapley", ICML 2019.

    >>> worth = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    >>> game = Game(3, lambda members: members.double() @ worth)
    >>> monte_carlo_shapley(game, torch.Generator().manual_seed(0), permutations=2).tolist()
    [3.0, 1.0, 0.0]
    """
    n = game.players
    orders = torch.stack([torch.randperm(n, generator=generator) for _ in range(permutations)])
    total, before = game.everybody, torch.full((permutations,), game.nobody, dtype=torch.float64)
    coalitions = torch.zeros(permutations, n, dtype=torch.bool)
    gains = torch.zeros(permutations, n, dtype=torch.float64)
    active = torch.arange(permutations)
    if tolerance == 0 and budget is None:  # every order is walked to its end: all coalitions in one batch
        places = orders.argsort(1)
        game(torch.cat([places <= place for place in range(n)]))
    for place in range(n):
        done = (total - before[active]).abs() < tolerance
        joined = coalitions[active].scatter(1, orders[active, place : place + 1], True)
        if budget is not None and game.evaluations + game.unknown(joined[~done]) > budget:
            done[:] = True
        for m in active[done].tolist():
            gains[m, orders[m, place:]] = (total - before[m]) / (n - place)
        active, joined = active[~done], joined[~done]
        if not len(active):
            break
        after = game(joined)
        gains[active, orders[active, place]] = after - before[active]
        before[active], coalitions[active] = after, joined
    return gains.mean(0)


def temporary_matrix(rows: int, like: Tensor) -> Tensor:
    """An uninitialised rows × D matrix whose memory goes back to the system whole when it is done with.

    Memory of the usual kind is kept by the allocator and, with small results in between, in pieces that the next
    candidates do not fit into: over hundreds of coalitions of a large model that adds up.
    """
    columns = like.shape[1]
    if rows * columns * like.element_size() < LARGE:
        return like.new_empty(rows, columns)
    pages = mmap.mmap(-1, rows * columns * like.element_size())
    return torch.frombuffer(pages, dtype=like.dtype).view(rows, columns)


def _key(coalition: Tensor) -> bytes:
    return coalition.numpy().tobytes()
