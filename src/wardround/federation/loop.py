"""One federation: the server's state, and the one place where the order of a round is written down.

    choose ▸ check the privacy budget ▸ train (each client adds its own noise) ▸ fault ▸ attack ▸ seal or mask ▸
    validate and aggregate ▸ apply ▸ evaluate ▸ record

Noise comes before the attack: it is part of what an honest client does before anything leaves it, so an attacker that
sees other clients' updates sees them with their noise, and is not bound to add any to its own. Encryption and masks
come last, after the attack: an attacker encrypts what it has made up.

Where the clients are, in this process or behind a network, is not known here: the loop *has* a `Clients`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wardround.aggregators.base import Aggregator
from wardround.attacks.campaign import Campaign
from wardround.errors import ConfigError, WardroundError
from wardround.faults import BrokenClients
from wardround.federation.clients import Clients, Evaluation, Received, TooFewReplies, TrainOrder
from wardround.federation.control_variates import ClientControls, server_control
from wardround.federation.evaluation import Evaluator
from wardround.federation.outcome_split import splits_by_outcome
from wardround.federation.practice_ground import RootPracticeGround
from wardround.federation.random_probe import RandomProbe
from wardround.federation.robustness import empirical_kappa
from wardround.federation.schedule import Schedule, peak_memory_mb, timed
from wardround.federation.server_data import ServerData
from wardround.federation.server_optimizer import ServerOptimizer
from wardround.privacy.accounting import Release
from wardround.privacy.encryption.refusals import KeysSpent
from wardround.privacy.protection import Protection
from wardround.randomness import seed_for
from wardround.records import ClientRecord, LeftOut, RoundRecord
from wardround.training.base import ClientTask, Trainer, TrainingParams, bias_reach, learning_rate
from wardround.training.dp_sgd import poisson_steps
from wardround.updates import Aggregation, Layout, Updates

__all__ = ["Federation"]

ROOT = "server-root"
"""The name under which the server trains on its own samples."""
NOT_FINITE = "the aggregated update is not finite"


def nobody() -> dict[str, str]:
    """No client is in quarantine."""
    return {}


class Federation:
    """The server's state of a run, and the one step it is made of."""

    def __init__(
        self,
        clients: Clients,
        model: nn.Module,
        rule: Aggregator,
        training: TrainingParams,
        schedule: Schedule,
        protection: Protection,
        campaign: Campaign,
        trainer: Trainer | None = None,
        server_data: ServerData | None = None,
        evaluator: Evaluator | None = None,
        quarantined: Callable[[], Mapping[str, str]] = nobody,
        knows_attackers: bool = False,
        broken: BrokenClients | None = None,
    ) -> None:
        """Put a federation together from its parts.

        Args:
            clients: who trains, wherever they are.
            model: the network; its weights are the initial global model.
            rule: aggregates the updates.
            training: how clients, and the server on its root data, train locally.
            schedule: rounds, participation, evaluation, seed.
            protection: budget and encryption.
            campaign: who attacks and when: the ground truth for the record, never looked at by the rule.
            trainer: trains on the server's own samples, where the rule needs that.
            server_data: the server's own samples; None where it has none.
            evaluator: measures the model on them; None where only the clients can.
            quarantined: asked every round: client → why it is not to be asked.
            knows_attackers: `campaign` is the whole truth, as in a simulation; a federation has only what was said.
            broken: who has a fault and when, likewise; None: nobody, as far as anybody knows.
        """
        self.clients, self.model, self.rule = clients, model, rule
        self.training, self.schedule, self.protection = training, schedule, protection
        self.campaign, self.trainer, self.quarantined = campaign, trainer, quarantined
        self.server_data, self.evaluator = server_data, evaluator
        self.knows_attackers = knows_attackers
        self.broken = broken or BrokenClients.none()
        if rule.needs_attackers and not knows_attackers:
            raise ConfigError(
                f"aggregator '{rule.name}' is told who attacks, which only a simulation knows: use a rule that is not"
            )
        self.layout = Layout.of(model)
        self.weights = self.layout.flatten(model.state_dict()).clone()
        self.previous_weights: Tensor | None = None
        self.server_optimizer = ServerOptimizer(schedule.server, self.layout, schedule.server_lr)
        self.control = torch.zeros_like(self.weights) if training.method == "scaffold" else None
        """SCAFFOLD's control variate of the server."""
        self.client_controls = ClientControls(training, self.layout)
        self.practice_ground = self._practice_ground()
        self.probe = None
        if rule.uses_predictions and server_data is not None:
            self.probe = RandomProbe(model, server_data.dataset, schedule.seed)

    def _practice_ground(self) -> RootPracticeGround | None:
        """The server's own tools, for a rule that asks for them."""
        if not self.rule.needs_practice_ground:
            return None
        data = self.server_data
        if data is None or data.root is None or self.trainer is None:
            raise ConfigError(f"{self.rule.name} practises on root data, but does not ask for any")
        return RootPracticeGround(
            data.dataset,
            data.root,
            data.validation_rows,
            self.model,
            self.trainer,
            self.training,
            self.schedule.rounds,
            self.schedule.seed,
            self.rule.practice_attacks,
            self._prox_mu,
            self.rule.client_policy.local_batch_norm,
        )

    @property
    def _prox_mu(self) -> float:
        asked = self.rule.client_policy.prox_mu
        return self.training.prox_mu if asked is None else asked

    @property
    def _by_outcome(self) -> bool:
        """Are updates split by outcome?"""
        outputs = math.prod(self.layout.shapes[-1][:1])
        return splits_by_outcome(
            self.rule, self.training, self.protection, self.clients.describe().task, outputs
        )

    def step(self, round: int) -> RoundRecord:
        """One round; tried again while too few clients reply, as long as the clients are willing to wait."""
        attempt = 1
        while True:
            try:
                return self._round(round)
            except TooFewReplies as few:
                self.clients.wait_for_retry(round, attempt, str(few))
                attempt += 1

    def _round(self, round: int) -> RoundRecord:
        seconds: dict[str, float] = {}
        quarantined = self.quarantined()
        chosen = self.clients.choose(round, quarantined)
        releases = self._releases(chosen)
        self.protection.check_budget(round, releases)
        with timed(seconds, "train"):
            root_update = self._train_root(round)
        order = self._order(round, chosen, root_update)
        received = self.clients.train(order)
        received = replace(received, updates=self._complete(received.updates, round))
        for phase, taken in received.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + taken
        with timed(seconds, "aggregate"):
            result = self._aggregate(received, round, root_update)
        self._apply(result)
        self._move_control(round, received, result, root_update)
        privacy = self.protection.book(chosen, releases)
        with timed(seconds, "evaluate"):
            evaluation = self._evaluate(round) if self.schedule.evaluates(round) else Evaluation()
        left_out = self._left_out(result, received, quarantined)
        diverged = self._divergence(received.updates, result, evaluation)
        return RoundRecord(
            round,
            seconds,
            evaluation.metrics,
            evaluation.validation,
            evaluation.per_client,
            result.skipped,
            left_out,
            privacy,
            peak_memory_mb(),
            self._client_records(round, received.updates, result, left_out),
            diverged=diverged,
            details=evaluation.details,
            kappa=self._kappa(round, received.updates, result),
            estimated_f=result.estimated_f,
            warning=result.warning,
        )

    def _kappa(self, round: int, updates: Updates, result: Aggregation) -> float | None:
        """The robustness coefficient that the rule reached; None where who attacked or the rows are not known."""
        if not self.knows_attackers or self.protection.hides_updates:
            return None
        return empirical_kappa(updates, result, self._not_honest(round))

    def _not_honest(self, round: int) -> frozenset[str]:
        """Ground truth of a simulation: the clients whose rows of this round are not what honest ones would send."""
        attacking = frozenset(self.campaign.byzantine) if self.campaign.active(round) else frozenset()
        return attacking | self.broken.failing(round)

    def _releases(self, chosen: Mapping[str, int]) -> dict[str, Release]:
        """What the round releases of each client, given how many samples it has and how it trains."""
        size, epochs = self.training.batch_size, self.training.epochs
        return self.protection.releases(chosen, lambda samples: poisson_steps(samples, size, epochs))

    def _train_root(self, round: int) -> Tensor | None:
        """The server's own update, where the rule needs it."""
        if not self.rule.needs_root_update or self.server_data is None or self.trainer is None:
            return None
        assert self.server_data.root is not None  # the rule asked for it
        task = ClientTask(ROOT, self.server_data.root, seed_for(self.schedule.seed, "train", round, ROOT))
        lr = learning_rate(self.training, round, self.schedule.rounds)
        return self.trainer.train(self.weights, [task], lr, self._prox_mu).matrix[0]

    def _order(self, round: int, chosen: Mapping[str, int], root_update: Tensor | None) -> TrainOrder:
        def try_rule(updates: Updates) -> Aggregation:
            rule = copy.deepcopy(self.rule)  # asking must not teach the real rule anything
            return self._ask(rule, self._complete(updates, round), round, root_update)

        def minimum_updates(replies: int) -> int:
            return max(self.rule.minimum_clients(replies), self.protection.minimum_updates)

        return TrainOrder(
            round,
            chosen,
            self.weights,
            self.previous_weights,
            replace(self.rule.client_policy, by_outcome=self._by_outcome),
            minimum_updates,
            self.protection.encrypted,
            try_rule,
            partial(self.protection.weigh_reports, round) if self.protection.masked else None,
            self.control,
        )

    def _ask(self, rule: Aggregator, updates: Updates, round: int, root_update: Tensor | None) -> Aggregation:
        practice = None if self.practice_ground is None else self.practice_ground.at(self.weights)
        attackers = self._not_honest(round) if rule.needs_attackers else None
        return rule.aggregate(updates, round, self.weights, root_update, practice, self.probe, attackers)

    def _complete(self, updates: Updates, round: int) -> Updates:
        """Add what the server knows to updates that are split: SCAFFOLD's corrections, and how far parts can reach."""
        if updates.parts is None:
            return updates
        lr = learning_rate(self.training, round, self.schedule.rounds)
        if self.control is not None:
            updates = self.client_controls.add_corrections(updates, self.control, lr)
        assert updates.parts is not None
        batch_norm = bool(self.layout.batch_norm_mask.any())
        reach = bias_reach(self.training, updates.parts.counts, updates.num_samples, lr, batch_norm)
        return replace(updates, parts=replace(updates.parts, reach=reach))

    def _aggregate(self, received: Received, round: int, root_update: Tensor | None) -> Aggregation:
        updates, size, dtype = received.updates, self.layout.size, self.weights.dtype
        if received.summed is not None:
            result = self.protection.settle(updates, received.summed, round, size, dtype)
        elif received.sealed is None:
            result = self._ask(self.rule, updates, round, root_update)
        else:
            try:
                result = self.protection.open(updates, received.sealed, round, received.order, size, dtype)
            except KeysSpent:  # waiting does not help
                raise
            except WardroundError as error:  # the steward cannot be reached: it may be back in a while
                raise TooFewReplies(str(error)) from None
        for client, reason in received.problems.items():
            if client in result.dropped:
                result.dropped[client] = reason
        return result

    def _apply(self, result: Aggregation) -> None:
        """Move the global model by the aggregated update; one that would break the model skips the round."""
        self.previous_weights = self.weights
        if result.skipped is not None:
            return
        before = self.server_optimizer.state_dict()
        moved = self.weights + self.server_optimizer.step(result.delta.to(self.weights.dtype))
        if bool(torch.isfinite(moved).all()):
            self.weights = moved
        else:
            self.server_optimizer.load_state_dict(before)
            result.skipped = NOT_FINITE
            result.delta = torch.zeros_like(self.weights)
            if result.weights is not None:
                result.weights = torch.zeros_like(result.weights)

    def _move_control(
        self, round: int, received: Received, result: Aggregation, root_update: Tensor | None
    ) -> None:
        """Let SCAFFOLD's control variate follow what the rule made of the round."""
        if self.control is None:
            return
        updates, lr = received.updates, learning_rate(self.training, round, self.schedule.rounds)
        clients = len(self.clients.describe().clients)

        def aggregate(same_steps: Updates) -> Aggregation:
            return self._ask(copy.deepcopy(self.rule), same_steps, round, root_update)

        self.control = server_control(
            self.control, updates, result, self.training, self.layout, lr, clients, aggregate
        )
        if updates.parts is not None:
            self.client_controls.follow(updates, result, lr)

    def _divergence(self, updates: Updates, result: Aggregation, evaluation: Evaluation) -> str | None:
        """Why there is no longer a model to speak of; None where there is one."""
        if result.skipped == NOT_FINITE:
            return NOT_FINITE
        if len(updates) and not self.protection.hides_updates and not torch.isfinite(updates.norms).any():
            return "no client sent a finite update"
        losses = [
            metrics["loss"]
            for metrics in (evaluation.metrics, evaluation.validation)
            if metrics and "loss" in metrics
        ]
        reason = evaluation.details.reasons.get("loss")
        if reason is not None and reason.kind == "no-rows":
            return None
        if losses and all(loss is None or not math.isfinite(loss) for loss in losses):
            return "the model's output is not finite"
        return None

    def _evaluate(self, round: int) -> Evaluation:
        """By the server's own data; by the clients' where it has none, or where BatchNorm stays with them.

        After the last round the clients say how good the model is for each of them.
        """
        local_batch_norm = self.rule.client_policy.local_batch_norm
        if self.evaluator is None or local_batch_norm:
            return self.clients.evaluate(round, self.weights)
        last = round == self.schedule.rounds
        own = self.clients.evaluate(round, self.weights) if last else Evaluation()
        measured, validation, details = self.evaluator.measure(self.weights)
        details = replace(details, per_client_reasons=own.details.per_client_reasons)
        return Evaluation(measured.metrics, validation.metrics, own.per_client, details)

    def usable_weights(self) -> Tensor | None:
        """The model as others can use it; None where a part of it stays with the clients and nobody else knows it."""
        stays = self.rule.client_policy.local_batch_norm and bool(self.layout.batch_norm_mask.any())
        return self.clients.usable_weights(self.weights) if stays else self.weights

    def _left_out(
        self, result: Aggregation, received: Received, quarantined: Mapping[str, str]
    ) -> dict[str, LeftOut]:
        left_out = {client: LeftOut("dropped", reason) for client, reason in result.dropped.items()}
        left_out |= {client: LeftOut("absent", reason) for client, reason in received.absent.items()}
        # A client that never took part has no line: it was set aside before it joined.
        known = {
            client: why for client, why in quarantined.items() if self.clients.samples(client) is not None
        }
        return left_out | {client: LeftOut("quarantined", why) for client, why in sorted(known.items())}

    def _client_records(
        self, round: int, updates: Updates, result: Aggregation, left_out: Mapping[str, LeftOut]
    ) -> list[ClientRecord]:
        """One record per client that sent something, then one for everybody else who was left out."""

        def column(values: Tensor | None) -> list[Any]:
            return [None] * len(updates) if values is None else values.tolist()

        own = {name: values.tolist() for name, values in result.columns.items()}
        if "norm" not in own and not self.protection.hides_updates:  # else nobody may know it
            own["norm"] = updates.norms.tolist()
        own |= {f"reported_{name}": values.tolist() for name, values in updates.metrics.items()}
        values = zip(
            updates.num_samples.tolist(),
            column(result.weights),
            column(result.scores),
            column(result.flags),
            strict=True,
        )
        records = [
            self._client_record(
                round,
                client,
                left_out.get(client),
                int(samples) if math.isfinite(samples) else samples,
                weight,
                score,
                flag,
                {name: column[row] for name, column in own.items()},
            )
            for row, (client, (samples, weight, score, flag)) in enumerate(
                zip(updates.clients, values, strict=True)
            )
        ]
        replied = set(updates.clients)
        return records + [
            self._client_record(
                round,
                client,
                why,
                self.clients.samples(client),
                0.0 if why.status == "quarantined" else None,
            )
            for client, why in left_out.items()
            if client not in replied
        ]

    def _client_record(
        self,
        round: int,
        client: str,
        left_out: LeftOut | None,
        num_samples: float | None,
        weight: float | None = None,
        score: float | None = None,
        flag: bool | None = None,
        columns: Mapping[str, float | None] | None = None,
    ) -> ClientRecord:
        byzantine = client in self.campaign.byzantine
        return ClientRecord(
            round,
            client,
            "ok" if left_out is None else left_out.status,
            None if left_out is None else left_out.reason,
            byzantine,
            byzantine and self.campaign.active(round),
            num_samples,
            weight,
            score,
            flag,
            client in self.broken.clients,
            client in self.broken.failing(round),
            columns or {},
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a later round depends on. Random draws are named by (seed, round, client): they need no state."""
        return {
            "weights": self.weights,
            "previous_weights": self.previous_weights,
            "rule": self.rule.state_dict(),
            "clients": self.clients.state_dict(),
            "privacy": self.protection.state_dict(),
            "server_optimizer": self.server_optimizer.state_dict(),
            **({} if self.control is None else {"control": self.control}),
            **({"client_controls": own} if (own := self.client_controls.state_dict()) else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the round whose state this is."""
        self.weights, self.previous_weights = state["weights"], state["previous_weights"]
        self.rule.load_state_dict(state["rule"])
        self.clients.load_state_dict(state["clients"])
        self.protection.load_state_dict(state["privacy"])
        self.server_optimizer.load_state_dict(
            state.get("server_optimizer", {})
        )  # older checkpoints have none
        self.control = state.get("control")
        self.client_controls.load_state_dict(state.get("client_controls", {}))
