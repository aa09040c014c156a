"""Run one experiment: build its parts from the configuration, run its rounds, survive being killed."""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

import wardround
from wardround import aggregators, attacks, datasets, faults, plugins
from wardround.aggregators.base import Aggregator
from wardround.datasets import Dataset
from wardround.datasets import partition as partitions
from wardround.datasets.base import Task
from wardround.datasets.drift import DriftParams, with_drift
from wardround.datasets.partition import Assignment
from wardround.datasets.preprocessing import PreprocessingParams
from wardround.datasets.tabular import prepare_for_clients
from wardround.errors import require
from wardround.federation.loop import Federation
from wardround.federation.model_factory import build_model, build_trainer
from wardround.federation.schedule import Schedule, forget_peak_memory
from wardround.federation.scoring import THRESHOLD_RULE
from wardround.federation.simulated import simulated_federation
from wardround.privacy.encryption.refusals import BudgetSpent
from wardround.privacy.masking import MASKED, SumMasked
from wardround.privacy.params import PrivacyParams
from wardround.privacy.pseudonyms import from_key_file
from wardround.records import SCHEMA_VERSION, RoundRecord, RunStatus
from wardround.runs.best_round import BEST, BEST_BEFORE, BestRound, is_extra_evaluation
from wardround.runs.checkpoints import SIMULATION_SECONDS, Checkpoints
from wardround.runs.config import RECORD, RunConfig
from wardround.runs.digest import write_digest
from wardround.runs.export.inputs import INPUTS, ModelInputs
from wardround.runs.folder import RunFolder
from wardround.runs.identity import find_folder
from wardround.runs.quarantine import quarantined
from wardround.runs.summary import summarize
from wardround.survival import COX
from wardround.threads import one_thread
from wardround.training.base import Trainer

__all__ = [
    "Listener",
    "build",
    "build_broken",
    "build_campaign",
    "build_rule",
    "build_schedule",
    "load_and_partition",
    "load_dataset",
    "record",
    "run",
    "run_rounds",
    "summary_on_exit",
    "versions",
]

DATASETS_KEPT = 4
"""That a process has loaded and may need again: a matrix over some datasets goes through them seed by seed."""
Listener = Callable[[RoundRecord], None]
"""Is handed the record of every finished round."""


def build(config: RunConfig, workers: int | None = None) -> Federation:
    """The simulation that a configuration describes, before its first round.

    `workers` bounds the processes that train; 1 where other runs use the other cores.
    """
    dataset, assignment = load_and_partition(config)
    dp, classes = config.privacy.dp, len(dataset.class_names)
    model = build_model(config.model, dataset.input_shape, dataset.task.value, classes, config.seed, dp)
    rule = build_rule(config)
    if config.initial_model is not None:
        config.initial_model.start(model, ModelInputs.of(dataset))
    trainer: Trainer = build_trainer(
        model, dataset, config.training, dp, config.engine, config.device, workers
    )
    campaign = build_campaign(config, assignment.clients)
    return simulated_federation(
        dataset,
        assignment,
        model,
        rule,
        campaign,
        trainer,
        config.training,
        build_schedule(config),
        config.privacy,
        _sum_masked(config.privacy),
        build_broken(config, assignment.clients, campaign.byzantine),
    )


def build_rule(config: RunConfig) -> Aggregator:
    """The run's rule."""
    name, params = config.section("aggregator")
    return aggregators.create(name, **params)


def _sum_masked(privacy: PrivacyParams) -> SumMasked | None:
    """What plays secure aggregation in a simulation, in the mode of that name.

    The protocol lives in the package `flower`, whose primitives it uses, and is loaded by name, as a plug-in is: only
    this mode needs Flower.
    """
    if privacy.mode != MASKED:
        return None
    require("flwr", "flower")
    protocol = importlib.import_module("wardround.flower.secure_aggregation.in_process")
    return partial(protocol.sum_in_process, min_cohort=privacy.min_cohort, max_share=privacy.max_share)


def load_and_partition(config: RunConfig) -> tuple[Dataset, Assignment]:
    """The run's dataset, and who holds what of it; a table is preprocessed by what these clients say of their rows."""
    plain = config.plain()
    sections = [json.dumps(plain[key]) for key in ("dataset", "partition", "preprocessing")]
    dataset, assignment = _partitioned(*sections, config.seed)
    if config.initial_model is not None:
        dataset = config.initial_model.prepare(dataset, assignment, config.seed)
    if config.privacy.pseudonyms:
        assignment = _renamed(assignment, _names(config))
    if config.drift is not None:
        names = [_names(config)(client) for client in config.drift.clients]
        drift = config.drift.model_copy(update={"clients": tuple(names)})
        dataset = _drifting(dataset, assignment, drift.model_dump_json(), config.seed)
    return dataset, assignment


@lru_cache(maxsize=2)
def _drifting(dataset: Dataset, assignment: Assignment, drift: str, seed: int) -> Dataset:
    """Made once for all runs of a process that have the same data, clients and drift."""
    return with_drift(dataset, assignment, DriftParams(**json.loads(drift)), seed)


@lru_cache(maxsize=2)
def _partitioned(dataset: str, partition: str, preprocessing: str, seed: int) -> tuple[Dataset, Assignment]:
    """Made once for all runs of a process that have the same data and clients."""
    params = json.loads(partition)
    raw = _dataset(dataset, seed)
    assignment = partitions.create(params.pop("name"), **params).assign(raw.train, raw.test, seed)
    own = PreprocessingParams(**json.loads(preprocessing))
    prepared = prepare_for_clients(raw, assignment.clients, assignment.train, own, assignment.test)
    return prepared, assignment


def _renamed(assignment: Assignment, name_of: Callable[[str], str]) -> Assignment:
    """The same clients under other names, in the order of these: the original order would give them away."""
    names = [name_of(client) for client in assignment.clients]
    order = sorted(range(len(names)), key=names.__getitem__)
    return Assignment(
        tuple(names[i] for i in order),
        tuple(assignment.train[i] for i in order),
        tuple(assignment.test[i] for i in order),
    )


def load_dataset(config: RunConfig) -> Dataset:
    """The run's dataset, loaded."""
    return _dataset(json.dumps(config.plain()["dataset"]), config.seed)


def build_campaign(config: RunConfig, clients: Sequence[str]) -> attacks.Campaign:
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
    return attacks.Campaign(
        attack, byzantine, window.start, window.end, config.seed, is_expected=window.fraction > 0
    )


def build_broken(
    config: RunConfig, clients: Sequence[str], attackers: Collection[str]
) -> faults.BrokenClients:
    """Who has a fault, when and which; drawn from the clients that do not attack."""
    name, params = config.attack_parameters("fault")
    window = config.window("fault")
    name_of = _names(config)
    broken: Collection[str] = (
        [name_of(client) for client in window.clients]
        if window.clients is not None
        else faults.draw_broken(clients, window.fraction, config.seed, attackers)
    )
    return faults.BrokenClients(faults.create(name, **params), broken, window.start, window.end, config.seed)


def build_schedule(config: RunConfig) -> Schedule:
    """Rounds, participation and evaluation of the run."""
    return Schedule(
        config.rounds,
        config.participation,
        config.evaluate_every,
        config.server_lr,
        config.root.samples,
        config.seed,
        config.server,
    )


def _names(config: RunConfig) -> Callable[[str], str]:
    return from_key_file(Path(config.privacy.pseudonyms)) if config.privacy.pseudonyms else str


@lru_cache(maxsize=DATASETS_KEPT)
def _dataset(section: str, seed: int) -> Dataset:
    """Loaded once for all runs of a process that use the same data and seed."""
    params = json.loads(section)
    return datasets.create(params.pop("name"), **params).load(seed)


def run(
    config: RunConfig, out: Path, listen: Listener | None = None, workers: int | None = None
) -> RunFolder:
    """Run or resume the experiment in `out/<run name>`. A finished run is left as it is."""
    folder = find_folder(config, out)
    finished = folder.summary()
    if finished is not None and finished.finished:
        return folder
    # One thread: results must not depend on how many there are, and runs side by side use the cores better.
    forget_peak_memory()
    with one_thread():
        federation = build(config, workers)  # nothing is written yet: a wrong configuration leaves no trace
        federation.quarantined = partial(quarantined, folder.path)
        assert federation.trainer is not None  # a simulation has one
        with folder.locked(), federation.trainer:
            _resume(config, folder, federation, listen)
    return folder


def _resume(config: RunConfig, folder: RunFolder, federation: Federation, listen: Listener | None) -> None:
    assert federation.server_data is not None  # a simulation has its dataset
    dataset = federation.server_data.dataset
    checkpoint = folder.resume()
    done, best = 0, BestRound()
    if checkpoint is not None:
        federation.load_state_dict(checkpoint["federation"])
        done, best = checkpoint["round"], BestRound(checkpoint.get(BEST))
    clients = len(federation.clients.describe().clients)
    per_round = federation.schedule.per_round(clients)
    assert federation.trainer is not None
    folder.write_config({**config.plain(), RECORD: record(federation, federation.trainer.engine, per_round)})
    federation.rule.warm_up(per_round, federation.layout.size)  # or round 1 would wait for it
    with summary_on_exit(folder):
        run_rounds(
            federation,
            folder,
            done,
            best,
            ModelInputs.of(dataset),
            listen,
            checkpoint_seconds=SIMULATION_SECONDS,
        )


def run_rounds(
    federation: Federation,
    folder: RunFolder,
    done: int,
    best: BestRound,
    inputs: ModelInputs,
    listen: Listener | None = None,
    before_saving: Listener | None = None,
    checkpoint_seconds: float = 0.0,
) -> None:
    """Run all rounds after `done`, each written before the next begins.

    Args:
        federation: as it was after round `done`.
        folder: where the run is.
        done: rounds that are finished.
        best: the best of them; moves on.
        inputs: what the model takes and gives: kept, so that it can be exported without the data.
        listen: is handed every round when it is written.
        before_saving: is handed it before.
        checkpoint_seconds: least time between two checkpoints; 0: every round is on the disk before the next begins.
    """
    schedule, described = federation.schedule, inputs.to_json()
    checkpoints = Checkpoints(folder, checkpoint_seconds)
    with checkpoints.written_on_exit():
        for number in range(done + 1, schedule.rounds + 1):
            result = federation.step(number)
            if before_saving is not None:
                before_saving(result)
            before = best.state_dict()
            best.consider(result, federation.usable_weights())
            folder.append(result, durable=False)  # the checkpoint brings it onto the disk
            checkpoints.after(
                {
                    "round": number,
                    "federation": federation.state_dict(),
                    INPUTS: described,
                    BEST: best.state_dict(),
                    **({BEST_BEFORE: before} if is_extra_evaluation(schedule, number) else {}),
                },
                last=number == schedule.rounds,
            )
            if listen is not None:
                listen(result)


@contextmanager
def summary_on_exit(
    folder: RunFolder,
    stops: tuple[type[Exception], ...] = (),
    on_end: Callable[[str, str | None], None] | None = None,
) -> Iterator[None]:
    """Write the summary of the run that happens inside, however it ends.

    Args:
        folder: where the run is.
        stops: errors that stop a run which can be resumed later. A spent budget stops it too, and raises nothing.
        on_end: is handed the status and the reason at the end.
    """
    status: RunStatus = "failed"
    reason = None
    try:
        yield
        status = "finished"
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or whoever runs this ends the process
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
        rounds, clients = folder.rounds(), folder.clients()
        summary = summarize(rounds, clients, status, reason)
        if summary.finished:
            write_digest(folder, rounds, clients)
        folder.write_summary(summary)
        if on_end is not None:
            on_end(summary.status, summary.reason)


def record(federation: Federation, engine: str, per_round: int) -> dict[str, Any]:
    """What a run records beside its configuration: versions, and its parts as they took effect."""
    description = federation.clients.describe()
    privacy = federation.protection.record()
    return {
        **versions(),
        "engine": engine,
        **({} if federation.trainer is None else {"precision": federation.trainer.precision}),
        "model_parameters": federation.layout.size,
        "aggregator": federation.rule.resolved(per_round),
        **({} if (kappa := federation.rule.proven_kappa(per_round)) is None else {"proven_kappa": kappa}),
        "attack": federation.campaign.record(),
        **({"fault": federation.broken.record()} if federation.broken.clients else {}),
        **({"privacy": privacy} if privacy else {}),
        "task": description.task,
        "class_names": list(description.class_names),
        **({"threshold": THRESHOLD_RULE} if Task(description.task).has_thresholds else {}),
        **({"loss": COX} if description.task == Task.SURVIVAL.value else {}),
        "clients": {client: list(counts) for client, counts in description.clients.items()},
        **({} if federation.evaluator is None else {"test_classes": federation.evaluator.test_classes()}),
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
