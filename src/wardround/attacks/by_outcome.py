"""Attackers where updates are split by outcome: they craft the part of every outcome as they would craft an update."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from wardround.attacks.base import OutcomePart
from wardround.attacks.campaign import Campaign
from wardround.randomness import seed_for
from wardround.updates import Parts

__all__ = ["OutcomeCampaigns"]


class OutcomeCampaigns:
    """The same attackers once per outcome, with a memory and draws of their own for each."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.of_outcome: list[Campaign] = []

    def strike(
        self,
        parts: Parts,
        strike: Callable[[Campaign, Tensor, int], tuple[Tensor, Mapping[str, Tensor]]],
    ) -> tuple[Parts, Mapping[str, Tensor]]:
        """The parts as they are sent, and what is reported with them.

        Who sends a part of an outcome that it has no patient of, claims as many of them as the median holder has, and
        as many fewer of the outcome it has most of: counts that do not add up would give it away.

        Args:
            parts: Honest parts of N clients.
            strike: (campaign, N × D honest parts of an outcome, the outcome) → those as they are sent, and reports.
        """
        outcomes = parts.rows.shape[1]
        if len(self.of_outcome) != outcomes:
            self.of_outcome = [self._copy(outcome) for outcome in range(outcomes)]
        rows, counts = parts.rows.clone(), parts.counts.clone()
        reports: Mapping[str, Tensor] = {}
        rarest = int(parts.counts.nansum(0).argmin())
        for outcome, campaign in enumerate(self.of_outcome):
            campaign.outcome = OutcomePart(outcome, outcomes, outcome == rarest)
            rows[:, outcome], reports = strike(campaign, parts.rows[:, outcome], outcome)
            held = counts[:, outcome] > 0
            claimed = (~held & rows[:, outcome].any(1)).nonzero().flatten()
            most, of = counts[claimed].nan_to_num(0.0).max(1)
            usual = float(counts[held, outcome].median()) if bool(held.any()) else 1.0
            claims = (most - 1).clamp(1.0, usual)
            counts[claimed, of] -= claims
            counts[claimed, outcome] = claims
        return Parts(rows, counts), reports

    def _copy(self, outcome: int) -> Campaign:
        campaign = copy.deepcopy(self.campaign)
        campaign.seed = seed_for(self.campaign.seed, "outcome", outcome)
        return campaign

    def state_dict(self) -> dict[str, Any]:
        """What the attackers remember of each outcome."""
        return {"of_outcome": [campaign.state_dict() for campaign in self.of_outcome]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.of_outcome = [self._copy(outcome) for outcome in range(len(state["of_outcome"]))]
        for campaign, own in zip(self.of_outcome, state["of_outcome"], strict=True):
            campaign.load_state_dict(own)
