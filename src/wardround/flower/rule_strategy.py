"""Any rule as a strategy for other people's Flower apps.

Their clients send whole models (an `ArrayRecord` and a `MetricRecord` with `num-examples`, as in Flower's own
examples). The rule sees each model minus the one that was sent out. No reply can stop the run: one that does not
fit is dropped for this round, and `history` says why. Every round is logged (who was flagged, and why), and
written to a run folder where one is given.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import INFO, getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from wardround import aggregators
from wardround.errors import ConfigError, WardroundError
from wardround.federation.schedule import peak_memory_mb
from wardround.flower.messages import SAMPLES, Note
from wardround.flower.node_names import NodeNames, node_label
from wardround.flower.server.broker import Reply
from wardround.flower.server.replies import Replies
from wardround.flower.strategy_record import StrategyRecord, client_records, log_round
from wardround.records import ClientRecord, LeftOut, RoundRecord
from wardround.runs.reasons import Peers, explain
from wardround.updates import Aggregation, Layout, Updates

__all__ = ["RuleStrategy"]

log = getLogger("flwr").log  # Flower's own log

RootFn = Callable[[int, ArrayRecord], ArrayRecord]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
LOSSES = ("loss", "train_loss", "train-loss")
"""The names under which apps report their training loss, for rules that use it."""
SAMPLE_CAP = 1000.0


class RuleStrategy(Strategy):
    """A rule as a Flower strategy; see `wardround.flower.strategy`.

    Args:
        rule: Name of the rule.
        fraction_train: Share of the connected nodes that train in a round.
        fraction_evaluate: Share of the connected nodes that evaluate in a round.
        min_available_nodes: Nodes to wait for before a round.
        wait_seconds: Longest wait for them (Flower's own strategies wait without a limit).
        weighted_by_key: Name of the metric that holds the number of samples.
        arrayrecord_key: Key of the model in the messages.
        configrecord_key: Key of the configuration in the messages.
        server_lr: Factor on each step of the global model.
        root_fn: `root_fn(round, arrays)` returns the model trained on the server's own data, for rules that
            need it.
        seed: Seed of the choice of nodes.
        node_names: Node id → the hospital's name, where the server's operator knows it.
        name_key: Key under which a node gives its name, in any `ConfigRecord` of its reply.
        run_folder: Where to write a run folder, which `wardround watch`, `report` and `analyze` read; None: nowhere.
        params: The rule's own parameters.
    """

    def __init__(
        self,
        rule: str,
        /,
        *,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_available_nodes: int = 2,
        wait_seconds: float = 300.0,
        weighted_by_key: str = SAMPLES,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        server_lr: float = 1.0,
        root_fn: RootFn | None = None,
        seed: int | None = None,
        node_names: Mapping[int, str] | None = None,
        name_key: str = "name",
        run_folder: str | os.PathLike[str] | None = None,
        **params: Any,
    ) -> None:
        self.rule = aggregators.create(rule, **params)
        if self.rule.needs_attackers:
            raise ConfigError(
                f"{rule} is told who attacks, which only a simulation knows: choose another rule"
            )
        if self.rule.needs_practice_ground or self.rule.client_policy.local_batch_norm:
            raise ConfigError(
                f"{rule} is more than a strategy: its clients keep BatchNorm to themselves or its server has data to "
                "practise on; run it with wardround.flower.server_app and wardround.flower.client_app"
            )
        if self.rule.needs_root_update and root_fn is None:
            raise ConfigError(
                f"{rule} needs the server's own update: give root_fn=(round, arrays) → trained arrays"
            )
        for name, share in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, got {share}")
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_available_nodes, self.wait_seconds = min_available_nodes, wait_seconds
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.server_lr, self.root_fn = server_lr, root_fn
        self.history: list[dict[str, Any]] = []
        """One line per client and round: name, node id, weight, score, flag and why, and why it was dropped."""
        self.names = NodeNames(node_names, name_key)
        self._record = (
            None if run_folder is None else StrategyRecord(Path(run_folder), self.rule, server_lr, seed)
        )
        self._random = random.Random(seed)
        self._arrays = ArrayRecord()
        self._asked: tuple[int, ...] = ()
        self._sent = time.monotonic()

    def summary(self) -> None:
        """Log the rule and its parameters."""
        log(INFO, "\t└──> wardround rule: %r", self.rule)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all rounds, as Flower's own strategies do; the run folder gets its summary at the end."""
        if self._record is None:
            return super().start(
                grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
            )
        layout, _ = _flatten(initial_arrays)
        with self._record.running(num_rounds, layout.size):
            return super().start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else self._noted(evaluate_fn),
            )

    def _noted(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """The server's own evaluation, whose metrics also go into the run folder."""

        def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord | None:
            started = time.monotonic()
            metrics = evaluate_fn(round, arrays)
            if metrics is not None and self._record is not None:
                seconds = time.monotonic() - started
                self._record.add_evaluation(
                    round, _numbers(RecordDict({"metrics": metrics})), seconds=seconds
                )
            return metrics

        return evaluate

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per chosen node; store the model from which updates are measured."""
        self._arrays = arrays
        config["server-round"] = server_round
        policy = self.rule.client_policy
        if policy.prox_mu is not None:
            config["proximal-mu"] = float(policy.prox_mu)
        return self._messages(arrays, config, grid, self.fraction_train, MessageType.TRAIN)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one message per chosen node."""
        config["server-round"] = server_round
        return self._messages(arrays, config, grid, self.fraction_evaluate, MessageType.EVALUATE)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model after the rule's step, or the same model if the round was skipped, and mean metrics."""
        contents, problems = _first_of_each(replies)
        seconds = {"train": time.monotonic() - self._sent, "attack": 0.0, "aggregate": 0.0}
        for node, content in contents.items():
            self.names.learn(node, content)
        silent = {node: problems.get(node, "no answer") for node in self._asked if node not in contents}
        if not contents or not self._arrays:
            self._note_round(RoundRecord(server_round, seconds, skipped="no node replied"), {}, silent)
            return None, None
        layout, start = _flatten(self._arrays)
        received = Replies([node_label(node) for node in contents], layout.size, start.dtype)
        for node, content in contents.items():
            received.take(node_label(node), self._note(content, layout, start))
        received.close([], 0.0, SAMPLE_CAP)
        started = time.monotonic()
        updates = received.updates(layout)
        try:
            result = self._aggregate(server_round, updates, layout, start)
        except WardroundError as error:
            # Too few rows for the rule, or no root update: this costs the round, not the run.
            result = Aggregation(torch.zeros_like(start), skipped=str(error))
        seconds["aggregate"] = time.monotonic() - started
        nodes = {node_label(node): node for node in contents}
        names = [self.names[nodes[label]] for label in updates.clients]
        lines = client_records(server_round, names, updates, received.problems, result)
        self._note_round(
            RoundRecord(
                server_round,
                seconds,
                skipped=result.skipped,
                clients=lines,
                estimated_f=result.estimated_f,
                warning=result.warning,
            ),
            nodes,
            silent,
        )
        moved = start + self.server_lr * result.delta.to(start.dtype)
        by_label = {node_label(node): content for node, content in contents.items()}
        return _unflatten(self._arrays, layout, moved), self._metrics(by_label, received, result)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of the clients' metrics by their (capped) number of samples; ignore invalid replies."""
        reports = {}
        for node, content in _first_of_each(replies)[0].items():
            self.names.learn(node, content)
            metrics = _numbers(content)
            count = metrics.get(self.weighted_by_key, 0.0)
            if math.isfinite(count) and count > 0:
                reports[self.names[node]] = metrics
        weights = {client: metrics[self.weighted_by_key] for client, metrics in reports.items()}
        if weights:
            median = sorted(weights.values())[len(weights) // 2]
            weights = {client: min(count, SAMPLE_CAP * median) for client, count in weights.items()}
        means = _mean(reports, weights, self.weighted_by_key)
        if means is not None and self._record is not None:
            seconds = time.monotonic() - self._sent
            self._record.add_evaluation(
                server_round,
                _numbers(RecordDict({"metrics": means})),
                {
                    client: {name: value for name, value in own.items() if name != self.weighted_by_key}
                    for client, own in reports.items()
                },
                seconds,
            )
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return the rule's state; an app that wants to resume saves it beside the model."""
        return self.rule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.rule.load_state_dict(state)

    def _messages(
        self, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, fraction: float, kind: str
    ) -> list[Message]:
        if fraction == 0:
            return []
        end = time.monotonic() + self.wait_seconds
        while len(nodes := sorted(grid.get_node_ids())) < self.min_available_nodes and time.monotonic() < end:
            time.sleep(1.0)
        count = min(len(nodes), max(1, round(fraction * len(nodes))))
        chosen = sorted(self._random.sample(nodes, count))
        log(INFO, "%s: %s of %s nodes", kind, len(chosen), len(nodes))
        self._asked, self._sent = tuple(chosen), time.monotonic()
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, node, kind) for node in chosen]

    def _note(self, content: RecordDict, layout: Layout, start: torch.Tensor) -> Reply:
        """Return a client's model as an update; without one if the reply holds no such model."""
        metrics = _numbers(content)
        loss = next((metrics[name] for name in LOSSES if name in metrics), math.nan)
        report = {"loss": loss}
        if self.weighted_by_key in metrics:
            report[SAMPLES] = metrics[self.weighted_by_key]
        records = list(content.array_records.values())
        try:
            arrays = {name: array.numpy() for name, array in records[0].items()} if len(records) == 1 else {}
            parts = [arrays[name] for name in layout.names]
            if any(part.shape != shape for part, shape in zip(parts, layout.shapes, strict=True)):
                raise ValueError("other shapes")
            flat = np.concatenate([part.reshape(-1).astype(np.float64) for part in parts])
        except Exception:  # missing keys, other shapes, text instead of numbers, bytes that are no array
            return Note({}, report)
        update = (torch.from_numpy(flat) - start.double()).to(start.dtype).numpy()
        return Note({}, report, {"update": update})

    def _aggregate(self, round: int, updates: Updates, layout: Layout, start: torch.Tensor) -> Aggregation:
        root = None
        if self.root_fn is not None:
            root_layout, trained = _flatten(self.root_fn(round, self._arrays))
            if root_layout.names != layout.names or root_layout.shapes != layout.shapes:
                raise WardroundError("root_fn returned other arrays than it was given")
            root = trained - start
        return self.rule.aggregate(updates, round, start, root)

    def _note_round(self, record: RoundRecord, nodes: Mapping[str, int], silent: Mapping[int, str]) -> None:
        """Put a round into `history`, the log and the run folder."""
        left_out = {
            one.client: LeftOut(one.status, one.reason or "") for one in record.clients if one.status != "ok"
        }
        left_out |= {self.names[node]: LeftOut("absent", why) for node, why in silent.items()}
        absent = [
            # A node that has never replied has no name yet: a line now would make it two clients later.
            ClientRecord(record.round, self.names[node], "absent", why)
            for node, why in silent.items()
            if node in self.names
        ]
        peers = Peers([one for one in record.clients if one.status == "ok" and not one.flag])
        for one, node in zip(record.clients, nodes.values(), strict=True):
            self.history.append(
                {
                    "round": one.round,
                    "client": one.client,
                    "node": node,
                    "weight": one.weight,
                    "score": one.score,
                    "flag": one.flag,
                    "why": explain(one, peers, self.rule.reasons) if one.flag else None,
                    "dropped": one.reason,
                }
            )
        clients = [*record.clients, *absent]
        record = replace(record, left_out=left_out, clients=clients, memory_mb=peak_memory_mb())
        log_round(record, self.rule)
        if self._record is not None:
            self._record.add(record)

    def _metrics(
        self, contents: Mapping[str, RecordDict], received: Replies, result: Aggregation
    ) -> MetricRecord | None:
        """Return the mean of the clients' metrics by the rule's weights (equal ones if it has none)."""
        clients = received.answered
        shares = [1.0] * len(clients) if result.weights is None else result.weights.tolist()
        weights = {c: share for c, share in zip(clients, shares, strict=False) if c not in received.problems}
        return _mean(
            {client: _numbers(contents[client]) for client in weights}, weights, self.weighted_by_key
        )


def _first_of_each(replies: Iterable[Message]) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """Return each node's first reply, sorted by node, and why other nodes have none: their errors."""
    contents: dict[int, RecordDict] = {}
    errors: dict[int, str] = {}
    for message in replies or ():
        node = message.metadata.src_node_id
        if message.has_error():
            reason = (message.error.reason or "").strip()[-200:]
            errors.setdefault(node, f"error: {reason}")
        elif message.has_content():
            contents.setdefault(node, message.content)
    return dict(sorted(contents.items(), key=lambda item: node_label(item[0]))), errors


def _flatten(arrays: ArrayRecord) -> tuple[Layout, torch.Tensor]:
    """Concatenate the floating-point arrays into one vector."""
    values = {name: array.numpy() for name, array in arrays.items()}
    values = {name: value for name, value in values.items() if value.dtype.kind == "f"}
    layout = Layout(tuple(values), tuple(value.shape for value in values.values()))
    kind = np.float64 if any(value.dtype == np.float64 for value in values.values()) else np.float32
    flat = np.concatenate([value.reshape(-1).astype(kind) for value in values.values()])
    return layout, torch.from_numpy(flat)


def _unflatten(like: ArrayRecord, layout: Layout, vector: torch.Tensor) -> ArrayRecord:
    """Return the vector as arrays with the names, shapes and types of `like`; other arrays stay as they were."""
    moved = {name: value.numpy() for name, value in layout.unflatten(vector).items()}
    return ArrayRecord(
        {
            name: Array(moved[name].astype(array.dtype)) if name in moved else array
            for name, array in like.items()
        }
    )


def _numbers(content: RecordDict) -> dict[str, float]:
    return {
        name: float(value)
        for record in content.metric_records.values()
        for name, value in record.items()
        if isinstance(value, int | float) and abs(value) < 1e308
    }


def _mean(
    metrics: Mapping[str, Mapping[str, float]], weights: Mapping[str, float], without: str
) -> MetricRecord | None:
    names = dict.fromkeys(name for own in metrics.values() for name in own if name != without)
    means: dict[str, Any] = {}
    for name in names:
        clients = [c for c in metrics if name in metrics[c] and math.isfinite(metrics[c][name])]
        total = sum(weights[client] for client in clients)
        if total > 0:
            means[name] = sum(weights[client] * metrics[client][name] for client in clients) / total
    return MetricRecord(means) if means else None
