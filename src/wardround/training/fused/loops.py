"""All steps of a client, from its batches to its update, in one compiled loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wardround.compilation import compiled_loop
from wardround.training.fused.losses import COX, SIGMOID, SOFTMAX, slopes_of_classes, slopes_of_times
from wardround.training.fused.passes import (
    REGISTER_BYTES,
    Network,
    backward,
    forward,
    gradient_of,
    load,
    save,
)
from wardround.training.fused.steps import Rules, adam, change_gradient, sgd, share_out, split_adam, split_sgd

__all__ = ["COX", "REGISTER_BYTES", "SIGMOID", "SOFTMAX", "Data", "Network", "Rules", "train_clients"]


class Data(NamedTuple):
    """The samples of the clients, client by client."""

    table: Any
    """Rows of model input and a last column of ones."""
    rows: Any
    """Sample → row of the table. Empty: the table has a row for every slot, in the order of training."""
    targets: Any
    """samples × outputs."""
    outcomes: Any
    """Sample → outcome; empty where updates are not split."""
    shares: Any
    """clients × outcomes: their shares of a client's samples."""
    order: Any
    """Slot → sample. A slot is a sample's turn in an epoch; those of a client lie end to end."""
    sizes: Any
    """Client → its samples."""
    masks: Any
    """Masks of all slots, step by step and in it layer by layer (samples × outputs); empty without dropout."""
    first_slot: Any
    """Client → its first slot."""
    first_mask: Any
    """Client → its first value in `masks`."""


def _sort_batch(turns: Any, picked: Any, order: Any, outcomes: Any, ends: Any) -> None:
    """Bring the samples `turns` of a batch together by outcome: into `picked`; `order` has their places in the batch,
    `ends` where each outcome ends."""
    found = 0
    for c in range(len(ends)):
        for s in range(len(order)):
            if outcomes[turns[s]] == c:
                order[found] = s
                found += 1
        ends[c] = found
    for s in range(len(order)):
        picked[s] = turns[order[s]]


def _train_clients(  # noqa: C901 - one loop: the compiler sees here that the arrays do not overlap
    clients: Any, net: Any, data: Any, rules: Any, starts: Any, start_of: Any, corrections: Any, stealth: Any,
    out: Any, losses: Any, parts_out: Any,
) -> None:  # fmt: skip
    """Train these clients one after the other.

    Args:
        clients: Which.
        net: The network.
        data: The clients' samples.
        rules: How they train.
        starts: Flat vectors to start at.
        start_of: Client → its start.
        corrections: clients × D: what is added to gradients; no rows: nothing is.
        stealth: Client → λ.
        out: clients × D: their updates.
        losses: clients: the mean loss of each over its samples and epochs.
        parts_out: clients × outcomes × D: the parts of updates; no clients where they are not split.
    """
    size, batch_size = net.place[-1], rules.batch_size
    weights, start = np.zeros(size, dtype=starts.dtype), np.zeros(size, dtype=starts.dtype)
    gradient, made = np.zeros_like(start), np.zeros_like(start)
    first, second = np.zeros_like(start), np.zeros_like(start)
    correction = np.zeros(size if len(corrections) else 0, dtype=starts.dtype)
    turned = np.zeros(net.turned[-1], dtype=starts.dtype)
    active, delta = np.zeros(net.active[-1], dtype=starts.dtype), np.zeros(net.delta[-1], dtype=starts.dtype)
    split = parts_out.shape[1] if len(parts_out) else 1
    room = size if split > 1 else 0
    own = np.zeros((split - 1, room), dtype=starts.dtype)
    own_first, parts, own_second = np.zeros_like(own), np.zeros_like(own), np.zeros(room, dtype=starts.dtype)
    rates, left = np.zeros_like(own_second), np.zeros_like(own_second)
    picked, order, ends = np.empty(net.samples, np.int64), np.arange(net.samples), np.empty(split, np.int64)
    features, last = data.table.shape[1], len(net.inputs) - 1
    begun_at = -1
    for client in clients:
        if start_of[client] != begun_at:
            begun_at = start_of[client]
            load(net, starts[begun_at], start)
        for i in range(size):
            weights[i] = start[i]
            first[i] = second[i] = 0
        for i in range(room):
            own_second[i] = 0
            for c in range(split - 1):
                own_first[c, i] = parts[c, i] = 0
        if len(corrections):
            load(net, corrections[client], correction)
        plain = rules.prox_mu == 0 and stealth[client] == 0 and not len(corrections)
        samples = data.sizes[client]
        per_epoch = (samples + batch_size - 1) // batch_size
        steps = rules.steps if rules.steps else per_epoch * rules.epochs
        slot, mask, total, seen = data.first_slot[client], data.first_mask[client], 0.0, 0
        for step in range(steps):
            n = min(batch_size, samples - step % per_epoch * batch_size)
            for s in range(n):
                picked[s] = data.order[slot + s]
            if split > 1:
                sort_batch(data.order[slot : slot + n], picked, order[:n], data.outcomes, ends)
            for s in range(n):
                row = data.rows[picked[s]] if len(data.rows) else slot + order[s]
                source, place = data.table[row], net.active[0] + s * net.active_row[0]
                target = active[place : place + features]
                for i in range(features):
                    target[i] = source[i]
            forward(net, weights, active, delta, n, data.masks[mask:], order)
            logits, columns = delta[net.delta[last] :], net.columns[last]
            if rules.loss == COX:
                total += slopes_of_times(data.targets, picked, logits, columns, n)
            else:
                total += slopes_of_classes(rules.loss, data.targets, picked, logits, columns, n)
            backward(net, weights, turned, active, delta, n, data.masks[mask:], order)
            before_last = 0
            if split > 1:
                before_last = ends[split - 2]
            gradient_of(net, active, delta, before_last, n - before_last, gradient)
            for c in range(split - 1):
                mine, before = own[c], 0
                if c:
                    before = ends[c - 1]
                gradient_of(net, active, delta, before, ends[c] - before, mine)
                for i in range(size):
                    gradient[i] += mine[i]
                if rules.decay or rules.prox_mu:
                    share_out(mine, weights, start, (ends[c] - before) / n, rules)
            if not plain:
                change_gradient(gradient, weights, start, correction, stealth[client], rules.prox_mu)
            if rules.adam:
                adam(weights, gradient, first, second, made, step + 1, rules)
                if split > 1:
                    split_adam(
                        gradient, made, own, first, own_first, own_second, parts, rates, left, data.shares[client],
                        step + 1, rules,
                    )  # fmt: skip
            else:
                sgd(weights, gradient, first, rules)
                if split > 1:
                    split_sgd(own, own_first, parts, rules)
            for layer in range(last):
                mask += net.dropout[layer] * n * net.outputs[layer]
            slot += n
            seen += n
        losses[client] = total / seen
        save(net, weights, start, out[client])
        if split > 1:
            rest = parts_out[client, split - 1]
            for i in range(len(rest)):
                rest[i] = out[client, i]
            for i in range(size):
                second[i] = 0  # nothing to take away from parts
            for c in range(split - 1):
                part = parts_out[client, c]
                save(net, parts[c], second, part)
                for i in range(len(rest)):
                    rest[i] -= part[i]


sort_batch, train_clients = compiled_loop(_sort_batch), compiled_loop(_train_clients)
