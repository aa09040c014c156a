"""Preferences and sizes in, rows of each client out: every sample is given away exactly once.

A partition is a matrix of preferences (clients × classes: in what proportions a client would like the classes) and a
vector of wanted sizes. The preferences are scaled until rows meet the sizes and columns the class counts (`fit`,
iterative proportional fitting), rounded to whole samples (`whole_counts`), and dealt out (`deal`).
"""

from __future__ import annotations

import numpy as np

from wardround.errors import ConfigError

__all__ = ["deal", "fit", "shares_of", "whole_counts"]


def fit(preferences: np.ndarray, sizes: np.ndarray, counts: np.ndarray, steps: int = 200) -> np.ndarray:
    """Scale rows and columns in turn until rows sum to `sizes` and columns to `counts`, as far as can be."""
    matrix = np.asarray(preferences, dtype=float).copy()
    for _ in range(steps):
        matrix *= (sizes / np.maximum(matrix.sum(1), 1e-300))[:, None]
        matrix *= counts / np.maximum(matrix.sum(0), 1e-300)
    return matrix


def whole_counts(matrix: np.ndarray, allowed: np.ndarray, counts: np.ndarray, min_size: int) -> np.ndarray:
    """Whole numbers close to `matrix` with exact column sums and no row below `min_size`.

    Samples move only to clients that may hold their class, along chains of clients where it takes one: if
    there is a way to honour the minimum, it is found.
    """
    whole = _round_columns(matrix, allowed, counts)
    while True:
        sizes = whole.sum(1)
        poor = int(sizes.argmin())
        if sizes[poor] >= min_size:
            return whole
        chain = _chain_of_gifts(whole, allowed, sizes, poor, min_size)
        if chain is None:
            raise ConfigError(
                f"partition: no way to give every client {min_size} samples of the classes it may hold; "
                "lower partition.min_size or partition.clients"
            )
        spare = sizes[chain[-1][0]] - min_size
        amount = int(min(min_size - sizes[poor], spare, *(whole[giver, label] for giver, label, _ in chain)))
        for giver, label, taker in chain:
            whole[giver, label] -= amount
            whole[taker, label] += amount


def _chain_of_gifts(
    whole: np.ndarray, allowed: np.ndarray, sizes: np.ndarray, poor: int, min_size: int
) -> list[tuple[int, int, int]] | None:
    """(giver, class, taker) from the poor client up to one that can spare a sample; the shortest chain.

    At each step the richest client gives of the class it has most of, among those its taker may hold.
    """
    gift_to: dict[int, tuple[int, int]] = {poor: (-1, -1)}  # client → (taker, class) that it would give
    waiting = [poor]
    for taker in waiting:  # grows while it is walked: breadth first
        givable = np.where(allowed[taker][None, :], whole, 0)
        givers = [g for g in np.argsort(-sizes, kind="stable") if givable[g].any() and g not in gift_to]
        for giver in map(int, givers):
            gift_to[giver] = (taker, int(givable[giver].argmax()))
            waiting.append(giver)
            if sizes[giver] > min_size:
                chain, client = [], giver
                while client != poor:
                    onward, label = gift_to[client]
                    chain.append((client, label, onward))
                    client = onward
                return chain[::-1]
    return None


def shares_of(wanted: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Split other samples of the same classes in the proportions in which `wanted` splits its own."""
    portions = wanted / np.maximum(wanted.sum(0), 1)
    return _round_columns(portions * counts, np.ones_like(portions, dtype=bool), counts)


def deal(
    labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator, start: float = 0.0
) -> tuple[np.ndarray, ...]:
    """Shuffle each class and cut it into the wanted numbers; rows of each client, sorted.

    The cutting starts at the share `start` of each class and goes round in a circle.
    """
    pieces: list[list[np.ndarray]] = [[] for _ in range(len(wanted))]
    for label in range(wanted.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        rows = np.roll(rows, -round(start * len(rows)))
        for client, piece in enumerate(np.split(rows, np.cumsum(wanted[:, label])[:-1])):
            pieces[client].append(piece)
    return tuple(np.sort(np.concatenate(piece)) for piece in pieces)


def _round_columns(matrix: np.ndarray, allowed: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Each entry up or down to a whole number, such that columns sum to `counts` and rows stay close.

    Within a column the largest remainders go up, what a row lost or won in earlier columns included.
    """
    whole = np.zeros(matrix.shape, dtype=int)
    lost = np.zeros(len(matrix))
    for column, total in enumerate(counts):
        if total == 0:
            continue
        may = allowed[:, column]
        values = np.where(may, matrix[:, column], 0.0)
        if values.sum() <= 0:
            values = may.astype(float)
        # Nine digits, so that the last bit of a platform's arithmetic cannot decide a tie.
        values = np.round(values * (total / values.sum()), 9)
        down = np.floor(values)
        urgency = np.where(values > down, np.round(values - down + lost, 9), np.where(may, -1e6, -np.inf))
        up = np.argsort(-urgency, kind="stable")[: int(total - down.sum())]
        whole[:, column] = down
        whole[up, column] += 1
        lost += values - whole[:, column]
    return whole
