"""What the lines of a run come to: numbers that every analysis of the run needs, made once when it has finished.

An analysis of thousands of runs reads `config.yaml`, `summary.json` and `digest.json` of each, and no line. A digest is
a pure function of the lines and of what the configuration says about clients and attack. It names the lines that it was
made of by their hashes; one that is missing, or that belongs to other lines, is made anew from them.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from wardround.files import replace_file
from wardround.records import ClientRecord, RoundRecord, main_value
from wardround.runs.folder import RunFolder
from wardround.runs.integrity import HASH, seal
from wardround.runs.summary import detection, flagged, rates_by_round, suppressed
from wardround.runs.suppression import suppressed_shares

__all__ = [
    "CHANCE",
    "LATE_WINDOW",
    "ONSET_WINDOW",
    "Digest",
    "digest_of",
    "drift_of",
    "make_digest",
    "shares_of_weight",
    "variation",
    "write_digest",
]

VERSION = 2
"""Of what a digest holds: one of another version is made anew."""
NAME = "digest.json"
CHANCE = 0.5  # the AUROC, and the C-index, of a random ranking
ONSET_WINDOW, LATE_WINDOW = 10, 20


@dataclass(frozen=True)
class Digest:
    """The numbers of a run that come from its lines."""

    values: Mapping[str, float | None]
    """Measure → value; `wardround.analysis.measures` says what each one means."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Each client's mean weight as a multiple of an equal share."""
    own: Mapping[str, float] = field(default_factory=dict)
    """AUROC (of a survival task: C-index) of the final model on each client's own test samples, where it has one."""
    curve: Sequence[tuple[int, float]] = ()
    """Test AUROC (or C-index) of every round that has one. A model whose output is not finite counts as chance:
    leaving such rounds out would make a rule look the better the sooner it breaks."""
    accuracy: Sequence[tuple[int, float]] = ()
    """Test accuracy of every round that has one."""


def make_digest(
    config: Mapping[str, Any], rounds: Sequence[RoundRecord], clients: Sequence[ClientRecord]
) -> Digest:
    """Make the digest of a run from its configuration (with its record) and all its lines."""
    curve = [
        (record.round, CHANCE if record.is_broken else value)
        for record in rounds
        if record.metrics and ((value := main_value(record.metrics)) is not None or record.is_broken)
    ]
    own = own_main_metrics(config, rounds)
    known = [value for _, value in curve if value is not None]
    spent = sorted(record.seconds["aggregate"] for record in rounds if "aggregate" in record.seconds)
    values: dict[str, float | None] = {
        "mean_main": fmean(known) if known else None,
        "broken_rounds": sum(1 for record in rounds if record.is_broken),
        **_verdicts(config, clients),
        **suppressed_shares(clients, _record(config).get("clients") or {}),
        "score_variation": variation(clients, "score"),
        "threshold_variation": variation(clients, "threshold"),
        "worst_client": min(own.values(), default=None),
        "mean_client": fmean(own.values()) if own else None,
        "aggregate_ms": 1000 * spent[len(spent) // 2] if spent else None,
        "memory_mb": max((record.memory_mb or 0.0 for record in rounds), default=None),
    }
    return Digest(
        values,
        shares_of_weight(clients),
        own,
        [(n, value) for n, value in curve if value is not None],
        [(r.round, value) for r in rounds if (value := (r.metrics or {}).get("accuracy")) is not None],
    )


def write_digest(folder: RunFolder, rounds: Sequence[RoundRecord], clients: Sequence[ClientRecord]) -> None:
    """Write the digest of a run that has finished, beside its summary."""
    config = folder.config()
    digest = make_digest(config, rounds, clients)
    values: dict[str, Any] = {
        "version": VERSION,
        "files": folder.extents(),
        "inputs": _inputs(config),
        "values": digest.values,
        "shares": digest.shares,
        "own": digest.own,
        "curve": digest.curve,
        "accuracy": digest.accuracy,
    }
    values[HASH] = seal(values)
    replace_file(folder.path / NAME, json.dumps(values).encode())


def digest_of(folder: RunFolder, config: Mapping[str, Any], files: Mapping[str, Any] | None) -> Digest:
    """The digest of a run, from its file or else from its lines.

    Args:
        folder: The run's.
        config: With its record.
        files: The extents of its lines, as its summary has them; None: read the lines.
    """
    stored = _read(folder) if files is not None else None
    if stored is None or stored["files"] != files or stored["inputs"] != _inputs(config):
        return make_digest(config, folder.rounds(), folder.clients())
    curve, accuracy = ([(int(n), value) for n, value in stored[key]] for key in ("curve", "accuracy"))
    return Digest(stored["values"], stored["shares"], stored["own"], curve, accuracy)


def _read(folder: RunFolder) -> dict[str, Any] | None:
    """What is in the file; None where it is missing, damaged or of another version: it can be made anew."""
    try:
        values = json.loads((folder.path / NAME).read_bytes())
        whole = values["version"] == VERSION and values[HASH] == seal(values)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return values if whole else None


def _inputs(config: Mapping[str, Any]) -> str:
    """A hash of what a digest takes from the configuration."""
    record = _record(config)
    return seal(
        {
            "attack": (_attack(config).get("start"), _byzantine(config), _broken(config)),
            "drift": drift_of(config),
            "clients": record.get("clients"),
            "task": record.get("task"),
        }
    )


def _record(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("record") or {}


def _attack(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("attack") or {}


def _byzantine(config: Mapping[str, Any]) -> list[str]:
    clients: list[str] = (_record(config).get("attack") or {}).get("byzantine", [])
    return clients


def _broken(config: Mapping[str, Any]) -> list[str]:
    clients: list[str] = (_record(config).get("fault") or {}).get("broken", [])
    return clients


def drift_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section `drift`, which formerly stood in the dataset's; empty where nobody's case mix moves."""
    drift: Mapping[str, Any] = config.get("drift") or (config.get("dataset") or {}).get("drift") or {}
    return drift


def own_main_metrics(config: Mapping[str, Any], rounds: Sequence[RoundRecord]) -> dict[str, float]:
    """AUROC or C-index of the last model on each client's own test samples, where it is defined."""
    main = "c_index" if _record(config).get("task") == "survival" else "auroc"
    last = next((record.per_client for record in reversed(rounds) if record.per_client), {})
    return {client: value for client, metrics in last.items() if (value := metrics.get(main)) is not None}


def shares_of_weight(clients: Sequence[ClientRecord]) -> dict[str, float]:
    """Each client's mean weight over its rounds as a multiple of an equal share 1/N."""
    present: dict[int, int] = defaultdict(int)
    for record in clients:
        present[record.round] += record.weight is not None
    shares: dict[str, list[float]] = defaultdict(list)
    for record in clients:
        if record.weight is not None:
            shares[record.client].append(record.weight * present[record.round])
    return {client: fmean(values) for client, values in shares.items()}


def variation(clients: Sequence[ClientRecord], column: str) -> float | None:
    """The coefficient of variation of a column over rounds, mean over honest clients.

    0 means that every client has the same value in all rounds.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for record in clients:
        value = record.get(column) if record.is_honest else None
        if value is not None and math.isfinite(value):
            values[record.client].append(value)
    variations = []
    for own in values.values():
        mean = fmean(own)
        if len(own) > 1 and abs(mean) > 1e-12:
            variations.append(math.sqrt(fmean([(value - mean) ** 2 for value in own])) / abs(mean))
    return fmean(variations) if variations else None


def _verdicts(config: Mapping[str, Any], clients: Sequence[ClientRecord]) -> dict[str, float | None]:
    """Rates over the whole run and over windows, by flags and by weights."""
    values: dict[str, float | None] = {}
    flags, low = flagged(clients), suppressed(clients)
    by_flags, by_weights = detection(clients, flags), detection(clients, low)
    for name in ("tpr", "fpr", "fnr", "precision", "f1", "latency"):
        values[f"flag_{name}"] = None if by_flags is None else by_flags[name]
    for name in ("tpr", "fpr", "fnr", "latency"):
        values[f"low_{name}"] = None if by_weights is None else by_weights[name]
    values["fault_flag_tpr"] = (by_flags or {}).get("fault_tpr")
    values["fault_low_tpr"] = (by_weights or {}).get("fault_tpr")
    values |= _windows(config, clients)
    drift = drift_of(config)
    drifting = {*drift.get("clients", ())} - {*_byzantine(config), *_broken(config)}
    since = drift.get("start", 0)
    moving = [i for i, record in enumerate(clients) if record.client in drifting and record.round > since]
    values["drift_fpr"] = _mean([low[i] for i in moving])
    values["drift_flag_fpr"] = _mean([flags[i] for i in moving])
    return values


def _windows(config: Mapping[str, Any], clients: Sequence[ClientRecord]) -> dict[str, float | None]:
    rates = rates_by_round(clients, flagged(clients))
    last = max(rates, default=0)

    def over(rate: str, first: int, end: int) -> float | None:
        return _mean([of_round[rate] for number, of_round in rates.items() if first <= number < end])

    late = last - LATE_WINDOW + 1
    values = {"flag_tpr_late": over("tpr", late, last + 1), "flag_fpr_late": over("fpr", late, last + 1)}
    if _byzantine(config):
        onset = _attack(config)["start"]
        values["flag_tpr_onset"] = over("tpr", onset, onset + ONSET_WINDOW)
        values["flag_fpr_before"] = over("fpr", 1, onset)
    return values


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
