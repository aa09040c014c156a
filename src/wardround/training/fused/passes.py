"""Forward and backward pass of a chain of dense layers, as compiled loops.

Weights of a layer lie input by input (inputs × outputs, the bias as a last input whose value is 1), outputs filled up
with zeros to whole registers; all layers end to end. So do gradients and the optimiser's means, and every product of
forward and backward pass is of the one form that `product_tile` has. Only the products with the weights' transpose
need a copy of it. Whatever is filled up stays zero through every step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wardround.compilation import compiled_loop
from wardround.training.fused import product_tile as tiles

__all__ = ["REGISTER_BYTES", "Network", "backward", "forward", "gradient_of", "load", "save"]

REGISTER_BYTES, WIDE, TALL = tiles.REGISTER_BYTES, tiles.WIDE, tiles.TALL
product_tile: Any = tiles.product_tile  # inside compiled code it takes no typing context


class Network(NamedTuple):
    """Where everything lies: one entry per layer. Counts of values, not bytes."""

    samples: int
    """Room for so many in a batch."""
    inputs: Any
    outputs: Any
    terms: Any
    """Inputs, and one for the bias where there is one."""
    columns: Any
    """Outputs, filled up."""
    place: Any
    """First weight; one entry more: all weights."""
    turned: Any
    """First weight of the transposed copy (outputs × inputs, inputs filled up); one entry more: the room they take."""
    turned_row: Any
    """Inputs, filled up."""
    active: Any
    """First value of the layer's input (samples × active_row) in the room of all; one entry more."""
    active_row: Any
    delta: Any
    """First value of the derivative by its outputs (samples × columns); one entry more."""
    relu: Any
    """0 or 1."""
    dropout: Any
    """0 or 1: are its outputs multiplied by masks?"""
    weight: Any
    """First weight in a client's flat vector, output by output."""
    bias: Any
    """First bias there; −1: none."""


def _band(tall: int, wide: int) -> Callable[..., None]:
    """Compile a loop that fills `wide` registers of columns, `tall` rows at a time and what is left one by one."""

    def band(
        a: Any, a_first: int, a_row: int, a_term: int, b: Any, b_first: int, b_term: int,
        c: Any, c_first: int, c_row: int, rows: int, terms: int,
    ) -> None:  # fmt: skip
        p = 0
        while p + tall <= rows:
            at, to = a_first + p * a_row, c_first + p * c_row
            product_tile(a, at, a_row, a_term, b, b_first, b_term, c, to, c_row, terms, tall, wide)
            p += tall
        while p < rows:
            at, to = a_first + p * a_row, c_first + p * c_row
            product_tile(a, at, a_row, a_term, b, b_first, b_term, c, to, c_row, terms, 1, wide)
            p += 1

    return compiled_loop(band)


widest_band, double_band, single_band = _band(TALL // 2, WIDE), _band(TALL, 2), _band(TALL, 1)


def _multiply(
    a: Any, a_first: int, a_row: int, a_term: int, b: Any, b_first: int, b_term: int,
    c: Any, c_first: int, c_row: int, rows: int, columns: int, terms: int,
) -> None:  # fmt: skip
    """c = a · b (rows × columns, whole registers), of `terms` terms each; places as in `product_tile`."""
    lanes = REGISTER_BYTES // a.itemsize
    q = 0
    while q < columns:
        left = (columns - q) // lanes
        b_at, c_at = b_first + q, c_first + q
        if left >= WIDE:
            widest_band(a, a_first, a_row, a_term, b, b_at, b_term, c, c_at, c_row, rows, terms)
            q += WIDE * lanes
        elif left >= 2:
            double_band(a, a_first, a_row, a_term, b, b_at, b_term, c, c_at, c_row, rows, terms)
            q += 2 * lanes
        else:
            single_band(a, a_first, a_row, a_term, b, b_at, b_term, c, c_at, c_row, rows, terms)
            q += lanes


def _load(net: Any, vector: Any, weights: Any) -> None:
    """A client's flat vector as weights in the order of the loops."""
    for layer in range(len(net.inputs)):
        inputs, outputs, columns = net.inputs[layer], net.outputs[layer], net.columns[layer]
        for o in range(outputs):
            source = vector[net.weight[layer] + o * inputs :]
            place = net.place[layer] + o
            for i in range(inputs):
                weights[place + i * columns] = source[i]
            if net.bias[layer] >= 0:
                weights[place + inputs * columns] = vector[net.bias[layer] + o]


def _save(net: Any, weights: Any, origin: Any, vector: Any) -> None:
    """Weights minus `origin`, both in the order of the loops, as a flat vector."""
    for layer in range(len(net.inputs)):
        inputs, outputs, columns = net.inputs[layer], net.outputs[layer], net.columns[layer]
        for o in range(outputs):
            target = vector[net.weight[layer] + o * inputs :]
            place = net.place[layer] + o
            for i in range(inputs):
                target[i] = weights[place + i * columns] - origin[place + i * columns]
            if net.bias[layer] >= 0:
                last = place + inputs * columns
                vector[net.bias[layer] + o] = weights[last] - origin[last]


def _forward(net: Any, weights: Any, active: Any, delta: Any, n: int, masks: Any, order: Any) -> None:
    """From the input of the first layer, in `active`, to the logits, which are written over their derivative."""
    last = len(net.inputs) - 1
    zero, one = active.dtype.type(0), active.dtype.type(1)
    mask = 0
    for layer in range(last + 1):
        into, first, row = delta, net.delta[layer], net.columns[layer]
        if layer < last:
            into, first, row = active, net.active[layer + 1], net.active_row[layer + 1]
        multiply(
            active, net.active[layer], net.active_row[layer], 1, weights, net.place[layer], net.columns[layer],
            into, first, row, n, net.columns[layer], net.terms[layer],
        )  # fmt: skip
        if layer == last:
            return
        outputs = net.outputs[layer]
        for s in range(n):
            values = active[first + s * row : first + s * row + outputs]
            if net.relu[layer]:
                for o in range(outputs):
                    values[o] = zero if values[o] <= zero else values[o]
            if net.dropout[layer]:
                own = masks[mask + order[s] * outputs : mask + (order[s] + 1) * outputs]
                for o in range(outputs):
                    values[o] *= own[o]
            active[first + s * row + outputs] = one
        if net.dropout[layer]:
            mask += n * outputs


def _backward(
    net: Any, weights: Any, turned: Any, active: Any, delta: Any, n: int, masks: Any, order: Any
) -> None:
    """From the derivative by the logits to that by the outputs of every layer, all in `delta`."""
    zero = active.dtype.type(0)
    mask = 0
    for layer in range(len(net.inputs) - 1):
        mask += net.dropout[layer] * n * net.outputs[layer]
    for layer in range(len(net.inputs) - 1, 0, -1):
        inputs, columns, row = net.inputs[layer], net.columns[layer], net.turned_row[layer]
        source, target = weights[net.place[layer] :], turned[net.turned[layer] :]
        for o in range(net.outputs[layer]):
            for i in range(inputs):
                target[o * row + i] = source[i * columns + o]
        multiply(
            delta, net.delta[layer], columns, 1, turned, net.turned[layer], row,
            delta, net.delta[layer - 1], row, n, row, net.outputs[layer],
        )  # fmt: skip
        mask -= net.dropout[layer - 1] * n * inputs
        for s in range(n):
            slopes = delta[net.delta[layer - 1] + s * row : net.delta[layer - 1] + s * row + inputs]
            values = active[net.active[layer] + s * net.active_row[layer] :]
            if net.dropout[layer - 1]:
                own = masks[mask + order[s] * inputs : mask + (order[s] + 1) * inputs]
                for i in range(inputs):
                    slopes[i] *= own[i]
            if net.relu[layer - 1]:
                for i in range(inputs):
                    slopes[i] = zero if values[i] <= zero else slopes[i]


def _gradient_of(net: Any, active: Any, delta: Any, first: int, count: int, out: Any) -> None:
    """The gradient by all weights of `count` samples of the batch from `first` on."""
    for layer in range(len(net.inputs)):
        row, columns = net.active_row[layer], net.columns[layer]
        multiply(
            active, net.active[layer] + first * row, 1, row, delta, net.delta[layer] + first * columns, columns,
            out, net.place[layer], columns, net.terms[layer], columns, count,
        )  # fmt: skip


multiply = compiled_loop(_multiply)
load, save = compiled_loop(_load), compiled_loop(_save)
forward, backward, gradient_of = (
    compiled_loop(_forward),
    compiled_loop(_backward),
    compiled_loop(_gradient_of),
)
