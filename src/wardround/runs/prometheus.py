"""Runs as metrics, in the text format that Prometheus reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from wardround.runs.overview import RunOverview
from wardround.runs.reasons import number

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("waiting", "running", "finished", "diverged", "stopped", "failed", "killed")
Labels = Mapping[str, str]


@dataclass
class Family:
    """One metric with all its samples."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The family as text; nothing where there is no sample."""
        if not self.samples:
            return
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            yield f"{self.name}{{{inner}}} {_number(value)}"


class Families:
    """The metrics in the order in which they are declared."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def gauge(self, name: str, help: str, value: float | None, labels: Labels) -> None:
        """A figure that goes up and down."""
        self._add(name, "gauge", help, value, labels)

    def counter(self, name: str, help: str, value: float | None, labels: Labels) -> None:
        """A figure that only grows."""
        self._add(name, "counter", help, value, labels)

    def _add(
        self, name: str, kind: Literal["gauge", "counter"], help: str, value: float | None, labels: Labels
    ) -> None:
        family = self._families.setdefault(name, Family(f"wardround_{name}", kind, help))
        if value is not None:
            family.samples.append((labels, value))

    def text(self) -> str:
        """What Prometheus reads."""
        return "".join(f"{line}\n" for family in self._families.values() for line in family.lines())


def exposition(runs: Iterable[RunOverview]) -> str:
    """The metrics of some runs; a sample's label `run` says whose it is."""
    families = Families()
    for run in runs:
        labels = {"run": run.name}
        _add_run(families, run, labels)
        _add_clients(families, run, labels)
        counters = run.gateway_counters()
        refused = counters.get("refused")
        families.counter("refused_connections_total", "Requests that the gateway refused.", refused, labels)
        for direction in ("in", "out"):
            own = {**labels, "direction": direction}
            value = counters.get(f"bytes_{direction}")
            families.counter("bytes_total", "Bytes through the gateway.", value, own)
    return families.text()


def _add_run(families: Families, run: RunOverview, labels: Labels) -> None:
    for state in STATES:
        own = {**labels, "status": state}
        families.gauge("run_status", "1 for the state that the run is in.", float(run.status == state), own)
    families.gauge("round", "Last finished round.", run.round, labels)
    families.gauge("rounds", "Rounds that the run has in all.", run.rounds, labels)
    families.gauge("seconds_per_round", "Median of the last rounds.", run.seconds_per_round(), labels)
    families.gauge("seconds_left", "Estimated time to the end.", run.seconds_left(), labels)
    for phase, seconds in run.seconds.items():
        families.counter(
            "phase_seconds_total", "Time in each phase of the rounds.", seconds, {**labels, "phase": phase}
        )
    for phase, last in (run.last.seconds if run.last else {}).items():
        own = {**labels, "phase": phase}
        families.gauge("last_round_seconds", "The last round, by phase.", number(last), own)
    families.counter("skipped_rounds_total", "Rounds that left the model as it was.", run.skipped, labels)
    families.counter("missed_quorums_total", "Attempts with too few hospitals.", run.retries, labels)
    families.gauge("hospitals_expected", "Hospitals that are expected.", run.expected, labels)
    families.gauge("hospitals_present", "Hospitals that take part now.", run.present, labels)
    families.gauge("hospitals_quarantined", "Hospitals in quarantine.", len(run.quarantined), labels)
    families.gauge(
        "hospitals_refused", "Hospitals whose data or name were refused.", len(run.refused), labels
    )
    for topic, count in Counter(one.topic for one in run.open_warnings.reasons if run.is_running).items():
        own = {**labels, "topic": topic}
        families.gauge("warnings", "What the operator should do something about.", count, own)
    families.gauge("epsilon", "Differential privacy spent so far.", run.epsilon, labels)
    families.gauge("epsilon_budget", "Differential privacy at which the run stops.", run.budget, labels)
    for metric, value in ((run.evaluated.metrics if run.evaluated else None) or {}).items():
        own = {**labels, "metric": metric}
        families.gauge("evaluation", "The last evaluation of the model.", number(value), own)
    evaluated = run.evaluated.per_client if run.evaluated else None
    if evaluated is not None:
        count = sum(own.get("auroc") is not None for own in evaluated.values())
        families.gauge(
            "evaluation_hospitals", "Hospitals that the last AUROC is the median of.", count, labels
        )


def _add_clients(families: Families, run: RunOverview, labels: Labels) -> None:
    quarantined = run.quarantined
    for name, client in sorted(run.clients.items()):
        own = {**labels, "client": name}
        families.counter("flags_total", "Rounds in which the rule flagged the client.", client.flags, own)
        for status in ("dropped", "absent"):
            families.counter(
                "left_out_total",
                "Rounds without the client: its update was dropped, or it did not answer.",
                getattr(client, status),
                {**own, "status": status},
            )
        families.gauge(
            "last_seen_timestamp_seconds", "When the client last sent something.", client.last_seen, own
        )
        families.gauge("update_norm", "Norm of the client's last update.", client.norm, own)
        families.gauge("quarantined", "1 for a client in quarantine.", float(name in quarantined), own)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
