"""Run one experiment: build its parts from the configuration, go round by round, survive being killed."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

import wardround
from wardround import aggregators, attacks, datasets, models, plugins
from wardround.datasets import Dataset, partition
from wardround.datasets.partition import Assignment
from wardround.federation.loop import Federation, RoundResult, Schedule, objective_of
from wardround.privacy.encryption.refusals import BudgetSpent
from wardround.privacy.pseudonyms import from_key_file
from wardround.records import SCHEMA_VERSION, RoundRecord
from wardround.runs.config import RECORD, RunConfig
from wardround.runs.folder import RunFolder
from wardround.runs.summary import summarize
from wardround.threads import one_thread
from wardround.training.base import Trainer
from wardround.training.dp_sgd import PatientTrainer, fit_for_patients
from wardround.training.engines import make_trainer

__all__ = [
    "build",
    "campaign_of",
    "class_counts",
    "concluded",
    "dataset_of",
    "dealt",
    "record",
    "rounds",
    "run",
    "schedule_of",
    "versions",
]

Listener = Callable[[RoundRecord], None]


class SteppingFederation(Protocol):
    """What goes round by round and can be kept between two of them."""

    def step(self, round: int) -> RoundResult: ...

    def state_dict(self) -> dict[str, Any]: ...


def build(config: RunConfig, workers: int | None = None) -> Federation:
    """The federation that a configuration describes, before its first round.

    `workers` bounds the processes that train; 1 where other runs use the other cores.
    """
    dataset, assignment = dealt(config)
    name, params = config.section("model")
    model = models.build_seeded(
        models.create(name, **params), dataset.input_shape, dataset.outputs, config.seed
    )
    dp = config.privacy.dp
    if dp is not None and dp.unit == "patient":
        model = fit_for_patients(model, dp)
        trainer: Trainer = PatientTrainer(model, objective_of(dataset), config.training, dp)
    else:
        trainer = make_trainer(
            model, objective_of(dataset), config.training, config.engine, config.device, workers
        )
    name, params = config.section("aggregator")
    rule = aggregators.create(name, **params)
    return Federation(
        dataset,
        assignment,
        model,
        rule,
        campaign_of(config, assignment.clients),
        trainer,
        config.training,
        schedule_of(config),
        config.privacy,
    )


def dealt(config: RunConfig) -> tuple[Dataset, Assignment]:
    """The run's dataset, and who holds what of it."""
    dataset = dataset_of(config)
    name, params = config.section("partition")
    assignment = partition.create(name, **params).assign(dataset.train, dataset.test, config.seed)
    name_of = _names(config)
    return dataset, replace(assignment, clients=tuple(name_of(client) for client in assignment.clients))


def dataset_of(config: RunConfig) -> Dataset:
    """The run's dataset, loaded."""
    return _dataset(json.dumps(config.plain()["dataset"]), config.seed)


def campaign_of(config: RunConfig, clients: Sequence[str]) -> attacks.Campaign:
    """Who attacks, when and how."""
    name, params = config.attack_parameters()
    window = config.window()
    name_of = _names(config)
    byzantine: Collection[str] = (
        # in the order given: a mixture deals its parts in that order
        [name_of(client) for client in window.clients]
        if window.clients is not None
        else attacks.draw_byzantine(clients, window.fraction, config.seed)
    )
    attack = attacks.create(name, **params)
    return attacks.Campaign(attack, byzantine, window.start, window.end, config.seed)


def schedule_of(config: RunConfig) -> Schedule:
    """When what happens."""
    return Schedule(
        config.rounds,
        config.participation,
        config.evaluate_every,
        config.server_lr,
        config.root.samples,
        config.seed,
    )


def _names(config: RunConfig) -> Callable[[str], str]:
    return from_key_file(Path(config.privacy.pseudonyms)) if config.privacy.pseudonyms else str


@lru_cache(maxsize=2)
def _dataset(section: str, seed: int) -> Dataset:
    """Loaded once for all runs of a process that use the same data and seed."""
    params = json.loads(section)
    return datasets.create(params.pop("name"), **params).load(seed)


def run(
    config: RunConfig, out: Path, listen: Listener | None = None, workers: int | None = None
) -> RunFolder:
    """Run, or go on with, the experiment in `out/<run name>`. A finished run is left as it is."""
    folder = RunFolder(Path(out) / config.run_name)
    summary = folder.summary()
    if summary is not None and summary.finished:
        return folder
    # One thread: results must not depend on how many there are, and runs side by side use the cores better.
    with one_thread():
        federation = build(config, workers)  # nothing is written yet: a wrong configuration leaves no trace
        with folder.locked(), federation.trainer:
            _go_on(config, folder, federation, listen)
    return folder


def _go_on(config: RunConfig, folder: RunFolder, federation: Federation, listen: Listener | None) -> None:
    checkpoint = folder.read_checkpoint()
    done = 0
    if checkpoint is not None:
        federation.load_state_dict(checkpoint["federation"])
        done = checkpoint["round"]
    folder.cut_after(done)
    folder.write_config({**config.plain(), RECORD: record(federation)})
    federation.rule.warm_up(federation.per_round, federation.layout.size)  # or round 1 would wait for it
    with concluded(folder):
        rounds(federation, folder, done, config.rounds, listen)


def rounds(
    federation: SteppingFederation, folder: RunFolder, done: int, last: int, listen: Listener | None
) -> None:
    """All rounds after `done`, each on disk before the next begins."""
    for number in range(done + 1, last + 1):
        record = RoundRecord(**vars(federation.step(number)))
        folder.append(record)
        folder.write_checkpoint({"round": number, "federation": federation.state_dict()})
        if listen is not None:
            listen(record)


@contextmanager
def concluded(
    folder: RunFolder,
    stops: tuple[type[Exception], ...] = (),
    tell: Callable[[str, str | None], None] | None = None,
) -> Iterator[None]:
    """Write the summary of the run that happens inside, however it ends.

    `stops` are errors that stop a run which can go on later; of a spent budget nothing is raised. `tell` is told
    how it ended.
    """
    status: Literal["finished", "stopped", "failed"] = "failed"
    reason = None
    try:
        yield
        status = "finished"
    except KeyboardInterrupt:
        status, reason = "stopped", "interrupted"
        raise
    except BudgetSpent as spent:
        status, reason = "stopped", str(spent)
    except stops as stop:
        status, reason = "stopped", str(stop)
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise
    finally:
        folder.write_summary(summarize(folder.rounds(), folder.clients(), status, reason))
        if tell is not None:
            tell(status, reason)


def record(federation: Federation) -> dict[str, Any]:
    """What is worth knowing of a run beside its configuration."""
    campaign, assignment = federation.campaign, federation.assignment
    targets = federation.dataset.train.targets
    return {
        **versions(),
        "engine": federation.trainer.engine,
        "model_parameters": federation.layout.size,
        "aggregator": federation.rule.resolved(federation.per_round),
        "attack": campaign.record(),
        **({"privacy": protection} if (protection := federation.protection.record()) else {}),
        "task": federation.dataset.task.value,
        "class_names": list(federation.dataset.class_names),
        "clients": {
            client: class_counts(targets[rows], len(federation.dataset.class_names))
            for client, rows in zip(assignment.clients, assignment.train, strict=True)
        },
    }


def versions() -> dict[str, Any]:
    """What a run was made with."""
    installed = plugins.installed()
    return {
        "schema": SCHEMA_VERSION,
        "wardround": wardround.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        **({"installed_plugins": installed} if installed else {}),
    }


def class_counts(targets: torch.Tensor, classes: int) -> list[int]:
    """Samples a class; positives a finding for a multi-label task."""
    if targets.ndim == 1:
        return torch.bincount(targets, minlength=classes).tolist()
    return targets.sum(0).int().tolist()
