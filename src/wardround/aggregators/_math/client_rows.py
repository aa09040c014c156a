"""One row of D values per client, kept from round to round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["ClientRows"]


class ClientRows:
    """The rows of all clients ever seen; those of the last round's clients lie in one matrix, to be worked on there.

    >>> rows = ClientRows()
    >>> matrix, known = rows.matrix_of(["a", "b"], like=torch.ones(2, 3))
    >>> _ = matrix.add_(1), rows.matrix_of(["b", "c"], like=torch.ones(2, 3))[0].add_(1)
    >>> {client: row.tolist() for client, row in rows.copies().items()}
    {'a': [1.0, 1.0, 1.0], 'b': [2.0, 2.0, 2.0], 'c': [1.0, 1.0, 1.0]}
    """

    def __init__(self, rows: Mapping[str, Tensor] | None = None) -> None:
        self._rows = {client: row.clone() for client, row in (rows or {}).items()}
        self._matrix: Tensor | None = None
        self._clients: tuple[str, ...] = ()

    def matrix_of(self, clients: Sequence[str], like: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of some clients, to be changed in place.

        Args:
            clients: N names.
            like: N × D values, whose shape and precision rows must have to be known.

        Returns:
            N × D rows, zero for a client that is not known, and N booleans: who is.
        """
        names = tuple(clients)
        matrix = self._matrix
        if matrix is not None and names == self._clients and _same_kind(matrix, like):
            return matrix, torch.ones(len(names), dtype=torch.bool)
        known = torch.tensor(
            [client in self._rows and _same_kind(self._rows[client], like[0]) for client in names]
        )
        matrix = torch.zeros_like(like, memory_format=torch.contiguous_format)
        for place in known.nonzero().flatten().tolist():
            matrix[place] = self._rows[names[place]]
        for client in set(self._clients) - set(names):
            self._rows[client] = self._rows[client].clone()  # a view would keep all of the old matrix
        self._rows |= dict(zip(names, matrix, strict=True))
        self._matrix, self._clients = matrix, names
        return matrix, known

    def copies(self) -> dict[str, Tensor]:
        """Copies of all rows."""
        return {client: row.clone() for client, row in self._rows.items()}


def _same_kind(some: Tensor, other: Tensor) -> bool:
    return (some.shape, some.dtype, some.device) == (other.shape, other.dtype, other.device)
