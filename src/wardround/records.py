"""What a run folder holds, as types: one record per round, one per client and round, and a summary.

Everyone who writes or reads a run folder uses these. `line()` gives the JSON of a record, `from_line()` reads it back.

Schema versions (`record.schema` in config.yaml):

* 1 (no version written): clients that were left out had a text `dropped`, which began with `quarantined:` for
  those in quarantine. Such folders are still read.
* 2: `status` and `reason` per client; `left_out` per round.
* 3: config.yaml, summary.json and checkpoint.pt carry hashes (see `runs/integrity.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from wardround.errors import DataError

__all__ = [
    "CLOCKS",
    "MAIN_METRICS",
    "SCHEMA_VERSION",
    "CalibrationBin",
    "ClientRecord",
    "EvaluationDetails",
    "GroupMetrics",
    "LeftOut",
    "Metrics",
    "Reason",
    "ReasonKind",
    "RoundRecord",
    "RunStatus",
    "Status",
    "Summary",
    "check_schema",
    "finite",
    "main_metric",
    "main_value",
    "pipeline_name",
]

SCHEMA_VERSION = 3
"""Of the files in a run folder. A reader of an older version reads what it knows; a newer version is refused."""
CLOCKS = "clocks"
"""The entry with the hospitals' clocks in what a federation's gateway counts."""

Status = Literal["ok", "dropped", "absent", "quarantined"]
"""ok: the update was used. dropped: malformed or refused. absent: no answer. quarantined: not asked."""
RunStatus = Literal["finished", "diverged", "stopped", "failed"]
"""finished: all rounds took place. diverged: so they did, but at the end no update, or no output of the model, was
finite. stopped: by an operator or a spent budget; can be resumed. failed: by an error."""
Metrics = Mapping[str, float | None]
GroupMetrics = Mapping[str, float | str | None]
"""Figures of one patient group: `n` rows, metrics, and a `reason` where one of them is null."""
ReasonKind = Literal["no-rows", "few-rows", "one-class", "no-pair", "not-defined", "not-finite"]
"""no-rows: nothing to measure on. few-rows: fewer than are reported. one-class: a rank or a rate needs two classes.
no-pair: no two patients of whom it is known who had the event first. not-defined: the task has no such figure.
not-finite: the model's output is NaN or infinite."""
MAIN_METRICS = {"auroc": "AUROC", "c_index": "C-index"}
"""The figure by which models are compared, in words: of a survival task the C-index, of all others the AUROC. Both are
shares of pairs that are ranked right: 1 is best, 0.5 is chance."""

_QUARANTINED_V1 = "quarantined: "


@dataclass(frozen=True)
class LeftOut:
    """Why a client had no part in a round."""

    status: Status
    reason: str


@dataclass(frozen=True)
class Reason:
    """Why a figure is null; of `threshold`: why it is one half, and not chosen on validation rows."""

    kind: ReasonKind
    text: str


@dataclass(frozen=True)
class CalibrationBin:
    """One point of a calibration curve: rows whose predicted probability is above `low` and at most `high`."""

    low: float
    high: float
    n: int
    predicted: float
    """Mean predicted probability of these rows."""
    observed: float
    """Share of these rows for which it came true."""


@dataclass(frozen=True)
class EvaluationDetails:
    """What an evaluation on test rows says beside its metrics."""

    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """Metric → why it is null."""
    per_client_reasons: Mapping[str, Mapping[str, Reason]] = field(default_factory=dict)
    """Client → metric → why it is null, for `per_client`."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Finding → its threshold, of a multi-label task. A binary task has its own in the metric `threshold`."""
    calibration: Sequence[CalibrationBin] = ()
    """The calibration curve; bins without rows are left out."""
    groups: Mapping[str, Mapping[str, GroupMetrics]] = field(default_factory=dict)
    """Attribute (sex, age, site) → patient group → its figures."""
    gaps: Mapping[str, Metrics] = field(default_factory=dict)
    """Attribute → metric → largest minus least figure of its groups (without the group `unknown`)."""

    def line(self) -> dict[str, Any]:
        """Its keys in a line of rounds.jsonl; those that hold nothing are left out."""
        values = {
            "reasons": _plain_reasons(self.reasons),
            "per_client_reasons": {
                client: _plain_reasons(reasons) for client, reasons in self.per_client_reasons.items()
            },
            "thresholds": self.thresholds,
            "calibration": [dict(vars(one)) for one in self.calibration],
            "groups": self.groups,
            "gaps": self.gaps,
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> EvaluationDetails:
        """Read its keys out of a line; an older line has none."""
        known: dict[str, Any] = {
            name: line[name] for name in ("thresholds", "groups", "gaps") if line.get(name)
        }
        if line.get("reasons"):
            known["reasons"] = _reasons(line["reasons"])
        if line.get("per_client_reasons"):
            known["per_client_reasons"] = {
                client: _reasons(reasons) for client, reasons in line["per_client_reasons"].items()
            }
        if line.get("calibration"):
            known["calibration"] = tuple(CalibrationBin(**one) for one in line["calibration"])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """Everything a run records about one client in one round."""

    round: int
    client: str
    status: Status = "ok"
    reason: str | None = None
    """Why the client was left out; None where `status` is ok."""
    byzantine: bool = False
    """Ground truth of a simulated attack: this client is one of the attackers."""
    attacking: bool = False
    """Ground truth: it is an attacker and its attack is on in this round."""
    num_samples: float | None = None
    weight: float | None = None
    score: float | None = None
    flag: bool | None = None
    faulty: bool = False
    """Ground truth of a simulated fault: this client is one of the broken ones."""
    failing: bool = False
    """Ground truth: it is broken in this round."""
    columns: Mapping[str, float | None] = field(default_factory=dict)
    """The rule's own diagnostics, `norm` where updates are in the clear, and `reported_…` metrics of the client."""

    @property
    def is_honest(self) -> bool:
        """Ground truth: neither an attacker nor broken."""
        return not self.byzantine and not self.faulty

    def line(self) -> dict[str, Any]:
        """One line of clients.jsonl: the columns stand beside the other keys. Only broken clients are called so."""
        line: dict[str, Any] = finite(self.values())
        return line

    def values(self) -> dict[str, Any]:
        """The same line before NaN and infinity have become null."""
        return {
            "round": self.round,
            "client": self.client,
            "status": self.status,
            "reason": self.reason,
            "byzantine": self.byzantine,
            "attacking": self.attacking,
            "num_samples": self.num_samples,
            "weight": self.weight,
            "score": self.score,
            "flag": self.flag,
            **({"faulty": self.faulty, "failing": self.failing} if self.faulty else {}),
            **self.columns,
        }

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> ClientRecord:
        """Read a line of any schema version up to this one."""
        columns = dict(line)  # what is left of it: this runs for millions of lines, and is written for speed
        pop = columns.pop
        status, reason = pop("status", None), pop("reason", None)
        if status is None:
            status = "ok"
            if dropped := pop("dropped", None):
                left_out = _left_out_v1(str(dropped))
                status, reason = left_out.status, left_out.reason
        return cls(
            pop("round"),
            pop("client"),
            status,
            reason,
            pop("byzantine", False),
            pop("attacking", False),
            pop("num_samples", None),
            pop("weight", None),
            pop("score", None),
            pop("flag", None),
            pop("faulty", False),
            pop("failing", False),
            columns,
        )

    def __getitem__(self, name: str) -> Any:
        """A field or a column by its name in the file; KeyError where the record has neither."""
        return getattr(self, name) if name in _CLIENT_FIELDS else self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in _CLIENT_FIELDS or name in self.columns

    def get(self, name: str, default: Any = None) -> Any:
        """A field or a column by its name in the file, `default` where the record has neither."""
        return getattr(self, name) if name in _CLIENT_FIELDS else self.columns.get(name, default)


@dataclass(frozen=True)
class RoundRecord:
    """Everything a run records about one round."""

    round: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock time of the phases train, attack, aggregate and evaluate."""
    metrics: Metrics | None = None
    """On the test split, where the round has an evaluation."""
    validation: Metrics | None = None
    per_client: Mapping[str, Metrics] | None = None
    """Each client's figures on its own test samples: after the last round, and in every evaluated round where
    BatchNorm stays with the clients."""
    skipped: str | None = None
    """Why the model did not move in this round."""
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    """Clients without a part in the round."""
    privacy: Mapping[str, float] | None = None
    """What the run has spent so far, where it has differential privacy."""
    memory_mb: float | None = None
    """Peak resident memory of the process so far; None where the platform does not say."""
    clients: Sequence[ClientRecord] = ()
    """One record per client; they are written to clients.jsonl."""
    diverged: str | None = None
    """Why there is no longer a model to speak of, where updates or outputs are not finite."""
    details: EvaluationDetails = field(default_factory=EvaluationDetails)
    """Why figures are null, thresholds, calibration and patient groups; its keys stand beside the others."""
    kappa: float | None = None
    """κ̂: squared distance of the aggregate from the honest mean, over the variance of the honest updates. In
    simulations, which know who attacks, and where updates are not hidden."""
    estimated_f: int | None = None
    """How many Byzantine clients the rule counted on, where it estimates that from the round (f is `auto`)."""
    warning: str | None = None
    """What people should know of the round: that the rule could not do what it is for."""

    @property
    def is_broken(self) -> bool:
        """Was the model evaluated, and was its output not finite? An older version gave no reasons: then it has no
        loss either."""
        if not self.metrics or main_value(self.metrics) is not None:
            return False
        reason = self.details.reasons.get(main_metric(self.metrics))
        return self.metrics.get("loss") is None if reason is None else reason.kind == "not-finite"

    def line(self) -> dict[str, Any]:
        """One line of rounds.jsonl; keys that hold nothing are left out, but for the first five."""
        line: dict[str, Any] = finite(self.values())
        return line

    def values(self) -> dict[str, Any]:
        """The same line before NaN and infinity have become null."""
        always = ("round", "seconds", "metrics", "validation", "memory_mb")
        line: dict[str, Any] = {name: getattr(self, name) for name in always}
        if self.left_out:
            line["left_out"] = {
                client: {"status": one.status, "reason": one.reason} for client, one in self.left_out.items()
            }
        for name in ("skipped", "warning", "diverged", "per_client", "privacy"):
            if getattr(self, name):
                line[name] = getattr(self, name)
        for name in ("kappa", "estimated_f"):
            if getattr(self, name) is not None:
                line[name] = getattr(self, name)
        return line | self.details.line()

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> RoundRecord:
        """Read a line of any schema version up to this one."""
        values = {name: line[name] for name in _ROUND_FIELDS if name in line}
        if "left_out" in line:
            left_out = {
                client: LeftOut(_status(one.get("status")), str(one.get("reason")))
                for client, one in line["left_out"].items()
            }
        else:
            left_out = {client: _left_out_v1(str(why)) for client, why in (line.get("dropped") or {}).items()}
        return cls(**values, left_out=left_out, details=EvaluationDetails.from_line(line))


@dataclass(frozen=True)
class Summary:
    """What a run came to, as summary.json holds it."""

    status: RunStatus
    rounds: int = 0
    reason: str | None = None
    final: Mapping[str, Any] | None = None
    """Test metrics of the last evaluated round, and its number."""
    best: Mapping[str, Any] | None = None
    """Test metrics of the round that was best on validation, and its number."""
    rounds_to_90: int | None = None
    detection: Mapping[str, Any] | None = None
    suppression: Mapping[str, Any] | None = None
    skipped_rounds: int = 0
    dropped_updates: int = 0
    overhead: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, float] | None = None
    evaluation: Mapping[str, Any] | None = None
    """`final` and `best`: calibration, patient groups and the like of these two rounds, as in rounds.jsonl."""

    @property
    def finished(self) -> bool:
        """Did all rounds of the run take place?"""
        return self.status in ("finished", "diverged")

    @property
    def diverged(self) -> bool:
        """Did all rounds take place, with no model to speak of at the end?"""
        return self.status == "diverged"

    @property
    def auroc(self) -> float | None:
        """The final AUROC (of a survival task the C-index), None where the run has none."""
        return main_value(self.final)

    def plain(self) -> dict[str, Any]:
        """What goes into summary.json; `reason`, `privacy` and `evaluation` only where there are any."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        optional = ("reason", "privacy", "evaluation")
        known = {name: value for name, value in values.items() if name not in optional or value is not None}
        plain: dict[str, Any] = finite({"schema": SCHEMA_VERSION, **known})
        return plain

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Summary:
        """Read summary.json; keys that this version does not know are left out."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


_CLIENT_FIELDS = tuple(one.name for one in fields(ClientRecord) if one.name != "columns")
_ROUND_FIELDS = tuple(
    one.name for one in fields(RoundRecord) if one.name not in ("left_out", "clients", "details")
)


def check_schema(record: Mapping[str, Any], where: object) -> None:
    """Refuse a run folder that a newer version wrote."""
    version = record.get("schema", 1)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise DataError(
            f"{where}: written in schema {version}; this version reads up to {SCHEMA_VERSION}: upgrade wardround"
        )


def main_metric(metrics: Metrics | None) -> str:
    """The name of the figure by which models are compared, in these metrics.

    >>> main_metric({"c_index": 0.7, "loss": 1.2}), main_metric({"auroc": None}), main_metric(None)
    ('c_index', 'auroc', 'auroc')
    """
    return "c_index" if metrics and "c_index" in metrics else "auroc"


def main_value(metrics: Metrics | None) -> float | None:
    """That figure; None where the metrics have none."""
    return (metrics or {}).get(main_metric(metrics))


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: both become null.

    >>> finite({"loss": math.inf, "auroc": [0.5, math.nan]})
    {'loss': None, 'auroc': [0.5, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):  # most values: spared the slower question below
        return value
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def _plain_reasons(reasons: Mapping[str, Reason]) -> dict[str, Any]:
    return {name: dict(vars(one)) for name, one in reasons.items()}


def _reasons(plain: Mapping[str, Any]) -> dict[str, Reason]:
    return {name: Reason(one["kind"], str(one["text"])) for name, one in plain.items()}


def _status(value: Any) -> Status:
    if value not in get_args(Status):
        raise DataError(f"a client's status is one of {', '.join(get_args(Status))}, got {value!r}")
    status: Status = value
    return status


def _left_out_v1(dropped: str) -> LeftOut:
    """Status and reason from the text `dropped` of schema 1."""
    if dropped.startswith(_QUARANTINED_V1):
        return LeftOut("quarantined", dropped.removeprefix(_QUARANTINED_V1))
    return LeftOut("dropped", dropped)


def pipeline_name(section: Mapping[str, Any]) -> str:
    """The rule of a section `aggregator` behind its pre-aggregations, by name.

    >>> pipeline_name({"name": "median", "pre": [{"name": "arc"}, {"name": "nnm"}]})
    'arc + nnm + median'
    """
    return " + ".join([*(step["name"] for step in section.get("pre", ())), section["name"]])
