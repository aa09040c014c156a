"""A hospital's side: its data stay here; an order comes in, an answer goes out.

Knows nothing of connections: the client app calls it in its own process, the trainer daemon in another.
"""

from __future__ import annotations

import io
import math
import secrets
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from wardround import attacks, datasets
from wardround.aggregators.base import ClientPolicy
from wardround.attacks.campaign import Campaign
from wardround.datasets import Dataset, partition
from wardround.errors import ConfigError, WardroundError
from wardround.federation.client_half import ClientHalf
from wardround.federation.evaluation import evaluate
from wardround.federation.loop import client_data
from wardround.flower.config import FederationConfig, HospitalConfig
from wardround.flower.hospital.sealing import Lock, check_mode
from wardround.flower.messages import EVALUATE, HELLO, SAMPLES, TRAIN, VALIDATION, Note, pack, unpack
from wardround.flower.workshop import trained_for, work_of
from wardround.privacy.dp import clip_and_noise
from wardround.privacy.encryption.vault import key_path
from wardround.privacy.params import DpParams
from wardround.runs.runner import campaign_of, dealt
from wardround.threads import one_thread
from wardround.training.base import ClientData
from wardround.updates import Layout

__all__ = ["Hospital"]


class Hospital(ClientHalf):
    """One client of a federation: `reply` to an order (`answer` where both are bytes)."""

    def __init__(self, config: HospitalConfig) -> None:
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
        lock = None if config.steward_key is None else Lock(config.steward_key, config.name)
        self._move_in(config.name, dataset, data, test_rows, campaign, config.engine, config.device, lock)

    @classmethod
    def simulated(cls, config: FederationConfig, part: int) -> Hospital:
        """One client of a simulation: the part of the server's dataset that a run would deal it."""
        if not config.has_partition:
            raise ConfigError("a simulation deals out the server's dataset: add dataset and partition")
        dataset, assignment = dealt(config.run)
        name = assignment.clients[part]
        hospital = cls.__new__(cls)
        hospital._move_in(
            name,
            dataset,
            client_data(dataset, assignment)[name],
            assignment.test[part],
            campaign_of(config.run, assignment.clients),
            config.run.engine,
            config.run.device,
            None
            if config.run.privacy.steward_keys is None
            else _lock_of(config.run.privacy.steward_keys, name),
            repeatable=True,
        )
        return hospital

    def _move_in(
        self,
        name: str,
        dataset: Dataset,
        data: ClientData,
        test_rows: np.ndarray,
        campaign: Campaign,
        engine: str,
        device: str,
        lock: Lock | None,
        repeatable: bool = False,
    ) -> None:
        self.name, self.own, self.test_rows = name, data, test_rows
        self.local_data, self.campaign = dataset, campaign
        self.engine, self.device, self.lock, self.repeatable = engine, device, lock, repeatable
        self.local_batch_norm = {}
        self.last_weights: Tensor | None = None
        self.model: nn.Module
        self._work: str | None = None

    def answer(self, request: bytes) -> bytes:
        """Bytes in, bytes out: for the trainer that is kept running."""
        return pack(self.reply(unpack(request)))

    def reply(self, order: Note) -> Note:
        """Do what an order asks."""
        work = {HELLO: self._introduce, TRAIN: self._train, EVALUATE: self._judge_here}
        kind = order.head.get("kind")
        if kind not in work:
            raise WardroundError(f"an order of kind {kind!r}; known: {', '.join(work)}")
        with one_thread():
            return work[kind](order)

    def _introduce(self, order: Note) -> Note:
        dataset = self.local_data
        return Note(
            {
                "name": self.name,
                "samples": len(self.own),
                "task": dataset.task.value,
                "class_names": list(dataset.class_names),
                "input_shape": list(dataset.input_shape),
                "feature_names": list(dataset.feature_names),
            }
        )

    def _train(self, order: Note) -> Note:
        self._prepare(order)
        head, round = order.head, int(order.head["round"])
        policy = ClientPolicy(head["policy"]["prox_mu"], head["policy"]["local_batch_norm"])
        matrix, loss = self.train_clients([self.name], round, policy)
        dp = None if head.get("dp") is None else DpParams(**head["dp"])
        if dp is not None and dp.unit == "client":
            matrix = clip_and_noise(matrix[0], dp.clip, dp.multiplier, self.seed, round, self.name)[None]
        matrix, told = self.campaign.strike(
            matrix,
            [self.name],
            {"loss": loss},
            round,
            self.weights,
            self.last_weights,
            total_clients=int(head["clients"]),
        )
        if self.campaign.byzantine:
            self.last_weights = self.weights
        metrics = {name: float(values[0]) for name, values in told.items()}
        update = matrix[0].numpy()
        if self.lock is None:
            check_mode(head, "plaintext")
            return Note({}, {SAMPLES: len(self.own), **metrics}, {"update": update})
        return Note({}, {SAMPLES: len(self.own), **metrics}, self.lock.seal(update, head))

    def _judge_here(self, order: Note) -> Note:
        """The global model (with this hospital's own BatchNorm, where that stays here) on its own samples."""
        self._prepare(order)
        tensors = self.model.state_dict()
        with torch.no_grad():
            for name, value in self.layout.unflatten(self._start_of(self.name)).items():
                tensors[name].copy_(value)
        dataset = self.local_data
        test = evaluate(self.model, dataset, dataset.test, self.test_rows)
        validation = evaluate(self.model, dataset, dataset.validation)
        measured = test | {f"{VALIDATION}{name}": value for name, value in validation.items()}
        known = {name: value for name, value in measured.items() if math.isfinite(value)}
        return Note({}, {SAMPLES: len(self.test_rows), **known})

    def _prepare(self, order: Note) -> None:
        """Lay in the order's weights; build the network and its trainer where the work is new."""
        head = order.head
        work = work_of(head)
        if work != self._work:
            self.model, self.trainer, self.training = trained_for(
                self.local_data, work, self.engine, self.device
            )
            self.layout, self._work = Layout.of(self.model), work
            self.data, self.poisoned, self.rounds = {self.name: self.own}, {}, int(head["rounds"])
            # What the server could repeat would protect nobody from it: noise needs randomness of our own.
            secret = head.get("dp") is not None and not self.repeatable
            self.seed = secrets.randbits(62) if secret else int(head["seed"])
        weights = order.arrays.get("weights")
        if weights is None or weights.shape != (self.layout.size,):
            raise WardroundError(
                f"the weights do not fit the model on this hospital's data: "
                f"{None if weights is None else weights.shape} instead of {(self.layout.size,)}"
            )
        self.weights = torch.from_numpy(weights.copy())

    def memory(self) -> bytes:
        """What the next round needs where another process may do it: own BatchNorm, used pads, an attacker's."""
        attack, sealed = self.campaign.state_dict(), {} if self.lock is None else self.lock.used
        if not (self.local_batch_norm or attack or sealed or self.last_weights is not None):
            return b""
        state = {
            "batch_norm": self.local_batch_norm,
            "attack": attack,
            "last_weights": self.last_weights,
            "sealed": sealed,
        }
        content = io.BytesIO()
        torch.save(state, content)
        return content.getvalue()

    def recall(self, content: bytes) -> None:
        """Go on from a memory; from none, where there is none."""
        state = torch.load(io.BytesIO(content), weights_only=True) if content else {}
        self.local_batch_norm = state.get("batch_norm", {})
        self.last_weights = state.get("last_weights")
        if self.lock is not None:
            self.lock.used = state.get("sealed", {})
        if state.get("attack"):
            self.campaign.load_state_dict(state["attack"])


def _lock_of(folder: str, client: str) -> Lock:
    return Lock(key_path(Path(folder), client), client)
