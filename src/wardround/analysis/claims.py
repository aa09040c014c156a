"""Claims about one method, tested against the others, and the verdict on a hypothesis that they add up to.

A claim compares one method with one other on one number, paired by seed. It is *supported* when Wilcoxon's
signed-rank test says so after Holm's correction within its hypothesis, *contradicted* when every seed says the
opposite and the paired t-test is significant after Holm, and *undecided* otherwise. A hypothesis is supported when
all its claims are, not supported when one is contradicted, and undecided otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wardround.analysis.measures import MEASURES
from wardround.analysis.rendering import Cell, Table, number
from wardround.analysis.statistics import LEVEL, Paired, adjusted

__all__ = ["Claim", "Verdict", "claims_table", "decide"]

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"


@dataclass(frozen=True)
class Claim:
    """A method beats (or equals, within `margin`) one other method on one number."""

    measure: str
    setting: str
    attack: str
    other: str
    margin: float
    ours: float
    theirs: float
    test: Paired
    """Of the method's advantage (positive is good for it) plus the margin, against 0."""
    holm_p: float = 1.0
    bonferroni_p: float = 1.0
    holm_t_p: float | None = None
    outcome: str = UNDECIDED

    @property
    def description(self) -> str:
        """The claim in words."""
        relation = "not worse" if self.margin else "better"
        return f"{MEASURES[self.measure].heading} {relation} than {self.other}, {self.attack}, {self.setting}"


@dataclass(frozen=True)
class Verdict:
    """What the runs say about one hypothesis."""

    key: str
    statement: str
    verdict: str
    """supported, not supported or undecided."""
    reason: str
    claims: tuple[Claim, ...]
    missing: tuple[str, ...] = ()
    """Parts of the hypothesis that no run can answer."""


def decide(key: str, statement: str, claims: Sequence[Claim], missing: tuple[str, ...] = ()) -> Verdict:
    """Correct the claims of one hypothesis as one family of tests and decide on it."""
    wilcoxon = [claim.test.wilcoxon_p for claim in claims]
    # Differences that are the same in all seeds have no variance to test against: nothing is surer.
    student = [1.0 if c.test.n < 2 else 0.0 if c.test.t_p is None and c.test.difference else c.test.t_p or 1.0
               for c in claims]  # fmt: skip
    corrected = [
        replace(claim, holm_p=holm, bonferroni_p=bonferroni, holm_t_p=t, outcome=_outcome(claim, holm, t))
        for claim, holm, bonferroni, t in zip(
            claims, adjusted(wilcoxon), adjusted(wilcoxon, "bonferroni"), adjusted(student), strict=True
        )
    ]
    counts = Counter(claim.outcome for claim in corrected)
    if counts[CONTRADICTED]:
        verdict = "not supported"
    elif corrected and counts[SUPPORTED] == len(corrected) and not missing:
        verdict = "supported"
    else:
        verdict = "undecided"
    return Verdict(key, statement, verdict, _reason(corrected, counts, missing), tuple(corrected), missing)


def claims_table(verdict: Verdict, method: str, notes: Sequence[str]) -> Table:
    """A verdict claim by claim; `method` is the name of the method that the claims are about."""
    rows: list[list[Cell]] = []
    for claim in verdict.claims:
        test = claim.test
        rows.append(
            [claim.setting, claim.attack, f"{MEASURES[claim.measure].heading} {'≥' if claim.margin else 'better than'} "
             f"{claim.other}", number(claim.ours), number(claim.theirs), f"{test.above}/{test.below}", test.p_in_words,
             number(claim.holm_p, 4) if test.can_decide else None,
             None if claim.holm_t_p is None else f"{claim.holm_t_p:.3g}", claim.outcome]
        )  # fmt: skip
    return Table(
        f"claims-{verdict.key.lower()}",
        f"{verdict.key}, claim by claim: {verdict.verdict}",
        ["setting", "attack", "claim", method, "other", "seeds for/against", "Wilcoxon p", "Holm", "t p, Holm",
         "outcome"],
        rows,
        tuple(notes),
        words=3,
    )  # fmt: skip


def _outcome(claim: Claim, holm_p: float, holm_t_p: float) -> str:
    test = claim.test
    if test.difference > 0 and holm_p <= LEVEL:
        return SUPPORTED
    if test.below == test.n and holm_t_p <= LEVEL:
        return CONTRADICTED
    return UNDECIDED


def _reason(claims: Sequence[Claim], counts: Counter[str], missing: tuple[str, ...]) -> str:
    parts = list(missing)
    if claims:
        right = sum(claim.test.above == claim.test.n for claim in claims)
        wrong = sum(claim.test.below == claim.test.n for claim in claims)
        parts.append(
            f"of {len(claims)} claims {counts[SUPPORTED]} supported, {counts[CONTRADICTED]} contradicted, "
            f"{counts[UNDECIDED]} undecided; all seeds agree with {right} and go against {wrong}"
        )
        smallest = min(claim.test.smallest_p for claim in claims)
        if smallest > LEVEL:
            seeds = max(claim.test.n for claim in claims)
            parts.append(
                f"{seeds} seeds: smallest possible p is {smallest:.4g}, so no claim can be supported"
            )
        elif smallest * len(claims) > LEVEL:
            parts.append(
                f"after Holm's correction the smallest possible p is {min(1.0, smallest * len(claims)):.4g}, "
                "so not all claims can be supported"
            )
        worst = min(
            (claim for claim in claims if claim.outcome == CONTRADICTED),
            key=lambda claim: claim.test.cohens_d if claim.test.cohens_d is not None else float("-inf"),
            default=None,
        )
        if worst is not None:
            parts.append(
                f"clearest against it: {worst.description} ({worst.ours:.3f} against {worst.theirs:.3f})"
            )
    return "; ".join(parts)
