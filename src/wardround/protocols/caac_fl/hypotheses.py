"""The CAAC-FL protocol's three hypotheses, each taken apart into claims that runs can answer.

How a claim is tested and how a verdict follows from its claims: `wardround.analysis.claims`.

Two things the protocol leaves open: a rule that suppresses more than half of the honest clients (Krum keeps one)
misses nobody and detects nothing, so it takes no part in comparisons of FNR and latency; and detection that
misses more than half of the attackers, or takes more than ten rounds, is none, whatever the others do.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from statistics import fmean

from wardround import aggregators, attacks
from wardround.analysis.claims import Claim, Verdict, claims_table, decide
from wardround.analysis.measures import MEASURES, Measured
from wardround.analysis.papers import Section
from wardround.analysis.runs import CLEAN
from wardround.analysis.statistics import paired
from wardround.yaml_text import parse_own_yaml

__all__ = ["RULE", "decide_hypotheses", "preset_names", "section"]

RULE = "caac"
EQUAL = 0.01  # "equal or better" means: not worse by more than this
DETECTION = {"low_fnr", "low_latency"}
INDISCRIMINATE = 0.5  # honest clients suppressed, above which a rule does not detect
HALF, SOON = 0.5, 10.0  # what detection must do at least: miss no more than this share, take no more rounds
NOTE = (
    "≥ allows for a difference of 0.01. Suppressed: by weights below a tenth of 1/N, which all rules have; "
    "flagged: by CAAC-FL's own verdict. A latency that never ended counts as if it ended after the last "
    "round. Rules that suppress more than half of the honest clients take no part in FNR and latency."
)
STATEMENTS = {
    "H1": "Heterogeneity preservation: under high heterogeneity and no attack, CAAC-FL is as good as or better than "
    "the robust methods and suppresses fewer honest clients.",
    "H2": "Multi-dimensional robustness: under attack CAAC-FL loses less and misses fewer malicious clients than "
    "the other methods.",
    "H3": "Temporal discrimination: CAAC-FL detects abrupt attacks faster and raises fewer false alarms under "
    "benign drift.",
}


@cache
def preset_names() -> frozenset[str]:
    """The names that runs of the CAAC-FL presets have."""
    presets = resources.files(__package__).joinpath("presets").iterdir()
    return frozenset(
        parse_own_yaml(preset.read_text(encoding="utf-8"))["name"]
        for preset in presets
        if preset.name.endswith(".yaml")
    )


def section(measured: Sequence[Measured]) -> Section | None:
    """The verdicts with their claims; None where no run of the CAAC-FL presets is among the runs.

    The hypotheses are about the protocol's own runs: whoever tries `caac` on other data did not ask about them.
    """
    verdicts = decide_hypotheses([m for m in measured if m.run.config["name"] in preset_names()])
    if not verdicts:
        return None
    tables = [claims_table(verdict, "CAAC-FL", [NOTE]) for verdict in verdicts if verdict.claims]
    return Section("The hypotheses about CAAC-FL", tuple(verdicts), details=tuple(tables))


def decide_hypotheses(measured: Sequence[Measured]) -> list[Verdict]:
    """A verdict on H1, H2 and H3; empty where CAAC-FL is not among the runs."""
    names = {m.run.method for m in measured if m.run.config["aggregator"]["name"] == RULE}
    if not names:
        return []
    ours = RULE if RULE in names else min(names)
    hard = _hardest(measured)
    clean = [m for m in hard if m.run.attack == CLEAN and not m.run.drifting]
    attacked = [m for m in hard if m.run.attack != CLEAN]
    abrupt = [m for m in attacked if not _is_gradual(m)]
    drifting = [m for m in measured if m.run.drifting]
    h1 = [
        *_claims(clean, ours, "auroc", EQUAL, _is_robust),
        *_claims(clean, ours, "auprc", EQUAL, _is_robust),
        *_claims(clean, ours, "low_fpr", 0.0, _is_robust),
    ]
    h2 = [
        *_claims(abrupt, ours, "delta_auroc"),
        *_claims(abrupt, ours, "low_fnr"),
        *_below(abrupt, ours, "flag_fnr", HALF, "one half"),
    ]
    h3 = [
        *_claims(abrupt, ours, "low_latency", against=_is_another_method),
        *_below(abrupt, ours, "flag_latency", SOON, "ten rounds"),
        *_claims([m for m in attacked if m not in abrupt], ours, "low_fnr", against=_is_another_method),
        *_claims(drifting, ours, "drift_fpr", against=_is_another_method),
    ]
    no_drift = ("no run has benign drift (preset caac-drift has)",)
    return [
        decide("H1", STATEMENTS["H1"], h1, () if h1 else ("no clean runs of CAAC-FL beside a robust method",)),
        decide("H2", STATEMENTS["H2"], h2, () if h2 else ("no attacked runs of CAAC-FL beside another method",)),
        decide(
            "H3",
            STATEMENTS["H3"],
            h3,
            (*(() if any(c.measure == "low_latency" for c in h3) else ("no abrupt attack",)),
             *(() if drifting else no_drift)),
        ),
    ]  # fmt: skip


def _is_robust(m: Measured) -> bool:
    """One of the existing robust methods: neither a plain mean nor a part of CAAC-FL itself."""
    name = m.run.config["aggregator"]["name"]
    # A rule of a plug-in that is not loaded counts as what rules are unless they say otherwise.
    declared = name not in aggregators.available() or aggregators.registry.get(name).is_robust
    return declared and _is_another_method(m)


def _is_another_method(m: Measured) -> bool:
    """Not a part of CAAC-FL itself; H2 alone asks about single dimensions."""
    return not m.run.config["aggregator"]["name"].startswith(RULE)


def _is_gradual(m: Measured) -> bool:
    """An attack that gains strength round by round, which H3 asks about apart from abrupt ones."""
    name = m.run.config["attack"]["name"]
    return name in attacks.available() and attacks.registry.get(name).is_gradual


def _hardest(measured: Sequence[Measured]) -> list[Measured]:
    """Those on the most heterogeneous split of their dataset: the smallest α."""
    datasets = [json.dumps(m.run.config["dataset"], sort_keys=True, default=str) for m in measured]
    least: dict[str, float] = {}
    for m, dataset in zip(measured, datasets, strict=True):
        least[dataset] = min(_alpha(m), least.get(dataset, math.inf))
    return [m for m, dataset in zip(measured, datasets, strict=True) if _alpha(m) == least[dataset]]


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


def _below(measured: Iterable[Measured], ours: str, measure: str, bound: float, name: str) -> list[Claim]:
    """Claims that CAAC-FL stays below a bound that a detector must keep."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for m in measured:
        if m.run.method == ours and (value := _value(m, measure)) is not None:
            values[m.run.setting, m.run.attack].append(value)
    claims = []
    for (setting, attack), own in sorted(values.items()):
        if (test := paired([bound - value for value in own], [0.0] * len(own))) is not None:
            claims.append(Claim(measure, setting, attack, name, 0.0, fmean(own), bound, test))
    return claims


def _value(m: Measured, measure: str) -> float | None:
    """The measure; an attacker that was never detected counts as detected after the last round."""
    kind, _, name = measure.partition("_")
    if name == "latency" and m[measure] is None and m[f"{kind}_tpr"] is not None:
        late: float = m.run.config["rounds"] - (m.run.onset or 1) + 1
        return late
    return m[measure]
