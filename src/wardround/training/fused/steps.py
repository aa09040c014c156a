"""Steps of the optimisers over all weights of a client, whole and split by outcome, as compiled loops."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from wardround.compilation import compiled_loop

__all__ = ["Rules", "adam", "change_gradient", "sgd", "share_out", "split_adam", "split_sgd"]


class Rules(NamedTuple):
    """How clients train."""

    loss: int
    batch_size: int
    epochs: int
    steps: int
    """0: as many as the epochs have."""
    adam: bool
    momentum: Any
    decay: Any
    prox_mu: Any
    lr: Any
    beta1: Any
    beta2: Any
    epsilon: Any


def _change_gradient(
    gradient: Any, weights: Any, start: Any, correction: Any, stealth: float, prox_mu: float
) -> None:
    """(1−λ) g + λ (w − w_start) / ‖w − w_start‖ + μ (w − w_start) + correction; λ is `stealth`."""
    kind = gradient.dtype.type
    pull = 0.0
    if stealth > 0:
        squares = 0.0
        for i in range(len(weights)):
            away = np.float64(weights[i] - start[i])
            squares += away * away
        pull = stealth / math.sqrt(squares) if squares > 0 else 0.0
    keep, back = kind(1 - stealth), kind(pull + prox_mu)
    for i in range(len(weights)):
        gradient[i] = keep * gradient[i] + back * (weights[i] - start[i])
    if len(correction):
        for i in range(len(weights)):
            gradient[i] += correction[i]


def _adam(weights: Any, gradient: Any, first: Any, second: Any, made: Any, step: int, rules: Any) -> None:
    """One step of `torch.optim.Adam`; what is taken from the weights is left in `made`."""
    kind = weights.dtype.type
    rate = kind(rules.lr / (1 - rules.beta1**step))
    root = kind(1 / math.sqrt(1 - rules.beta2**step))
    new1, old2, new2 = kind(1 - rules.beta1), kind(rules.beta2), kind(1 - rules.beta2)
    decay, epsilon = kind(rules.decay), kind(rules.epsilon)
    for i in range(len(weights)):
        slope = gradient[i] + decay * weights[i]
        first[i] += new1 * (slope - first[i])
        second[i] = old2 * second[i] + new2 * slope * slope
        made[i] = rate * first[i] / (np.sqrt(second[i]) * root + epsilon)
        weights[i] -= made[i]


def _sgd(weights: Any, gradient: Any, first: Any, rules: Any) -> None:
    """One step of `torch.optim.SGD`."""
    kind = weights.dtype.type
    momentum, decay, lr = kind(rules.momentum), kind(rules.decay), kind(rules.lr)
    for i in range(len(weights)):
        first[i] = momentum * first[i] + (gradient[i] + decay * weights[i])
        weights[i] -= lr * first[i]


def _share_out(own: Any, weights: Any, start: Any, share: float, rules: Any) -> None:
    """Give an outcome its share of what belongs to no sample: weight decay and FedProx's term."""
    kind = own.dtype.type
    decay, pull = kind(share * rules.decay), kind(share * rules.prox_mu)
    for i in range(len(own)):
        own[i] += decay * weights[i] + pull * (weights[i] - start[i])


def _split_adam(
    gradient: Any, made: Any, own: Any, first: Any, own_first: Any, own_second: Any, parts: Any, rates: Any,
    left: Any, shares: Any, step: int, rules: Any,
) -> None:  # fmt: skip
    """Book Adam's step, just made, to the outcomes; see `outcome_parts`. `rates` and `left` are room to compute in."""
    kind = gradient.dtype.type
    rate = kind(rules.lr / (1 - rules.beta1**step))
    root = kind(1 / math.sqrt(1 - rules.beta2**step))
    new1, old2, new2 = kind(1 - rules.beta1), kind(rules.beta2), kind(1 - rules.beta2)
    epsilon = kind(rules.epsilon)
    if len(own) == 1:  # in one go: most tasks have two outcomes
        mine, own_mean, part, share = own[0], own_first[0], parts[0], kind(shares[0])
        for i in range(len(gradient)):
            rest = gradient[i] - mine[i]
            own_second[i] = old2 * own_second[i] + new2 * (mine[i] * mine[i] + rest * rest)
            divided = rate / (np.sqrt(own_second[i]) * root + epsilon)
            own_mean[i] += new1 * (mine[i] - own_mean[i])
            part[i] += (first[i] * divided - made[i]) * share - divided * own_mean[i]
        return
    for i in range(len(gradient)):
        left[i], rates[i] = gradient[i], kind(0)
    for c in range(len(own)):
        mine = own[c]
        for i in range(len(gradient)):
            left[i] -= mine[i]
            rates[i] += mine[i] * mine[i]
    for i in range(len(gradient)):
        own_second[i] = old2 * own_second[i] + new2 * (rates[i] + left[i] * left[i])
        rates[i] = rate / (np.sqrt(own_second[i]) * root + epsilon)
        left[i] = first[i] * rates[i] - made[i]
    for c in range(len(own)):
        mine, own_mean, part, share = own[c], own_first[c], parts[c], kind(shares[c])
        for i in range(len(gradient)):
            own_mean[i] += new1 * (mine[i] - own_mean[i])
            part[i] += left[i] * share - rates[i] * own_mean[i]


def _split_sgd(own: Any, own_first: Any, parts: Any, rules: Any) -> None:
    """Book SGD's step to the outcomes."""
    kind = own.dtype.type
    momentum, lr = kind(rules.momentum), kind(rules.lr)
    for c in range(len(own)):
        mine, mean, part = own[c], own_first[c], parts[c]
        for i in range(len(mine)):
            mean[i] = momentum * mean[i] + mine[i]
            part[i] -= lr * mean[i]


change_gradient, share_out = compiled_loop(_change_gradient, reorder=True), compiled_loop(_share_out)
adam, sgd = compiled_loop(_adam, reorder=True), compiled_loop(_sgd, reorder=True)
split_adam, split_sgd = compiled_loop(_split_adam, reorder=True), compiled_loop(_split_sgd, reorder=True)
