"""A hospital in a masked round: the update it keeps until it is masked, and what it remembers of the stages.

A round has one order. Its update is masked once, for one sum; the same order asked again, before that, gets fresh keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor

from wardround.flower.hospital.policy import OrderRefused
from wardround.flower.messages import CONFIRM, KEYS, MASK, REVEAL, SHARE_KEYS, SPENT, Note
from wardround.flower.secure_aggregation.client import MaskingClient
from wardround.flower.secure_aggregation.cohort import Cohort, Limits
from wardround.flower.secure_aggregation.identity import Identity
from wardround.privacy.encryption.refusals import Refused, Unsealable

__all__ = ["HospitalMasking"]


class HospitalMasking:
    """What a hospital keeps of the masked round it is in."""

    def __init__(self, name: str, limits: Limits, identity: Identity | None = None) -> None:
        """`identity`: the hospital's registered key, and those of the others where it knows them."""
        self.name, self.limits, self.identity = name, limits, identity
        self.run = ""
        """The run that asked first."""
        self.order = ""
        """The hash of the training order that the update is for."""
        self._update: Tensor | None = None
        self._client: MaskingClient | None = None

    @property
    def is_empty(self) -> bool:
        """Is there nothing to remember?"""
        return not self.order and not self.run

    @property
    def is_spent(self) -> bool:
        """Has the update of this order left the hospital under its masks?"""
        return self._client is not None and self._client.sent_update

    def check_run(self, run: str, allowed: Collection[str] | None) -> None:
        """Raise `OrderRefused` for another run than those allowed; without any, than the first that asked."""
        self.run = self.run or run
        if run not in ((self.run,) if allowed is None else allowed):
            raise OrderRefused(
                f"policy.runs: this hospital masks updates for {', '.join(allowed or [self.run])}, not for {run}"
            )

    def keep(self, order: str, update: Tensor) -> None:
        """Keep the update (D values) that was trained for an order, until it is masked."""
        if order != self.order:
            self.order, self._update, self._client = order, update, None
        elif not self.is_spent:
            self._update = update

    def begin(self, order: str, reports: Note) -> Note:
        """The reply to a training order: the reports, and fresh keys unless the update has been masked already."""
        if order != self.order:
            raise OrderRefused("the update of this round is not kept any more")
        if self.is_spent:
            return Note({SPENT: True}, reports.metrics)
        self._client = MaskingClient(self.name, order, self.limits, self.identity)
        return Note({KEYS: list(asdict(self._client.public_keys()).values())}, reports.metrics)

    def answer(self, note: Note) -> Note:
        """Answer a stage of the round."""
        stages: Mapping[str, Callable[[MaskingClient, Mapping[str, Any]], Note]] = {
            SHARE_KEYS: self._share_keys,
            MASK: self._mask,
            CONFIRM: self._confirm,
            REVEAL: self._reveal,
        }
        head, client = note.head, self._client
        if client is None or head.get("order") != self.order:
            raise OrderRefused("a stage of a round that this hospital has not begun")
        try:
            return stages[head["kind"]](client, head)
        except (Refused, Unsealable) as refusal:
            raise OrderRefused(str(refusal)) from None

    def _share_keys(self, client: MaskingClient, head: Mapping[str, Any]) -> Note:
        return Note(asdict(client.share_keys(Cohort.from_plain(head.get("cohort"), self.order))))

    def _mask(self, client: MaskingClient, head: Mapping[str, Any]) -> Note:
        if self._update is None:
            raise Refused("the update of this round has been masked already")
        masked = client.mask(_words(head.get("shares")), self._update.double().numpy())
        self._update = None
        return Note({}, {}, {"masked": masked.astype("<u8", copy=False).view(np.uint8)})

    def _confirm(self, client: MaskingClient, head: Mapping[str, Any]) -> Note:
        survivors = head.get("survivors")
        if not isinstance(survivors, list) or not all(isinstance(name, str) for name in survivors):
            raise Refused("the order does not say who is left")
        return Note({"tags": client.confirm(survivors)})

    def _reveal(self, client: MaskingClient, head: Mapping[str, Any]) -> Note:
        return Note(asdict(client.reveal(_words(head.get("tags")))))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and strings; secrets of the round included."""
        client = None if self._client is None else self._client.state_dict()
        return {"run": self.run, "order": self.order, "update": self._update, "client": client}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a saved state; from nothing where there is none."""
        self.run, self.order, self._update, self._client = "", "", None, None
        if state is None:
            return
        self.run, self.order, self._update = state["run"], state["order"], state["update"]
        if state["client"] is not None:
            self._client = MaskingClient(self.name, self.order, self.limits, self.identity)
            self._client.load_state_dict(state["client"])


def _words(values: Any) -> dict[str, str]:
    """Words by hospital, as a stranger sent them."""
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise Refused("the order is not one of this stage")
    return values
