"""What a hospital says of an evaluation: figures of all its rows, and of groups that are large enough.

A figure of a few patients says something of each of them. So nothing is said of fewer rows than the policy demands: of
all of them (`min_reported`), of a patient group or a bin of the calibration curve (`min_group`). A group that is left
out must not follow from the others either: where all rows but those of one small group are known, so are that group's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from wardround.federation.scoring import MIN_GROUP_ROWS, Measurement
from wardround.flower.hospital.policy import HospitalPolicy
from wardround.flower.messages import CALIBRATION, GROUPS, REASONS, SAMPLES, VALIDATION, Note
from wardround.records import GroupMetrics

__all__ = ["disclosed_groups", "figures_note"]

THRESHOLD_DIGITS = 2
"""A threshold lies between the probabilities of two patients: with all its digits it would give them away."""


def figures_note(
    test: Measurement, validation: Measurement, rows: int, policy: HospitalPolicy | None
) -> Note:
    """The reply to an order to evaluate.

    Args:
        test: figures on the hospital's test rows, with its patient groups.
        validation: figures on its validation rows.
        rows: number of test rows.
        policy: of a real hospital; None in a simulation, where nothing is held back but what is too small to measure.
    """
    measured = test.metrics | {f"{VALIDATION}{name}": value for name, value in validation.metrics.items()}
    known = {name: value for name, value in measured.items() if math.isfinite(value)}
    least = MIN_GROUP_ROWS if policy is None else policy.min_group
    groups = disclosed_groups(test.groups, least)
    bins = [[b.low, b.high, b.n, b.predicted, b.observed] for b in test.calibration if b.n >= least]
    if policy is not None:
        for name in ("threshold", f"{VALIDATION}threshold"):
            if name in known:
                known[name] = float(f"{known[name]:.{THRESHOLD_DIGITS}g}")
        known = policy.rounded(known)
        bins = [[low, high, n, *policy.rounded({"p": p, "o": o}).values()] for low, high, n, p, o in bins]
        groups = {name: {g: _rounded(f, policy) for g, f in own.items()} for name, own in groups.items()}
    head: dict[str, Any] = {
        REASONS: {name: reason.kind for name, reason in test.reasons.items()},
        GROUPS: groups,
        CALIBRATION: bins,
    }
    return Note({key: value for key, value in head.items() if value}, {SAMPLES: rows, **known})


def disclosed_groups(
    groups: Mapping[str, Mapping[str, GroupMetrics]], least: int
) -> dict[str, dict[str, GroupMetrics]]:
    """The groups of at least so many rows; of each attribute so few that what is left out has that many rows too.

    >>> sizes = {"old": {"n": 50}, "middle": {"n": 30}, "young": {"n": 4}}
    >>> disclosed_groups({"age": sizes}, 10)
    {'age': {'old': {'n': 50}}}
    >>> disclosed_groups({"age": {"old": {"n": 50}, "young": {"n": 4}}}, 10)
    {}
    """
    result = {}
    for attribute, of_group in groups.items():
        by_size = sorted(of_group.items(), key=lambda item: (_rows(item[1]), item[0]))
        hidden = 0
        while by_size and (_rows(by_size[0][1]) < least or 0 < hidden < least):
            hidden += _rows(by_size.pop(0)[1])
        kept = {name for name, _ in by_size}
        if kept:
            result[attribute] = {name: figures for name, figures in of_group.items() if name in kept}
    return result


def _rows(figures: GroupMetrics) -> int:
    n = figures["n"]
    assert isinstance(n, int)
    return n


def _rounded(figures: GroupMetrics, policy: HospitalPolicy) -> GroupMetrics:
    """Without the reason, which may name a class."""
    values = {name: value for name, value in figures.items() if isinstance(value, float)}
    return {"n": figures["n"], **policy.rounded(values)}
