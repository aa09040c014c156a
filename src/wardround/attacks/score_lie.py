"""Lying about one's own quality score, to be listened to more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from wardround.attacks.base import Knowledge, KnowledgeLevel, MetricsAttack, Parameters, register
from wardround.attacks.search_space import Range

LOSS, EPSILON = "loss", 1e-6  # FEDMED's quality score is 1/(loss + 1e-6)


@register("score-lie")
class ScoreLie(MetricsAttack):
    r"""Leave the update alone and report a better loss than was measured.

    FEDMED weighs clients by :math:`q = 1/(L + 10^{-6})` of the loss L they report. A single liar reports

    .. math:: \tilde L = L / \mathrm{factor}

    and so multiplies its score. With `collude: true` all liars report the same score, just inside the
    honest range: the `quantile` of the visible clients' honest scores, which no clipping of outliers takes
    away. Only the reported `loss` is touched; where none is reported, there is nothing to lie about.

    FEDMED document, section 5 (dishonest scores).

    >>> import torch
    >>> from wardround import attacks
    >>> lie = attacks.create("score-lie")
    >>> lie.report({"loss": torch.tensor([0.5])}, attacks.Knowledge(round=1))
    {'loss': tensor([0.0500])}
    """

    knowledge_levels = (KnowledgeLevel.OWN, KnowledgeLevel.OMNISCIENT, KnowledgeLevel.COLLUDERS)

    class Params(Parameters):
        factor: Annotated[float, Range(0.01, 1000, log=True)] = Field(10.0, gt=0)
        """What a single liar multiplies its score by."""
        collude: bool = False
        """All liars report one score inside the honest range."""
        quantile: float = Field(0.95, ge=0, le=1)
        """Where in the honest scores the colluders place theirs."""
        knowledge: Literal["omniscient", "colluders"] = Field("omniscient")
        """Whose honest losses colluding liars see; a single liar knows only its own."""

    params: Params

    @property
    def knowledge(self) -> KnowledgeLevel:
        return KnowledgeLevel(self.params.knowledge) if self.params.collude else KnowledgeLevel.OWN

    def report(self, metrics: Mapping[str, Tensor], knowledge: Knowledge) -> dict[str, Tensor]:
        reported = dict(metrics)
        if LOSS not in reported:
            return reported
        measured = reported[LOSS]
        if not self.params.collude:
            reported[LOSS] = measured / self.params.factor
            return reported
        honest = knowledge.metrics.get(LOSS, measured).double()
        scores = 1 / (honest[torch.isfinite(honest)] + EPSILON)
        if len(scores):
            score = float(scores.quantile(self.params.quantile))
            reported[LOSS] = torch.full_like(measured, 1 / score - EPSILON)
        return reported
