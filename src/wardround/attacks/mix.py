"""Mixture: different Byzantine clients do different things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from wardround.attacks.base import Attack, Knowledge, KnowledgeLevel, Parameters, register, registry
from wardround.attacks.campaign import Campaign
from wardround.attacks.search_space import Choice, Draw, Range, within
from wardround.errors import ParameterError

DOS_MIX = ({"name": "noise", "share": 0.5}, {"name": "label-flip", "share": 0.5})


@register("mix")
class Mix(Attack):
    """Deal the Byzantine clients out to several attacks, by share.

    Each part is `{name, share, …the attack's own parameters}`; the shares sum to 1. Of B clients a part
    gets share·B, rounded by the method of largest remainders, in the order in which the clients were drawn
    (or listed by hand). Each part has its own knowledge, state, data and metrics: a `Campaign` gives each
    only what that part may know. The default is the DOS paper's Mix: half noise, half label-flipping.

    Alkhunaizi et al., MICCAI 2022, section 4.3 (Mix, Noise and Scaled).

    >>> import torch
    >>> from wardround import attacks
    >>> mix = attacks.create("mix", parts=[{"name": "sign-flip", "share": 0.5, "scale": 1},
    ...                                    {"name": "scaling", "share": 0.5, "factor": 100}])
    >>> mix.craft(torch.ones(2, 2), attacks.Knowledge(round=1))
    tensor([[ -1.,  -1.],
            [100., 100.]])
    """

    class Params(Parameters):
        parts: tuple[dict[str, Any], ...] = Field(DOS_MIX, min_length=1)
        """Attacks and their shares of the Byzantine clients, which sum to 1."""

        @field_validator("parts")
        @classmethod
        def _every_part_is_an_attack(cls, parts: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
            complete = tuple(_complete(i, part) for i, part in enumerate(parts))
            total = sum(part["share"] for part in complete)
            if abs(total - 1) > 1e-6:
                raise ValueError(f"the shares must sum to 1, got {total:g}")
            return complete

        def non_default(self) -> dict[str, Any]:
            """Of each part, too, only what differs from its attack's defaults."""
            values = super().non_default()
            if "parts" in values:
                values["parts"] = [
                    {"name": part["name"], "share": part["share"], **_own_parameters(part).non_default()}
                    for part in self.parts
                ]
            return values

    params: Params

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        self.shares = [part["share"] for part in self.params.parts]
        self.parts = [
            registry.create(part["name"], **{k: v for k, v in part.items() if k not in ("name", "share")})
            for part in self.params.parts
        ]
        self.poisons_data = any(part.poisons_data for part in self.parts)
        self.observes = any(part.observes for part in self.parts)
        self.knows_defence = any(part.knows_defence for part in self.parts)

    @classmethod
    def search(cls, draw: Draw) -> dict[str, Any]:
        """Two attacks, each with parameters of its own, and how the clients are shared out between them."""
        names = Choice(tuple(name for name in registry.available() if name not in ("mix", "none")))
        share = draw("share", Range(0.2, 0.8), DOS_MIX[0]["share"])
        parts = []
        for place, usual, part in zip(
            ("first", "second"), DOS_MIX, (share, round(1 - share, 6)), strict=True
        ):
            name = draw(place, names, usual["name"])
            parts.append(
                {"name": name, "share": part, **registry.get(name).search(within(draw, f"{place}.{name}"))}
            )
        return {"parts": parts}

    @property
    def knowledge(self) -> KnowledgeLevel:
        """The most that any part is given."""
        order = list(KnowledgeLevel)
        return max((part.knowledge for part in self.parts), key=order.index)

    @property
    def backdoors(self) -> tuple[Any, ...]:
        return tuple(backdoor for part in self.parts for backdoor in part.backdoors)

    def assign(self, clients: Sequence[str]) -> list[tuple[Attack, tuple[str, ...]]]:
        ends = np.cumsum(apportion(self.shares, len(clients))).tolist()
        starts = [0, *ends[:-1]]
        return [(part, tuple(clients[a:b])) for part, a, b in zip(self.parts, starts, ends, strict=True)]

    def craft(self, own: Tensor, knowledge: Knowledge) -> Tensor:
        """Outside a campaign: the rows are dealt out in their order, under the same limits of knowledge."""
        names = [knowledge.client(i) for i in range(len(own))]
        if knowledge.own_rows is not None and knowledge.honest is not None:
            matrix = knowledge.honest
            clients = [f"visible-{j}" for j in range(len(matrix))]
            for name, row in zip(names, knowledge.own_rows, strict=True):
                clients[row] = name
        else:
            others = knowledge.others(own)
            matrix = torch.cat([own, others])
            clients = names + [f"visible-{j}" for j in range(len(others))]
        campaign = Campaign(self, names, start=min(knowledge.start, knowledge.round), seed=knowledge.seed)
        sent, _ = campaign.strike(
            matrix,
            clients,
            {},
            knowledge.round,
            knowledge.global_weights,
            knowledge.previous_global_weights,
            knowledge.total_clients if knowledge.total_clients is not None else len(matrix),
            knowledge.defence,
        )
        return sent[[clients.index(name) for name in names]]

    def report(self, metrics: Mapping[str, Tensor], knowledge: Knowledge) -> dict[str, Tensor]:
        """Outside a campaign: each part's lies for the rows that fall to it."""
        reported = {name: values.clone() for name, values in metrics.items()}
        count = len(next(iter(reported.values()), ()))
        names = [knowledge.client(i) for i in range(count)]
        for part, members in self.assign(names):
            rows = [names.index(member) for member in members]
            for group in [[row] for row in rows] if part.knowledge is KnowledgeLevel.OWN else [rows]:
                measured = {name: values[group] for name, values in metrics.items()}
                seen = replace(knowledge, clients=tuple(names[row] for row in group))
                if part.knowledge is KnowledgeLevel.OWN:
                    seen = replace(seen, honest=None, own_rows=None, visible=(), metrics=measured)
                for name, values in part.report(measured, seen).items():
                    reported[name][group] = values.to(reported[name].dtype)
        return reported

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers that sum to `total`, by largest remainders; of equal remainders the first wins.

    >>> apportion([0.5, 0.25, 0.25], 4), apportion([0.5, 0.5], 3)
    ([2, 1, 1], [2, 1])
    """
    exact = [share * total for share in shares]
    counts = [int(value + 1e-9) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _complete(place: int, part: Mapping[str, Any]) -> dict[str, Any]:
    """A part with its defaults filled in, or an error that says which part is wrong and how."""
    where = f"attack 'mix': parts.{place}"
    name, share = part.get("name"), part.get("share")
    if not isinstance(name, str) or name == "mix":
        raise ParameterError(f"{where}: 'name' must be the name of an attack other than mix, got {name!r}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ParameterError(f"{where}: 'share' must be above 0 and at most 1, got {share!r}")
    try:
        validated = _own_parameters(part)
    except ParameterError as error:
        raise ParameterError(f"{where}: {error}") from None
    return {"name": name, "share": float(share), **validated.model_dump(mode="json")}


def _own_parameters(part: Mapping[str, Any]) -> Parameters:
    own = {key: value for key, value in part.items() if key not in ("name", "share")}
    return registry.validate(part["name"], own)
