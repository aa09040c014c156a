"""Losses and their derivatives by the logits, as compiled loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wardround.compilation import compiled_loop

__all__ = ["COX", "SIGMOID", "SOFTMAX", "slopes_of_classes", "slopes_of_times"]

SIGMOID, SOFTMAX, COX = 0, 1, 2


def _slopes_of_classes(loss: int, targets: Any, picked: Any, delta: Any, columns: int, n: int) -> float:
    """Logits in `delta` (n × columns) become the derivative of the batch's mean loss. Returns its summed loss."""
    outputs, one = targets.shape[1], delta.dtype.type(1)
    total = 0.0
    for s in range(n):
        logits, wanted = delta[s * columns : s * columns + outputs], targets[picked[s]]
        if loss == SOFTMAX:
            most = logits[0]
            for o in range(outputs):
                most = max(most, logits[o])
            summed = logits.dtype.type(0)
            for o in range(outputs):
                if wanted[o] > 0:
                    total -= logits[o] - most
                logits[o] = math.exp(logits[o] - most)
                summed += logits[o]
            total += math.log(summed)
            for o in range(outputs):
                logits[o] = (logits[o] / summed - wanted[o]) / n
        else:
            for o in range(outputs):
                z = logits[o]
                e = math.exp(-abs(z))
                total += (max(z, logits.dtype.type(0)) - z * wanted[o] + math.log1p(e)) / outputs
                slope = (e if z < 0 else one) / (one + e)
                logits[o] = (slope - wanted[o]) / (n * outputs)
    return total


def _add_logs(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    low, high = min(a, b), max(a, b)
    return high if low == -np.inf else high + math.log1p(math.exp(low - high))


def _sort_places(values: Any, order: Any) -> None:
    """Bring `order`, places of values, into rising order of the values (Shell, 1959, with gaps of 3ᵏ − 1 halves)."""
    gap = 1
    while gap < len(order) // 3:
        gap = 3 * gap + 1
    while gap:
        for i in range(gap, len(order)):
            place, j = order[i], i
            while j >= gap and values[order[j - gap]] > values[place]:
                order[j] = order[j - gap]
                j -= gap
            order[j] = place
        gap //= 3


def _slopes_of_times(targets: Any, picked: Any, delta: Any, columns: int, n: int) -> float:
    """As `_slopes_of_classes`, for the partial likelihood of Cox and targets of signed ranks; see `survival`."""
    times, scores = np.empty(n), np.empty(n)
    for s in range(n):
        times[s] = -abs(targets[picked[s], 0])
        scores[s] = delta[s * columns]
    order = np.arange(n)
    sort_places(times, order)
    at_risk, total, running = np.empty(n), 0.0, -np.inf
    first = 0
    while first < n:  # those of one time, from the latest on
        last = first
        while last < n and times[order[last]] == times[order[first]]:
            running = add_logs(running, scores[order[last]])
            last += 1
        for s in order[first:last]:
            at_risk[s] = running
        first = last
    running = -np.inf
    last = n - 1
    while last >= 0:  # and from the earliest on
        first = last
        while first >= 0 and times[order[first]] == times[order[last]]:
            s = order[first]
            if targets[picked[s], 0] > 0:
                total += at_risk[s] - scores[s]
                running = add_logs(running, -at_risk[s])
            first -= 1
        for s in order[first + 1 : last + 1]:
            happened = 1.0 if targets[picked[s], 0] > 0 else 0.0
            delta[s * columns] = (math.exp(scores[s] + running) - happened) / n
        last = first
    return total


slopes_of_classes, slopes_of_times = compiled_loop(_slopes_of_classes), compiled_loop(_slopes_of_times)
add_logs, sort_places = compiled_loop(_add_logs), compiled_loop(_sort_places)
