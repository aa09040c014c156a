"""A finished or unfinished run with labels for its method, attack and setting."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from wardround.analysis.notes import notes_on, without_copies
from wardround.errors import WardroundWarning
from wardround.records import ClientRecord, EvaluationDetails, RoundRecord, Summary, pipeline_name
from wardround.runs.folder import RunFolder, find_runs
from wardround.runs.summary import why_no_auroc

__all__ = ["CHANCE", "CLEAN", "Run", "load_runs"]

CLEAN = "clean"
CHANCE = 0.5  # the AUROC of a random ranking
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


class Run:
    """One run folder; its files are read when they are needed."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.config: dict[str, Any] = folder.config()
        self.record: dict[str, Any] = self.config.get("record", {})
        # Parameters that differ among the loaded runs and so belong into the labels: see `load_runs`.
        self.method_keys: tuple[str, ...] = ()
        self.attack_keys: tuple[str, ...] = ()
        self.setting_keys: tuple[str, ...] = ()
        self.copies: tuple[Run, ...] = ()
        """Other folders of the same experiment, which are not counted: see `load_runs`."""
        # Parts of the labels that are the same in all loaded runs, and need not be in every heading.
        self.common: frozenset[str] = frozenset()

    @cached_property
    def summary(self) -> Summary | None:
        """None while the run continues."""
        return self.folder.summary()

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        return self.folder.rounds()

    @property
    def clients(self) -> list[ClientRecord]:
        """Read anew each time: the records of hundreds of runs do not fit into memory together."""
        return self.folder.clients()

    @property
    def finished(self) -> bool:
        return self.summary is not None and self.summary.finished

    @property
    def detection(self) -> Mapping[str, Any]:
        """The rates of the rule's flags; empty where it raises none, or the run has not ended."""
        return (self.summary.detection if self.summary else None) or {}

    @property
    def method(self) -> str:
        """The rule's name, with the parameters in which runs of the same rule differ."""
        return _with_parameters(
            pipeline_name(self.config["aggregator"]), _parameters(self.config["aggregator"]), self.method_keys
        )

    @property
    def attack(self) -> str:
        """The attack in a few words: name, parts, share and onset."""
        return " ".join(self.attack_parts)

    @property
    def attack_label(self) -> str:
        """The attack without what all attacks among the loaded runs have in common."""
        name, *rest = self.attack_parts
        return " ".join([name, *(part for part in rest if part not in self.common)])

    @property
    def attack_parts(self) -> list[str]:
        """Name, share and onset of the attack, as words."""
        attack = self.config["attack"]
        if attack["name"] == "none" or not self.byzantine:
            return [CLEAN]
        parts = " + ".join(part["name"] for part in attack.get("parts", ()))
        share = round(100 * len(self.byzantine) / max(1, len(self.record["clients"])))
        onset = [f"from round {self.onset}"] if self.onset and self.onset > 1 else []
        name = f"{attack['name']} ({parts})" if parts else attack["name"]
        return [self._named(name, "attack", self.attack_keys), f"{share} %", *onset]

    @property
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
    def onset(self) -> int | None:
        """The first round of the attack; None in a clean run."""
        return self.config["attack"]["start"] if self.byzantine else None

    @property
    def drifting(self) -> list[str]:
        """Honest clients whose patients change over the rounds."""
        return [client for client in self.drift.get("clients", ()) if client not in self.byzantine]

    @property
    def drift(self) -> Mapping[str, Any]:
        """The section `drift`, which formerly stood in the dataset's; empty where nobody's case mix moves."""
        drift: Mapping[str, Any] = self.config.get("drift") or self.config["dataset"].get("drift") or {}
        return drift

    @property
    def epsilon(self) -> float | None:
        """ε of the whole run, where updates were protected by differential privacy."""
        return ((self.summary.privacy if self.summary else None) or {}).get("epsilon")

    def final(self, metric: str) -> float | None:
        """A test metric after the last round; the AUROC of a model without finite output is chance.

        None where it cannot be computed for another reason: see `details.reasons`.
        """
        metrics = self.summary.final if self.summary else None
        if metrics is None:
            return None
        if metric != "auroc":
            return metrics.get(metric)
        reason = self.details.reasons.get("auroc")
        return None if reason is not None and reason.kind != "not-finite" else _auroc_of(metrics)

    @property
    def why_no_auroc(self) -> str | None:
        """Why the run has no AUROC at its end; None where it has one, or has not ended."""
        if self.summary is None or self.final("auroc") is not None:
            return None
        return why_no_auroc(self.summary.final, self.record, self.summary.evaluation)

    @cached_property
    def details(self) -> EvaluationDetails:
        """Calibration, patient groups and reasons of the last evaluated round."""
        final = ((self.summary.evaluation if self.summary else None) or {}).get("final") or {}
        return EvaluationDetails.from_line(final)

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """Test AUROC of every round that has one. A model whose output is not finite counts as chance.

        Leaving such rounds out would make a rule look the better the sooner it breaks.
        """
        values = [
            (record.round, CHANCE if record.is_broken else record.metrics.get("auroc"))
            for record in self.rounds
            if record.metrics
        ]
        return [(number, value) for number, value in values if value is not None]

    @cached_property
    def broken_rounds(self) -> int:
        """Evaluated rounds in which the model's output was not finite."""
        return sum(1 for record in self.rounds if record.is_broken)

    def _named(self, name: str, section: str, keys: Iterable[str]) -> str:
        return _with_parameters(name, self.config[section], keys)

    def _value(self, key: str) -> Any:
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


def _is_broken(metrics: Mapping[str, Any]) -> bool:
    """Was the model's output not finite? Then nothing could be measured, its loss included."""
    return "auroc" in metrics and metrics["auroc"] is None and metrics.get("loss") is None


def _auroc_of(metrics: Mapping[str, Any]) -> float | None:
    return CHANCE if _is_broken(metrics) else metrics.get("auroc")


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Every experiment at or below the given folders, once, labelled by the parameters in which they differ.

    Warns of what must be known before the figures are believed: copies, other versions, models that diverged.

    Raises:
        DataError: A run folder is damaged or lacks rounds.
    """
    folders = {folder.path.resolve(): folder for folder in find_runs(paths)}
    for folder in folders.values():
        folder.verify()
    runs = without_copies([Run(folder) for folder in folders.values()])
    for note in notes_on(runs):
        warnings.warn(note, WardroundWarning, stacklevel=2)
    for group in _grouped(runs, lambda run: pipeline_name(run.config["aggregator"])):
        keys = _differing([_parameters(run.config["aggregator"]) for run in group], {"name"})
        for run in group:
            run.method_keys = keys
    for group in _grouped(runs, lambda run: run.config["attack"]["name"]):
        keys = _differing([run.config["attack"] for run in group], IN_ATTACK_LABEL)
        for run in group:
            run.attack_keys = keys
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


def _grouped(runs: Sequence[Run], key: Any) -> Iterable[list[Run]]:
    groups: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return groups.values()


def _differing(values: Sequence[dict[str, Any]], labelled: set[str]) -> tuple[str, ...]:
    keys = dict.fromkeys(key for value in values for key in value if key not in labelled)
    return tuple(key for key in keys if len({repr(value.get(key)) for value in values}) > 1)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _with_parameters(name: str, values: Mapping[str, Any], keys: Iterable[str]) -> str:
    parameters = [f"{key} {_word(values.get(key))}" for key in keys if key in values]
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
    return f"{value:g}" if isinstance(value, float) else "–" if value is None else str(value)
