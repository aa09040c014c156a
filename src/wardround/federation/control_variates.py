r"""SCAFFOLD: control variates that take the drift out of local training.

Clients whose data differ run apart in their local steps. Each client i keeps a control variate :math:`c_i`, the mean
gradient of its last round, and the server keeps :math:`c`, that of all clients. A local step is corrected by both:

.. math:: y \leftarrow y - \eta\,(g_i(y) - c_i + c)

After K steps from x the client has moved by :math:`\Delta_i = y - x`, and (option II of the paper)

.. math:: c_i \leftarrow c_i - c - \frac{\Delta_i}{K\eta}, \qquad
    c \leftarrow c + \frac{|S|}{N}\Bigl(-\frac{\Delta}{K\eta} - c\Bigr)

for the |S| of N clients that took part, with :math:`\Delta` what the rule makes of their updates; for the mean this is
the paper's :math:`c + \frac1N \sum_S (c_i^+ - c_i)`.

A client sends its update and nothing else. Under option II the change of its control variate follows from the update
and from what the server knows, so there is no second message in which an attacker could lie, and what it does to the
server's control variate has to pass the rule like everything else.

Clients that make different numbers of steps K_i (epochs over shares of different sizes) are brought to the same
number, :math:`\Delta_i \bar K / K_i`, and a copy of the rule makes :math:`\Delta` of these rows. Else those with many
samples would count twice.

Where updates are split by outcome, clients send what their patients contributed, without the correction, which belongs
to no patient. The server adds it: :math:`-K\eta\,(c - c_i)`. It knows :math:`c_i`: after a round this is the mean of
the gradients whose parts the client has sent. So there is nothing to lie about but the parts, and parts that the rule
left out change no control variate.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wardround.training.base import TrainingParams, local_steps
from wardround.updates import MOST_SAMPLES, Aggregation, Layout, Updates

__all__ = ["ClientControls", "new_control", "server_control"]


def new_control(own: Tensor | None, control: Tensor, update: Tensor, steps: int, lr: float) -> Tensor | None:
    """A client's control variate after a round (D), by option II.

    Args:
        own: The client's control variate before the round (D); None is zero.
        control: The server's control variate in the round (D).
        update: What the client has moved by (D). One that is not finite changes nothing.
        steps: Local steps that it made.
        lr: Their learning rate.

    >>> new_control(None, torch.tensor([1.0]), torch.tensor([-0.4]), steps=2, lr=0.1)
    tensor([1.])
    """
    gradient = update / (-steps * lr)
    if not bool(torch.isfinite(gradient).all()):
        return own
    return gradient - control if own is None else own + gradient - control


def server_control(
    control: Tensor,
    updates: Updates,
    result: Aggregation,
    training: TrainingParams,
    layout: Layout,
    lr: float,
    clients: int,
    aggregate: Callable[[Updates], Aggregation],
) -> Tensor:
    """The server's control variate after a round (D).

    Args:
        control: What it was in the round (D).
        updates: What clients sent.
        result: What the rule made of them.
        training: How clients train: how many steps each of them made.
        layout: Of the model.
        lr: The learning rate of the round.
        clients: All clients of the run, N.
        aggregate: What a copy of the rule makes of updates that were brought to the same number of steps.
    """
    taken = [row for row, client in enumerate(updates.clients) if client not in result.dropped]
    if result.skipped is not None or not taken:
        return control
    every = _steps_made(updates, training, layout)
    steps = [every[row] for row in taken]
    mean_steps, moved = sum(steps) / len(steps), result.delta
    if len(set(steps)) > 1:
        rows = updates.select(taken)
        factors = torch.tensor([mean_steps / made for made in steps], dtype=rows.dtype)
        same_steps = aggregate(_scaled(rows, factors))
        if same_steps.skipped is not None:
            return control
        moved = same_steps.delta
    share = min(1.0, len(taken) / clients)
    changed = torch.lerp(control, moved.to(control.dtype) / (-mean_steps * lr), share)
    return changed if bool(torch.isfinite(changed).all()) else control


def _steps_made(updates: Updates, training: TrainingParams, layout: Layout) -> list[int]:
    """How many steps each client made, by its sample count."""
    batch_norm = bool(layout.batch_norm_mask.any())
    counts = updates.num_samples.nan_to_num(0.0).clamp(0, MOST_SAMPLES).tolist()
    return [local_steps(training, int(count), batch_norm) for count in counts]


def _scaled(updates: Updates, factors: Tensor) -> Updates:
    """Updates times one factor per client, and their parts."""
    rows, parts = factors[:, None], updates.parts
    if parts is not None:
        parts = replace(
            parts,
            rows=parts.rows * rows[:, None],
            reach=None if parts.reach is None else parts.reach * rows.to(parts.reach),
            correction=None if parts.correction is None else parts.correction * rows,
        )
    return replace(updates, matrix=updates.matrix * rows, parts=parts)


class ClientControls:
    """What the server knows of the clients' control variates, from updates that are split by outcome."""

    def __init__(self, training: TrainingParams, layout: Layout) -> None:
        self.training, self.layout = training, layout
        self.own: dict[str, tuple[Tensor, int]] = {}
        """Client → its control variate (D), and the steps of the round that it comes from."""

    def add_corrections(self, updates: Updates, control: Tensor, lr: float) -> Updates:
        """Add to every client's update what the control variates have made of its steps.

        A client that claims more samples than before claims more steps; its own control variate counts for no more of
        them than it was made of, or a false count would multiply it.

        Args:
            updates: Split by outcome.
            control: The server's control variate in the round (D).
            lr: The learning rate of the round.
        """
        assert updates.parts is not None
        correction = torch.empty_like(updates.matrix)
        made_now = _steps_made(updates, self.training, self.layout)
        for row, (client, steps) in enumerate(zip(updates.clients, made_now, strict=True)):
            torch.mul(control, -steps * lr, out=correction[row])
            if client in self.own:
                own, made = self.own[client]
                correction[row].add_(own, alpha=min(steps, made) * lr)
        parts = replace(updates.parts, correction=correction)
        return replace(updates, matrix=updates.matrix + correction, parts=parts)

    def follow(self, updates: Updates, result: Aggregation, lr: float) -> None:
        """Learn the control variates of all clients whose parts count."""
        assert updates.parts is not None
        if result.skipped is not None:
            return
        left_out = torch.zeros(len(updates), dtype=torch.bool) if result.flags is None else result.flags
        made_now = _steps_made(updates, self.training, self.layout)
        for row, (client, steps) in enumerate(zip(updates.clients, made_now, strict=True)):
            if client not in result.dropped and not bool(left_out[row]):
                self.own[client] = (updates.parts.rows[row].sum(0) / (-steps * lr), steps)

    def state_dict(self) -> dict[str, Any]:
        """All there is."""
        return dict(self.own)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.own = dict(state)
