"""The protocol's three hypotheses about CAAC-FL, each taken apart into claims that the runs can answer.

A claim compares CAAC-FL with one other method on one number, paired by seed. It is *supported* when Wilcoxon's
signed-rank test says so after Holm's correction within its hypothesis, *contradicted* when every seed says the
opposite and the paired t-test is significant after Holm, and *undecided* else. A hypothesis is supported when
all its claims are, not supported when one is contradicted, undecided else.

Two things the protocol leaves open: a rule that suppresses more than half of the honest clients (Krum keeps one)
misses nobody and detects nothing, so it takes no part in comparisons of FNR and latency; and detection that
misses more than half of the attackers, or takes more than ten rounds, is none, whatever the others do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from wardround.analysis.measures import MEASURES, Measured
from wardround.analysis.runs import CLEAN
from wardround.analysis.statistics import LEVEL, Paired, adjusted, paired

__all__ = ["Claim", "Verdict", "judge"]

OURS = "caac"
EQUAL = 0.01  # "equal or better" means: not worse by more than this
NOT_ROBUST = {"fedavg", "mean", "fedprox", "fedbn"}
SLOW = "slow-drift"
DETECTION = {"low_fnr", "low_latency"}
INDISCRIMINATE = 0.5  # honest clients suppressed, above which a rule does not detect
HALF, SOON = 0.5, 10.0  # what detection must do at least: miss no more than this share, take no more rounds
SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"


@dataclass(frozen=True)
class Claim:
    """CAAC-FL beats (or equals, within `margin`) one other method on one number."""

    measure: str
    setting: str
    attack: str
    other: str
    margin: float
    ours: float
    theirs: float
    test: Paired
    """Of CAAC-FL's advantage (positive is good for it) plus the margin, against 0."""
    holm_p: float = 1.0
    bonferroni_p: float = 1.0
    holm_t_p: float | None = None
    outcome: str = UNDECIDED

    @property
    def words(self) -> str:
        told = MEASURES[self.measure]
        relation = "not worse" if self.margin else "better"
        return f"{told.heading} {relation} than {self.other}, {self.attack}, {self.setting}"


@dataclass(frozen=True)
class Verdict:
    """What the runs say of one hypothesis."""

    key: str
    statement: str
    verdict: str
    """supported, not supported or undecided."""
    reason: str
    claims: tuple[Claim, ...]
    missing: tuple[str, ...] = ()
    """Parts of the hypothesis on which no run says anything."""


STATEMENTS = {
    "H1": "Heterogeneity preservation: under high heterogeneity and no attack, CAAC-FL is as good as or better than "
    "the robust methods and suppresses fewer honest clients.",
    "H2": "Multi-dimensional robustness: under attack CAAC-FL loses less and misses fewer malicious clients than "
    "the other methods.",
    "H3": "Temporal discrimination: CAAC-FL detects abrupt attacks faster and raises fewer false alarms under "
    "benign drift.",
}


def judge(measured: Sequence[Measured]) -> list[Verdict]:
    """A verdict on H1, H2 and H3; empty where CAAC-FL is not among the runs."""
    names = {m.run.method for m in measured if m.run.config["aggregator"]["name"] == OURS}
    if not names:
        return []
    ours = OURS if OURS in names else min(names)
    hard = [m for m in measured if _is_hardest(m, measured)]
    clean = [m for m in hard if m.run.attack == CLEAN and not m.run.drifting]
    attacked = [m for m in hard if m.run.attack != CLEAN]
    abrupt = [m for m in attacked if m.run.config["attack"]["name"] != SLOW]
    drifting = [m for m in measured if m.run.drifting]
    h1 = [
        *_claims(clean, ours, "auroc", EQUAL, _is_robust),
        *_claims(clean, ours, "auprc", EQUAL, _is_robust),
        *_claims(clean, ours, "low_fpr", 0.0, _is_robust),
    ]
    h2 = [
        *_claims(abrupt, ours, "delta_auroc"),
        *_claims(abrupt, ours, "low_fnr"),
        *_least(abrupt, ours, "flag_fnr", HALF, "one half"),
    ]
    h3 = [
        *_claims(abrupt, ours, "low_latency", against=_is_another_method),
        *_least(abrupt, ours, "flag_latency", SOON, "ten rounds"),
        *_claims([m for m in attacked if m not in abrupt], ours, "low_fnr", against=_is_another_method),
        *_claims(drifting, ours, "drift_fpr", against=_is_another_method),
    ]
    no_drift = ("no run has benign drift (preset caac-drift has)",)
    return [
        _verdict("H1", h1, () if h1 else ("no clean runs of CAAC-FL beside a robust method",)),
        _verdict("H2", h2, () if h2 else ("no attacked runs of CAAC-FL beside another method",)),
        _verdict(
            "H3",
            h3,
            (*(() if any(c.measure == "low_latency" for c in h3) else ("no abrupt attack",)),
             *(() if drifting else no_drift)),
        ),
    ]  # fmt: skip


def _is_robust(m: Measured) -> bool:
    """One of the existing robust methods: neither a plain mean nor a part of CAAC-FL itself."""
    return m.run.config["aggregator"]["name"] not in NOT_ROBUST and _is_another_method(m)


def _is_another_method(m: Measured) -> bool:
    """Not a part of CAAC-FL itself; H2 alone asks about single dimensions."""
    return not m.run.config["aggregator"]["name"].startswith(OURS)


def _is_hardest(m: Measured, among: Sequence[Measured]) -> bool:
    """The most heterogeneous split of its dataset: the smallest α."""
    alphas = [_alpha(other) for other in among if other.run.config["dataset"] == m.run.config["dataset"]]
    return _alpha(m) == min(alphas)


def _alpha(m: Measured) -> float:
    alpha = m.run.config["partition"].get("alpha")
    return float("inf") if alpha is None else float(alpha)


def _claims(
    measured: Iterable[Measured],
    ours: str,
    measure: str,
    margin: float = 0.0,
    against: Callable[[Measured], bool] = lambda m: True,
) -> list[Claim]:
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for m in measured:
        blind = measure in DETECTION and (m["low_fpr"] or 0.0) > INDISCRIMINATE
        value = _value(m, measure)
        if value is not None and (m.run.method == ours or (against(m) and not blind)):
            values[m.run.setting, m.run.attack][m.run.method][m.run.seed] = value
    sign = 1 if MEASURES[measure].higher_is_better else -1
    claims = []
    for (setting, attack), methods in sorted(values.items()):
        for other in sorted(methods.keys() - {ours}):
            seeds = sorted(methods.get(ours, {}).keys() & methods[other].keys())
            mine, theirs = ([methods[name][seed] for seed in seeds] for name in (ours, other))
            advantage = [sign * (a - b) + margin for a, b in zip(mine, theirs, strict=True)]
            if (test := paired(advantage, [0.0] * len(advantage))) is not None:
                claims.append(
                    Claim(measure, setting, attack, other, margin, fmean(mine), fmean(theirs), test)
                )
    return claims


def _least(measured: Iterable[Measured], ours: str, measure: str, bound: float, name: str) -> list[Claim]:
    """Claims that CAAC-FL stays below a bound that a detector must keep."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for m in measured:
        if m.run.method == ours and (value := _value(m, measure)) is not None:
            values[m.run.setting, m.run.attack].append(value)
    claims = []
    for (setting, attack), found in sorted(values.items()):
        if (test := paired([bound - value for value in found], [0.0] * len(found))) is not None:
            claims.append(Claim(measure, setting, attack, name, 0.0, fmean(found), bound, test))
    return claims


def _value(m: Measured, measure: str) -> float | None:
    """The measure; a client never found counts as found after the end, the least that its latency can be."""
    kind, _, name = measure.partition("_")
    if name == "latency" and m[measure] is None and m[f"{kind}_tpr"] is not None:
        return m.run.config["rounds"] - (m.run.onset or 1) + 1
    return m[measure]


def _verdict(key: str, claims: list[Claim], missing: tuple[str, ...]) -> Verdict:
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
    return Verdict(
        key, STATEMENTS[key], verdict, _reason(corrected, counts, missing), tuple(corrected), missing
    )


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
            parts.append(f"clearest against it: {worst.words} ({worst.ours:.3f} against {worst.theirs:.3f})")
    return "; ".join(parts)
