"""The server's half of a round: what was sent becomes one step of the global model, and the model is judged.

Where the updates come from, clients in this process or hospitals behind a network, is not known here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from wardround.aggregators.base import Aggregator
from wardround.attacks.campaign import Campaign
from wardround.datasets.base import Dataset, Split, Task
from wardround.errors import ConfigError
from wardround.federation.evaluation import evaluate, predict
from wardround.federation.practice_ground import Server
from wardround.federation.rounds import RoundResult, Schedule
from wardround.privacy.protection import Protection
from wardround.randomness import numpy_generator, seed_for
from wardround.records import ClientRecord, LeftOut
from wardround.training.base import ClientData, ClientTask, Trainer, TrainingParams
from wardround.updates import Aggregation, Layout, Updates

__all__ = ["ServerHalf"]

ROOT = "server-root"


class ServerHalf:
    """The global model, the rule, and the server's own data where it has any."""

    protection: Protection
    """How updates are protected on their way: whoever knows where they come from sets it up."""

    def __init__(
        self,
        dataset: Dataset | None,
        model: nn.Module,
        rule: Aggregator,
        campaign: Campaign,
        trainer: Trainer | None,
        training: TrainingParams,
        schedule: Schedule,
    ) -> None:
        self.model, self.rule, self.schedule, self.training = model, rule, schedule, training
        self.campaign = campaign  # who attacks and when: for the record only
        self.layout = Layout.of(model)
        self.tensors = model.state_dict()
        self.weights = self.layout.flatten(self.tensors).clone()
        self.previous_weights: Tensor | None = None
        self.own_data = dataset
        self.validation_rows, self.root = self._hold_back_root()
        self.server = self._own_side(trainer)

    def _hold_back_root(self) -> tuple[Tensor, ClientData | None]:
        """The trusted samples come from validation, never from test or a client, and are not validated on."""
        if self.own_data is None:
            return torch.empty(0, dtype=torch.long), None
        split = self.own_data.validation
        order = torch.from_numpy(numpy_generator(self.schedule.seed, "root").permutation(len(split)))
        if not (self.rule.needs_root_update or self.rule.needs_server):
            return order.sort().values, None
        root = order[: self.schedule.root_samples].sort().values
        rest = order[self.schedule.root_samples :].sort().values
        return rest, ClientData(split.inputs, root, split.targets[root])

    def _own_side(self, trainer: Trainer | None) -> Server | None:
        """The server's own tools, for a rule that asks for them."""
        if not self.rule.needs_server:
            return None
        if self.root is None or self.own_data is None or trainer is None:
            raise ConfigError(f"{self.rule.name} practises on root data, but does not ask for any")
        policy = self.rule.client_policy
        return Server(
            self.own_data,
            self.root,
            self.validation_rows,
            self.model,
            trainer,
            self.training,
            self.schedule.rounds,
            self.schedule.seed,
            self.rule.practice_attacks,
            self.training.prox_mu if policy.prox_mu is None else policy.prox_mu,
            policy.local_batch_norm,
        )

    def root_tasks(self, round: int) -> list[ClientTask]:
        """The server's own training of a round, where the rule needs it."""
        if self.root is None or not self.rule.needs_root_update:
            return []
        return [ClientTask(ROOT, self.root, seed_for(self.schedule.seed, "train", round, ROOT))]

    def _aggregate(
        self, rule: Aggregator, updates: Updates, round: int, root_update: Tensor | None
    ) -> Aggregation:
        server = None if self.server is None else self.server.at(self.weights)
        return rule.aggregate(updates, round, self.weights, root_update, server)

    def _settle(
        self, round: int, updates: Updates, result: Aggregation, seconds: dict[str, float]
    ) -> RoundResult:
        """Move the model on by what the rule made of the round."""
        self.previous_weights = self.weights
        if result.skipped is None:
            self.weights = self.weights + self.schedule.server_lr * result.delta.to(self.weights.dtype)
        return RoundResult(
            round,
            seconds,
            self._client_lines(updates, result, round),
            skipped=result.skipped,
            left_out={client: LeftOut("dropped", reason) for client, reason in result.dropped.items()},
        )

    def _client_lines(self, updates: Updates, result: Aggregation, round: int) -> list[ClientRecord]:
        def column(values: Tensor | None) -> list[Any]:
            return [None] * len(updates) if values is None else values.tolist()

        own = {name: values.tolist() for name, values in result.columns.items()}
        if "norm" not in own and self.protection.params.mode == "plaintext":  # else nobody may know it
            own["norm"] = updates.norms.tolist()
        own |= {f"reported_{name}": values.tolist() for name, values in updates.metrics.items()}
        lines = zip(
            updates.clients,
            updates.num_samples.tolist(),
            column(result.weights),
            column(result.scores),
            column(result.flags),
            strict=True,
        )
        return [
            ClientRecord(
                round,
                client,
                "dropped" if client in result.dropped else "ok",
                result.dropped.get(client),
                byzantine=client in self.campaign.byzantine,
                attacking=client in self.campaign.byzantine and self.campaign.active(round),
                num_samples=int(samples) if math.isfinite(samples) else samples,
                weight=weight,
                score=score,
                flag=flag,
                columns={name: values[i] for name, values in own.items()},
            )
            for i, (client, samples, weight, score, flag) in enumerate(lines)
        ]

    def _judge(self, told: RoundResult, weights: Tensor | None = None) -> None:
        """Test and validation metrics of the global model (or of other weights in its place)."""
        dataset = self.own_data
        if dataset is None:
            return
        weights = self.weights if weights is None else weights
        told.metrics = self._evaluate(weights, dataset.test)
        for backdoor in self.campaign.attack.backdoors:
            told.metrics["attack_success"] = self._given_the_target(backdoor, dataset, triggered=True)
            told.metrics["attack_success_without_trigger"] = self._given_the_target(
                backdoor, dataset, triggered=False
            )
        told.validation = self._evaluate(weights, dataset.validation, self.validation_rows)

    def _given_the_target(self, backdoor: Any, dataset: Dataset, triggered: bool) -> float:
        """Share of test samples of other classes that are given the backdoor's target, with and without trigger.

        Only the difference is the attack's: a model that says the target to everyone needs no trigger.
        """
        test = dataset.test  # the model holds the global weights just now
        logits = predict(self.model, dataset, backdoor.trigger(test.inputs) if triggered else test.inputs)
        if dataset.task is Task.MULTICLASS:
            return backdoor.success(logits.argmax(1), test.targets)
        return backdoor.success((logits > 0).to(test.targets.dtype).view_as(test.targets), test.targets)

    def _evaluate(self, weights: Tensor, split: Split, rows: Any = None) -> dict[str, float]:
        assert self.own_data is not None
        with torch.no_grad():
            for name, value in self.layout.unflatten(weights).items():
                self.tensors[name].copy_(value)
        return evaluate(self.model, self.own_data, split, rows)

    def server_state(self) -> dict[str, Any]:
        """All that a later round's server depends on. Random draws are named by (seed, round, client): no state."""
        return {
            "weights": self.weights,
            "previous_weights": self.previous_weights,
            "rule": self.rule.state_dict(),
        }

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Go on after the round whose state this is."""
        self.weights, self.previous_weights = state["weights"], state["previous_weights"]
        self.rule.load_state_dict(state["rule"])
