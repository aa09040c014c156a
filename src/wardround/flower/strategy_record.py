"""What a strategy records about the rounds of a user's own Flower app: log lines and, where wanted, a run folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

from torch import Tensor

from wardround.aggregators import Aggregator
from wardround.errors import ConfigError
from wardround.records import ClientRecord, RoundRecord
from wardround.runs.config import RECORD, load_config
from wardround.runs.folder import RunFolder
from wardround.runs.reasons import Peers, explain
from wardround.runs.runner import summary_on_exit, versions
from wardround.updates import Aggregation, Updates

__all__ = ["StrategyRecord", "client_records", "known_metrics", "log_round"]

log = getLogger("flwr").log  # Flower's own log

APP = "flower-app"
"""Whose data and partition it is, where a run folder of ours would name a dataset."""
LOW = 0.1
"""Of an equal share: a client with less has next to no weight."""
PREFIXES = re.compile(r"^(eval|evaluate|test|val|valid|validation)[-_]")
SYNONYMS = {
    "acc": "accuracy", "auc": "auroc", "roc_auc": "auroc", "roc-auc": "auroc", "f1_score": "f1",
    "c-index": "c_index", "cindex": "c_index", "concordance": "c_index", "concordance_index": "c_index",
}  # fmt: skip


def known_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics under the names that reports know: `eval_acc` is `accuracy`; others keep their own.

    >>> known_metrics({"eval_acc": 0.9, "val-loss": 0.2, "dice": 0.8})
    {'accuracy': 0.9, 'loss': 0.2, 'dice': 0.8}
    """
    named = {}
    for name, value in metrics.items():
        short = PREFIXES.sub("", name.lower())
        named[SYNONYMS.get(short, short)] = value
    return named


def log_round(record: RoundRecord, rule: Aggregator) -> None:
    """Log who was flagged in a round and why, who was left out, and whether the round counted."""
    number, clients = record.round, record.clients
    peers = Peers([one for one in clients if one.status == "ok" and not one.flag])
    if record.warning is not None:
        log(WARNING, "round %s: %s", number, record.warning)
    if record.skipped is not None:
        log(WARNING, "round %s skipped: %s", number, record.skipped)
    for client, left_out in record.left_out.items():
        log(WARNING, "round %s: without %s (%s: %s)", number, client, left_out.status, left_out.reason)
    flagged = [one for one in clients if one.status == "ok" and one.flag]
    for one in flagged:
        log(WARNING, "round %s: flagged %s (%s)", number, one.client, explain(one, peers, rule.reasons))
    used = [one for one in clients if one.status == "ok"]
    if all(one.flag is None for one in used):  # a rule without verdicts speaks by its weights
        low = [one.client for one in used if one.weight is not None and one.weight < LOW / len(used)]
        if low:
            log(INFO, "round %s: next to no weight for %s", number, ", ".join(low))
    elif not flagged:
        log(INFO, "round %s: nobody flagged among %s clients", number, len(used))


class StrategyRecord:
    """Writes the run folder of an app, round by round. A round is complete when the next begins, or the app ends."""

    def __init__(self, path: Path, rule: Aggregator, server_lr: float, seed: int | None) -> None:
        self.folder, self.rule = RunFolder(path), rule
        if self.folder.rounds_path.exists() or self.folder.summary_path.exists():
            raise ConfigError(
                f"run_folder: {path} holds a run already; give another one, or remove it to start anew"
            )
        self._server_lr, self._seed = server_lr, seed
        self._rounds, self._parameters = 0, 0
        self._samples: dict[str, int] = {}
        self._pending: RoundRecord | None = None

    @contextmanager
    def running(self, rounds: int, parameters: int) -> Iterator[None]:
        """Hold the folder while the app runs, and write its summary however that ends."""
        self._rounds, self._parameters = rounds, parameters
        with self.folder.locked():
            self._write_config()
            with summary_on_exit(self.folder):
                try:
                    yield
                finally:
                    self.flush()

    def add(self, record: RoundRecord) -> None:
        """A round has been aggregated; its evaluation may follow."""
        self.flush()
        self._pending = record
        samples = {one.client: int(one.num_samples or 0) for one in record.clients if one.status == "ok"}
        if samples.keys() - self._samples.keys():
            self._samples |= samples
            self._write_config()

    def add_evaluation(
        self,
        round: int,
        metrics: Mapping[str, float],
        per_client: Mapping[str, Mapping[str, float]] | None = None,
        seconds: float = 0.0,
    ) -> None:
        """How good the model is after a round: by its clients, or by the server, which counts more."""
        if self._pending is None or self._pending.round != round:
            return
        self._pending = replace(
            self._pending,
            metrics=known_metrics(metrics) or self._pending.metrics,
            per_client={client: known_metrics(own) for client, own in per_client.items()}
            if per_client
            else self._pending.per_client,
            seconds={**self._pending.seconds, "evaluate": seconds},
        )

    def flush(self) -> None:
        """Write the round that is complete now."""
        if self._pending is not None:
            record, self._pending = self._pending, None
            self.folder.path.mkdir(parents=True, exist_ok=True)
            self.folder.append(record)

    def _write_config(self) -> None:
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", self.folder.path.name).strip("-._+") or APP
        section = {"name": self.rule.name, **self.rule.params.plain()}
        config = load_config(
            {"name": name[:80], "aggregator": section, "rounds": max(1, self._rounds), "seed": self._seed or 0,
             "server_lr": self._server_lr}
        ).plain()  # fmt: skip
        for own in ("dataset", "partition", "model"):
            config[own] = {"name": APP}
        config["training"] = {}  # the app's own: nothing is known of it
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.folder.write_config({**config, RECORD: self._description()})

    def _description(self) -> dict[str, Any]:
        return {
            **versions(),
            "engine": APP,
            "model_parameters": self._parameters,
            "aggregator": self.rule.resolved(max(1, len(self._samples))),
            "attack": {},
            "class_names": ["samples"],
            "clients": {client: [count] for client, count in sorted(self._samples.items())},
        }


def client_records(
    round: int, names: Sequence[str], updates: Updates, problems: Mapping[str, str], result: Aggregation
) -> list[ClientRecord]:
    """One record per client that replied.

    Args:
        round: The round.
        names: What to call each client.
        updates: What they sent.
        problems: Client of `updates` → why its reply was of no use.
        result: What the rule made of them.
    """

    def listed(values: Tensor | None) -> list[Any]:
        return [None] * len(updates) if values is None else values.tolist()

    own = {name: values.tolist() for name, values in result.columns.items()}
    own.setdefault("norm", updates.norms.tolist())
    own |= {f"reported_{name}": values.tolist() for name, values in updates.metrics.items()}
    samples, weights = updates.num_samples.tolist(), listed(result.weights)
    scores, flags = listed(result.scores), listed(result.flags)
    records = []
    for row, (name, client) in enumerate(zip(names, updates.clients, strict=True)):
        why = problems.get(client) or result.dropped.get(client)
        records.append(
            ClientRecord(
                round,
                name,
                "ok" if why is None else "dropped",
                why,
                num_samples=samples[row],
                weight=weights[row],
                score=scores[row],
                flag=flags[row],
                columns={column: values[row] for column, values in own.items()},
            )
        )
    return records
