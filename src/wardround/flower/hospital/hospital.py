"""A hospital of a federation: its data stay here; an order comes in, a reply goes out.

Knows nothing of connections: the client app calls it in its own process, the trainer daemon in another.
"""

from __future__ import annotations

import io
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wardround import attacks, datasets
from wardround.aggregators.base import ClientPolicy
from wardround.attacks.campaign import Campaign
from wardround.datasets import Dataset, partition
from wardround.errors import ConfigError, WardroundError
from wardround.federation.client import Client, LocalWork, client_data, train_together
from wardround.federation.evaluation import Evaluator
from wardround.federation.model_factory import build_model, build_trainer
from wardround.flower.config import FederationConfig, HospitalConfig
from wardround.flower.messages import EVALUATE, HELLO, SAMPLES, TRAIN, VALIDATION, Note, pack, unpack
from wardround.flower.orders import dp_of, work_key
from wardround.privacy.encryption.sealing import Sealed, Sealer
from wardround.privacy.encryption.steward import Deposit
from wardround.privacy.encryption.vault import key_path
from wardround.runs.runner import build_campaign, load_and_partition
from wardround.threads import one_thread
from wardround.training.base import ClientData, Trainer, TrainingParams
from wardround.updates import Layout

__all__ = ["Hospital"]

PLAIN = "plaintext"


@dataclass(frozen=True, eq=False)
class _Setup:
    """What the work of an order needs: built once, used for every order with the same work."""

    key: str
    evaluator: Evaluator
    work: LocalWork


class Hospital:
    """One client of a federation: `reply` to an order (`answer` where both are bytes)."""

    def __init__(self, client: Client, engine: str, device: str, repeatable: bool = False) -> None:
        """`repeatable`: noise follows from the run's seed, as in a simulation, instead of the system's randomness."""
        self.client, self.engine, self.device, self.repeatable = client, engine, device, repeatable
        self.previous_weights: Tensor | None = None
        """The last global weights; kept only by a hospital that plays an attacker."""
        self._setup: _Setup | None = None

    @classmethod
    def from_config(cls, config: HospitalConfig) -> Hospital:
        """The hospital that `hospital.yaml` describes, with its data loaded."""
        section = dict(config.dataset)
        dataset = datasets.create(section.pop("name"), **section).load(config.seed)
        if config.partition is None:
            everything = torch.arange(len(dataset.train))
            data = ClientData(dataset.train.inputs, everything, dataset.train.targets)
            test_rows = np.arange(len(dataset.test))
        else:
            section = dict(config.partition)
            assignment = partition.create(section.pop("name"), **section).assign(
                dataset.train, dataset.test, config.seed
            )
            assert config.part is not None  # the configuration was checked
            data = client_data(dataset, assignment)[assignment.clients[config.part]]
            test_rows = assignment.test[config.part]
        drill = config.run_attack()
        window = drill.window()
        attack, params = drill.attack_parameters()
        byzantine = [config.name] if config.attack is not None else []
        campaign = Campaign(
            attacks.create(attack, **params), byzantine, window.start, window.end, config.seed
        )
        sealer = None if config.steward_key is None else Sealer.from_file(config.steward_key, config.name)
        client = Client(config.name, dataset, data, test_rows, campaign, sealer=sealer)
        return cls(client, config.engine, config.device)

    @classmethod
    def simulated(cls, config: FederationConfig, part: int) -> Hospital:
        """One client of a simulation: the part of the server's dataset that a run would give it."""
        if not config.has_partition:
            raise ConfigError("a simulation deals out the server's dataset: add dataset and partition")
        run = config.run
        dataset, assignment = load_and_partition(run)
        name = assignment.clients[part]
        keys = run.privacy.steward_keys
        client = Client(
            name,
            dataset,
            client_data(dataset, assignment)[name],
            assignment.test[part],
            build_campaign(run, assignment.clients),
            sealer=None if keys is None else Sealer.from_file(key_path(Path(keys), name), name),
        )
        return cls(client, run.engine, run.device, repeatable=True)

    def answer(self, request: bytes) -> bytes:
        """Bytes in, bytes out: for the trainer that is kept running."""
        return pack(self.reply(unpack(request)))

    def reply(self, order: Note) -> Note:
        """Do what an order asks."""
        work = {HELLO: self._introduce, TRAIN: self._train, EVALUATE: self._evaluate}
        kind = order.head.get("kind")
        if kind not in work:
            raise WardroundError(f"an order of kind {kind!r}; known: {', '.join(work)}")
        with one_thread():
            return work[kind](order)

    def _introduce(self, order: Note) -> Note:
        dataset = self.client.dataset
        return Note(
            {
                "name": self.client.name,
                "samples": len(self.client.data),
                "task": dataset.task.value,
                "class_names": list(dataset.class_names),
                "input_shape": list(dataset.input_shape),
                "feature_names": list(dataset.feature_names),
            }
        )

    def _train(self, order: Note) -> Note:
        client, head, round = self.client, order.head, int(order.head["round"])
        work, weights = self._prepare(order).work, self._weights(order)
        self._check_mode(head)
        client.dp = dp_of(head)
        policy = ClientPolicy(head["policy"]["prox_mu"], head["policy"]["local_batch_norm"])
        honest, loss = train_together([client], work, weights, round, policy)
        matrix, reported = client.campaign.strike(
            honest,
            [client.name],
            {"loss": loss},
            round,
            weights,
            self.previous_weights,
            total_clients=int(head["clients"]),
        )
        if client.campaign.byzantine:
            self.previous_weights = weights
        metrics = {name: float(values[0]) for name, values in reported.items()}
        update = matrix[0].numpy()
        if client.sealer is None:
            arrays = {"update": update}
        else:
            arrays = _arrays(client.sealer.seal(update.astype(np.float64), str(head["session"]), round))
        return Note({}, {SAMPLES: len(client.data), **metrics}, arrays)

    def _check_mode(self, head: Mapping[str, Any]) -> None:
        """Refuse an order that is for another mode than the hospital's own."""
        sealer, asked = self.client.sealer, head.get("mode", PLAIN)
        mode = PLAIN if sealer is None else sealer.mode
        if asked != mode:
            own = "it has no steward_key" if sealer is None else f"its steward_key is for {mode}"
            raise WardroundError(f"the order is for updates in mode {asked}, but {own}")

    def _evaluate(self, order: Note) -> Note:
        """The global model (with this hospital's own BatchNorm, where that stays here) on its own samples."""
        client, setup = self.client, self._prepare(order)
        weights = client.own_weights(self._weights(order), setup.work.layout)
        test = setup.evaluator.on_test_rows(weights, client.test_rows)
        validation = setup.evaluator.on_validation(weights)
        measured = test | {f"{VALIDATION}{name}": value for name, value in validation.items()}
        known = {name: value for name, value in measured.items() if math.isfinite(value)}
        return Note({}, {SAMPLES: len(client.test_rows), **known})

    def _prepare(self, order: Note) -> _Setup:
        """Build the network and its trainer where the work of the order is new."""
        head, key = order.head, work_key(order.head)
        if self._setup is None or key != self._setup.key:
            model, trainer, training = _build(self.client.dataset, key, self.engine, self.device)
            # What the server could repeat would protect nobody from it: noise needs randomness of our own.
            secret = head.get("dp") is not None and not self.repeatable
            seed = secrets.randbits(62) if secret else int(head["seed"])
            work = LocalWork(trainer, training, Layout.of(model), int(head["rounds"]), seed)
            self._setup = _Setup(key, Evaluator(model, self.client.dataset), work)
        return self._setup

    def _weights(self, order: Note) -> Tensor:
        """The global weights of an order."""
        size = self._prepare(order).work.layout.size
        weights = order.arrays.get("weights")
        if weights is None or weights.shape != (size,):
            raise WardroundError(
                f"the weights do not fit the model on this hospital's data: "
                f"{None if weights is None else weights.shape} instead of {(size,)}"
            )
        return torch.from_numpy(weights.copy())

    def memory(self) -> bytes:
        """What the next round needs where another process may do it: own BatchNorm, used pads, an attacker's."""
        client = self.client
        attack, sealed = client.campaign.state_dict(), {} if client.sealer is None else client.sealer.used
        if not (client.batch_norm is not None or attack or sealed or self.previous_weights is not None):
            return b""
        state = {
            "batch_norm": client.batch_norm,
            "attack": attack,
            "previous_weights": self.previous_weights,
            "sealed": sealed,
        }
        content = io.BytesIO()
        torch.save(state, content)
        return content.getvalue()

    def recall(self, content: bytes) -> None:
        """Continue from what `memory` gave; from nothing, where it gave nothing."""
        state = torch.load(io.BytesIO(content), weights_only=True) if content else {}
        client = self.client
        client.batch_norm = state.get("batch_norm")
        self.previous_weights = state.get("previous_weights")
        if client.sealer is not None:
            client.sealer.used = state.get("sealed", {})
        if state.get("attack"):
            client.campaign.load_state_dict(state["attack"])


@lru_cache(maxsize=4)
def _build(dataset: Dataset, key: str, engine: str, device: str) -> tuple[nn.Module, Trainer, TrainingParams]:
    """The network and its trainer, shared by all hospitals of a process that have the same data and work."""
    head = json.loads(key)
    training, dp = TrainingParams(**head["training"]), dp_of(head)
    classes = len(dataset.class_names)
    model = build_model(head["model"], dataset.input_shape, dataset.task.value, classes, head["seed"], dp)
    return model, build_trainer(model, dataset, training, dp, engine, device, workers=1), training


def _arrays(sealed: Sealed) -> dict[str, np.ndarray]:
    """An encrypted update as it travels."""
    if isinstance(sealed, Deposit):
        return {"ciphertext": _bytes(sealed.ciphertext), "tag": _bytes(sealed.tag)}
    return {"ciphertext": _bytes(sealed)}


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)
