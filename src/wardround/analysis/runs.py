"""A finished or unfinished run with labels for its method, attack and setting."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from wardround.analysis.earlier_versions import fill_in_defaults
from wardround.analysis.notes import notes_on, without_copies
from wardround.errors import WardroundWarning
from wardround.records import (
    MAIN_METRICS,
    ClientRecord,
    EvaluationDetails,
    RoundRecord,
    Summary,
    main_metric,
    main_value,
    pipeline_name,
)
from wardround.runs.digest import CHANCE, Digest, digest_of, drift_of
from wardround.runs.folder import RunFolder, find_runs
from wardround.runs.rule import rule_class
from wardround.runs.summary import why_no_auroc
from wardround.worker_processes import ANALYSIS, worker_context

__all__ = ["CHANCE", "CLEAN", "At", "Run", "load_runs", "quality_name"]

At = Literal["final", "best"]
"""Which round a run is reported at: the last one, or the one that was best on validation."""

CLEAN = "clean"
# Parameters that are in the labels anyway, or that do not make two runs different experiments.
IN_ATTACK_LABEL = {"name", "fraction", "start", "clients", "parts"}
IN_SETTING_LABEL = {"dataset.name", "partition.name", "partition.alpha", "partition.clients", "model.weights"}
SETTING = (
    "dataset",
    "preprocessing",
    "drift",
    "partition",
    "model",
    "training",
    "privacy",
    "root",
    "rounds",
    "participation",
    "server_lr",
    "server",
)


RUNS_PER_JOB, RUNS_PER_TASK = 200, 50
"""Runs below which a process is not worth its start; and how many are handed to one at a time."""


class Run:
    """One run folder; its files are read when they are needed."""

    def __init__(self, folder: RunFolder, at: At = "final") -> None:
        self.folder, self.at = folder, at
        self.config: dict[str, Any] = folder.config()
        self.record: dict[str, Any] = self.config.get("record", {})
        # Parameters that differ among the loaded runs and so belong into the labels: see `load_runs`. The labels
        # `method`, `attack` and `setting` are made once, after that.
        self.method_keys: tuple[str, ...] = ()
        self.attack_keys: tuple[str, ...] = ()
        self.fault_keys: tuple[str, ...] = ()
        self.setting_keys: tuple[str, ...] = ()
        self.copies: tuple[Run, ...] = ()
        """Other folders of the same experiment, which are not counted: see `load_runs`."""
        # Parts of the labels that are the same in all loaded runs, and need not be in every heading.
        self.common: frozenset[str] = frozenset()

    @cached_property
    def _summary_values(self) -> Mapping[str, Any] | None:
        return self.folder.summary_values()

    @cached_property
    def summary(self) -> Summary | None:
        """None while the run continues."""
        return None if self._summary_values is None else Summary.from_plain(self._summary_values)

    @cached_property
    def digest(self) -> Digest:
        """What its lines come to; of a run that has finished they need not be read."""
        files = (self._summary_values or {}).get("files") if self.finished else None
        return digest_of(self.folder, self.config, files)

    @property
    def rounds(self) -> list[RoundRecord]:
        """Read anew each time, as `clients` are."""
        return self.folder.rounds()

    @property
    def clients(self) -> list[ClientRecord]:
        """Read anew each time: the records of hundreds of runs do not fit into memory together."""
        return self.folder.clients()

    def verify(self) -> None:
        """Raise DataError where the folder does not hold what its run wrote, all of it and unchanged."""
        self.folder.verify(self.config, self._summary_values)

    @property
    def finished(self) -> bool:
        return self.summary is not None and self.summary.finished

    @property
    def detection(self) -> Mapping[str, Any]:
        """The rates of the rule's flags; empty where it raises none, or the run has not ended."""
        return (self.summary.detection if self.summary else None) or {}

    @property
    def is_oracle(self) -> bool:
        """Is its rule told who attacks? Then it is a yardstick, and no rule to choose."""
        rule = rule_class(self.config)
        return rule is not None and rule.needs_attackers

    @cached_property
    def method(self) -> str:
        """The rule's name, with the parameters in which runs of the same rule differ."""
        return _with_parameters(
            pipeline_name(self.config["aggregator"]), _parameters(self.config["aggregator"]), self.method_keys
        )

    @cached_property
    def attack(self) -> str:
        """The attack, and the fault, in a few words: name, parts, share and onset."""
        return " ".join(self.attack_parts)

    @property
    def attack_label(self) -> str:
        """The attack without what all attacks among the loaded runs have in common."""
        name, *rest = self.attack_parts
        return " ".join([name, *(part for part in rest if part not in self.common)])

    @property
    def attack_parts(self) -> list[str]:
        """Name, share and onset of the attack, and of a fault beside it, as words."""
        attackers, fault = self._attack_words(), self._fault_words()
        if not attackers:
            return fault or [CLEAN]
        return [*attackers, f"with {' '.join(fault)}"] if fault else attackers

    def _fault_words(self) -> list[str]:
        if not self.broken:
            return []
        fault = self.config["fault"]
        since = [f"from round {fault['start']}"] if fault["start"] > 1 else []
        name = self._named(f"fault {fault['name']}", "fault", self.fault_keys)
        return [name, self._share(self.broken), *since]

    def _share(self, clients: Sequence[str]) -> str:
        return f"{round(100 * len(clients) / max(1, len(self.record['clients'])))} %"

    def _attack_words(self) -> list[str]:
        attack = self.config["attack"]
        if attack["name"] == "none" or not self.byzantine:
            return []
        parts = " + ".join(part["name"] for part in attack.get("parts", ()))
        onset = [f"from round {self.onset}"] if self.onset and self.onset > 1 else []
        name = f"{attack['name']} ({parts})" if parts else attack["name"]
        return [self._named(name, "attack", self.attack_keys), self._share(self.byzantine), *onset]

    @cached_property
    def setting(self) -> str:
        """What makes runs comparable apart from rule, attack and seed: dataset, partition, clients and so on."""
        return " · ".join(self.setting_parts)

    @property
    def setting_label(self) -> str:
        """The setting without what all loaded runs have in common; empty where that is everything."""
        return " · ".join(part for part in self.setting_parts if part not in self.common)

    @property
    def setting_parts(self) -> list[str]:
        """Dataset, partition, number of clients and what else differs, as words."""
        partition = self.config["partition"]
        alpha = f" α {partition['alpha']:g}" if partition.get("alpha") is not None else ""
        clients = len(self.record.get("clients", ()))
        parts = [self.config["dataset"]["name"], partition["name"] + alpha, f"{clients} clients"]
        return [*parts, *(f"{key.split('.')[-1]} {_word(self._value(key))}" for key in self.setting_keys)]

    @property
    def seed(self) -> int:
        seed: int = self.config["seed"]
        return seed

    @property
    def byzantine(self) -> list[str]:
        clients: list[str] = self.record.get("attack", {}).get("byzantine", [])
        return clients

    @property
    def broken(self) -> list[str]:
        """Clients with a fault."""
        clients: list[str] = (self.record.get("fault") or {}).get("broken", [])
        return clients

    @property
    def onset(self) -> int | None:
        """The first round of the attack; None in a clean run."""
        return self.config["attack"]["start"] if self.byzantine else None

    @property
    def drifting(self) -> list[str]:
        """Honest clients whose patients change over the rounds."""
        known = {*self.byzantine, *self.broken}
        return [client for client in self.drift.get("clients", ()) if client not in known]

    @property
    def drift(self) -> Mapping[str, Any]:
        """The section `drift`, which formerly stood in the dataset's; empty where nobody's case mix moves."""
        return drift_of(self.config)

    @property
    def epsilon(self) -> float | None:
        """ε of the whole run, where updates were protected by differential privacy."""
        return ((self.summary.privacy if self.summary else None) or {}).get("epsilon")

    @property
    def main(self) -> str:
        """The metric by which its model is compared with others: `auroc`, or `c_index` of a survival task."""
        return "c_index" if self.record.get("task") == "survival" else "auroc"

    @property
    def quality(self) -> float | None:
        """That metric after the last round."""
        return self.final(self.main)

    def final(self, metric: str) -> float | None:
        """A test metric of the reported round (`at`); AUROC or C-index of a model without finite output is chance.

        None where it cannot be computed for another reason: see `details.reasons`.
        """
        metrics = self._reported
        if metrics is None:
            return None
        if metric != self.main:
            return metrics.get(metric)
        reason = self.details.reasons.get(metric)
        return None if reason is not None and reason.kind != "not-finite" else _main_of(metrics)

    @property
    def why_no_auroc(self) -> str | None:
        """Why the run has no AUROC (or C-index) at its end; None where it has one, or has not ended."""
        if self.summary is None or self.quality is not None:
            return None
        return why_no_auroc(self._reported, self.record, {"final": self._evaluation})

    @property
    def _reported(self) -> Mapping[str, Any] | None:
        """Test metrics of the reported round."""
        return (
            None if self.summary is None else self.summary.best if self.at == "best" else self.summary.final
        )

    @property
    def _evaluation(self) -> Mapping[str, Any]:
        """What the summary says of the reported round beside its metrics."""
        return ((self.summary.evaluation if self.summary else None) or {}).get(self.at) or {}

    @cached_property
    def details(self) -> EvaluationDetails:
        """Calibration, patient groups and reasons of the reported round."""
        return EvaluationDetails.from_line(self._evaluation)

    @property
    def curve(self) -> Sequence[tuple[int, float]]:
        """Test AUROC (or C-index) of every round that has one. A model whose output is not finite counts as chance.

        Leaving such rounds out would make a rule look the better the sooner it breaks.
        """
        return self.digest.curve

    @property
    def broken_rounds(self) -> int:
        """Evaluated rounds in which the model's output was not finite."""
        return int(self.digest.values["broken_rounds"] or 0)

    def _named(self, name: str, section: str, keys: Iterable[str]) -> str:
        return _with_parameters(name, self.config[section], keys)

    def _value(self, key: str) -> Any:
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


def _is_broken(metrics: Mapping[str, Any]) -> bool:
    """Was the model's output not finite? Then nothing could be measured, its loss included."""
    main = main_metric(metrics)
    return main in metrics and metrics[main] is None and metrics.get("loss") is None


def _main_of(metrics: Mapping[str, Any]) -> float | None:
    return CHANCE if _is_broken(metrics) else main_value(metrics)


def quality_name(runs: Iterable[Run]) -> str:
    """What the models of these runs are compared by, in words: AUROC, C-index, or both where tasks differ."""
    names = {run.main for run in runs} or {"auroc"}
    return " or ".join(heading for name, heading in MAIN_METRICS.items() if name in names)


def load_runs(paths: Sequence[Path], at: At = "final", jobs: int = 1) -> list[Run]:
    """Every experiment at or below the given folders, once, labelled by the parameters in which they differ.

    Warns of what must be known before the figures are believed: copies, other versions, models that diverged.

    Args:
        paths: Run folders, or folders of them.
        at: The round that metrics are reported at: the last one (`final`), or the one that was best on validation.
        jobs: Processes that read, where there are many runs. A script that asks for more than one has to be guarded by
            `if __name__ == "__main__":`.

    Raises:
        DataError: A run folder is damaged or lacks rounds.
    """
    folders = {folder.path.resolve(): folder for folder in find_runs(paths)}
    every = _read_all(list(folders.values()), at, jobs)
    fill_in_defaults([run.config for run in every])
    runs = without_copies(every)
    for note in notes_on(runs):
        warnings.warn(note, WardroundWarning, stacklevel=2)
    for group in _grouped(runs, lambda run: pipeline_name(run.config["aggregator"])):
        keys = _differing([_parameters(run.config["aggregator"]) for run in group], {"name"})
        keys = tuple(key for key in keys if not _follows_attackers(key, group))
        for run in group:
            run.method_keys = keys
    for group in _grouped(runs, lambda run: run.config["attack"]["name"]):
        keys = _differing([run.config["attack"] for run in group], IN_ATTACK_LABEL)
        for run in group:
            run.attack_keys = keys
    for group in _grouped([run for run in runs if run.broken], lambda run: run.config["fault"]["name"]):
        keys = _differing([run.config["fault"] for run in group], IN_ATTACK_LABEL)
        for run in group:
            run.fault_keys = keys
    for group in _grouped(runs, lambda run: (run.config["dataset"]["name"], run.config["partition"]["name"])):
        plain = [_flat({key: run.config.get(key) for key in SETTING}) for run in group]
        keys = _differing(plain, IN_SETTING_LABEL)
        for run in group:
            run.setting_keys = keys
    attacked = [set(run.attack_parts[1:]) for run in runs if run.attack != CLEAN]
    common = set[str]()
    for labels in (attacked, [set(run.setting_parts) for run in runs]):
        common |= set.intersection(*labels) if labels else set()
    for run in runs:
        run.common = frozenset(common)
    return runs


def _read_all(folders: Sequence[RunFolder], at: At, jobs: int) -> list[Run]:
    """The runs in these folders, verified; in several processes where there are enough to be worth starting them."""
    jobs = min(jobs, len(folders) // RUNS_PER_JOB)
    read = partial(_read, at=at)
    if jobs < 2:
        return [read(folder) for folder in folders]
    # Clean processes, as in a matrix: a fork would copy the threads of torch.
    with ProcessPoolExecutor(jobs, worker_context(ANALYSIS)) as pool:
        return list(pool.map(read, folders, chunksize=RUNS_PER_TASK))


def _read(folder: RunFolder, at: At) -> Run:
    run = Run(folder, at)
    run.verify()
    if run.finished:
        _ = run.digest  # read here, in whichever process this is
    return run


def _grouped(runs: Sequence[Run], key: Any) -> Iterable[list[Run]]:
    groups: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return groups.values()


def _differing(values: Sequence[dict[str, Any]], labelled: set[str]) -> tuple[str, ...]:
    keys = dict.fromkeys(key for value in values for key in value if key not in labelled)
    return tuple(key for key in keys if len({repr(value.get(key)) for value in values}) > 1)


def _follows_attackers(key: str, runs: Sequence[Run]) -> bool:
    """Is this an `f` that differs only with the number of attackers? Then it is the same rule in every run."""
    if key.split(" ")[-1] != "f":
        return False
    values: dict[tuple[int, int], set[Any]] = defaultdict(set)
    for run in runs:
        clients = len(run.record.get("clients", ()))
        values[clients, len(run.byzantine)].add(_parameters(run.config["aggregator"]).get(key))
    return all(len(of_attackers) == 1 for of_attackers in values.values())


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _with_parameters(name: str, values: Mapping[str, Any], keys: Iterable[str]) -> str:
    """A rule's name with some of its parameters; an empty list is none.

    >>> _with_parameters("caac-guard", {"without": ["length"], "memory": 0.8, "pre": []}, ["without", "pre", "f"])
    'caac-guard (without length)'
    """
    said = [(key, values[key]) for key in keys if key in values and values[key] not in ([], ())]
    parameters = [f"{key} {_word(value)}" for key, value in said]
    return f"{name} ({', '.join(parameters)})" if parameters else name


def _parameters(aggregator: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a rule, those of its pre-aggregations under their names (`nnm f`)."""
    own = {key: value for key, value in aggregator.items() if key != "pre"}
    for step in aggregator.get("pre", ()):
        own |= {f"{step['name']} {key}": value for key, value in step.items() if key != "name"}
    return own


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " and ".join(map(_word, value))
    return f"{value:g}" if isinstance(value, float) else "–" if value is None else str(value)
