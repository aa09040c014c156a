"""A run's configuration: YAML in, every default filled in, every mistake said in one line."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from wardround import aggregators, attacks, datasets, faults, models, plugins
from wardround.datasets import partition
from wardround.datasets import paths as dataset_paths
from wardround.datasets.drift import DriftParams
from wardround.datasets.preprocessing import PreprocessingParams
from wardround.errors import ConfigError, ParameterError, PluginError, RenamedWarning, did_you_mean
from wardround.federation.server_optimizer import ServerParams
from wardround.plugins import Plugin
from wardround.privacy.params import PrivacyParams
from wardround.registry import Parameters, Registry, explain
from wardround.runs import initial_model
from wardround.runs.initial_model import InitialModel
from wardround.training import TrainingParams
from wardround.training.engines import Device, Engine
from wardround.yaml_text import parse_yaml, read_yaml_file

__all__ = ["AttackWindow", "RunConfig", "dotted", "load_config", "override", "parse_overrides", "read_yaml"]

RECORD = "record"  # what a finished config.yaml holds beside the configuration: versions, who was Byzantine
LEGACY_KEYS = {
    "dataset", "partition", "model", "training", "aggregator", "attack", "privacy", "root", "rounds",
    "participation", "evaluate_every", "server_lr", "seed", "engine", "device",
}  # fmt: skip
"""What the hash of version 0.1 was made of."""
TRAINING_SINCE = ("precision", "steps", "client_momentum", "client_momentum_start", "method", "strata")
"""Keys of `training` that version 0.1 did not have."""
Model = TypeVar("Model", bound=BaseModel)


class AttackWindow(Parameters):
    """Who attacks and when; the attack's own parameters stand beside these keys. `none` has no use for them."""

    fraction: float = Field(0.0, ge=0, le=1)
    start: int = Field(1, ge=1)
    end: int | None = None
    clients: tuple[str, ...] | None = None
    """The Byzantine clients by hand, instead of a fraction drawn from the seed."""

    @model_validator(mode="after")
    def _window_opens_before_it_closes(self) -> AttackWindow:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end must be after start, got start {self.start}, end {self.end}")
        if self.clients is not None and self.fraction:
            raise ValueError("give fraction or clients, not both")
        return self


class FaultWindow(AttackWindow):
    """Who is broken and when; the fault's own parameters stand beside these keys."""


class Root(Parameters):
    """The server's own trusted samples, for rules that need them."""

    samples: int = Field(100, ge=1)


# Which registry's members a section names, and the keys of the section that are not the member's own.
SECTIONS: dict[str, tuple[Registry[Any], type[Parameters] | None]] = {
    "dataset": (datasets.registry, None),
    "partition": (partition.registry, None),
    "model": (models.registry, None),
    "aggregator": (aggregators.registry, None),
    "attack": (attacks.registry, AttackWindow),
    "fault": (faults.registry, FaultWindow),
}


def _known_keys(section: str, member: str) -> list[str]:
    registry, beside = SECTIONS[section]
    return [*registry.keys(member), *(beside.model_fields if beside else ())]


def _checked(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """A section `{name: …, parameters…}`, checked by its registry and filled with defaults."""
    registry, beside = SECTIONS[section]
    name = values.get("name", RunConfig.model_fields[section].default["name"])
    where = f"{registry.kind} '{name}'"
    known, former = _known_keys(section, name), registry.get(name).Params.renamed
    for key in values:
        if key != "name" and key not in known and key not in former:
            raise ConfigError(f"{where}: unknown key '{key}'; {did_you_mean(str(key), known)}")
    common = {} if beside is None else {k: v for k, v in values.items() if k in beside.model_fields}
    own = {k: v for k, v in values.items() if k != "name" and k not in common}
    filled = {} if beside is None else _build(beside, common, where).model_dump()
    if beside is not None:
        filled = _checked_window(section, name, common, filled, where)
    return {"name": name, **filled, **registry.validate(name, own).model_dump()}


def _checked_window(
    section: str, member: str, given: Mapping[str, Any], filled: dict[str, Any], where: str
) -> dict[str, Any]:
    """Who attacks or is broken, and when. Nobody without an attack; one must say who, even if that is nobody."""
    if SECTIONS[section][0].get(member).is_harmless:
        return AttackWindow().model_dump()
    if not given.keys() & {"fraction", "clients"} or filled["clients"] == ():
        nobody = "nobody attacks" if section == "attack" else "nobody is broken"
        raise ConfigError(
            f"{where}: {nobody}; give {section}.fraction (0.2 is a fifth of the clients) or {section}.clients"
        )
    return filled


def _build(model: type[Model], values: Mapping[str, Any], where: str) -> Model:
    try:
        return model(**values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, model)}") from None


class RunConfig(Parameters):
    """Everything a run depends on."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)
    plugins: tuple[Plugin, ...] = ()
    """Files and modules with members of the user's own. Before the sections, which may name such members."""
    dataset: dict[str, Any] = {"name": "icu"}
    preprocessing: PreprocessingParams = PreprocessingParams()
    """Of tables: how their columns become model input."""
    partition: dict[str, Any] = {"name": "dirichlet"}
    drift: DriftParams | None = None
    """Clients whose case mix moves slowly and benignly; None: nobody's."""
    model: dict[str, Any] = {"name": "mlp"}
    training: TrainingParams = TrainingParams()
    aggregator: dict[str, Any] = {"name": "fedavg"}
    attack: dict[str, Any] = {"name": "none"}
    fault: dict[str, Any] = {"name": "none"}
    """Hospitals that are broken, not malicious; beside an attack or alone."""
    privacy: PrivacyParams = PrivacyParams()
    root: Root = Root()
    initial_model: InitialModel | None = None
    """The folder of an exported model to begin from; None: new weights, drawn from the seed."""
    rounds: int = Field(100, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    evaluate_every: int = Field(1, ge=1)
    server_lr: float = Field(1.0, gt=0)
    server: ServerParams = ServerParams()
    """The server's optimiser; `server_lr` is the short form of its `lr`."""
    seed: int = Field(0, ge=0)
    engine: Engine = "auto"
    """Who trains the clients; the record says which one ran."""
    device: Device = "auto"

    @field_validator("plugins", mode="before")
    @classmethod
    def _loaded(cls, entries: Any) -> tuple[Plugin, ...]:
        return plugins.load_all(entries)

    @field_validator("initial_model", mode="before")
    @classmethod
    def _found(cls, value: Any) -> InitialModel | None:
        return InitialModel.read(value)

    @field_validator(*SECTIONS)
    @classmethod
    def _member(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        assert info.field_name is not None
        return _checked(info.field_name, values)

    @model_validator(mode="after")
    def _drift_fits(self) -> RunConfig:
        former = self.dataset.get("drift")
        if former is not None:
            if self.drift is not None:
                raise ValueError(
                    "drift is given twice: in dataset.drift and in the section drift; use the section"
                )
            warnings.warn(
                "dataset.drift is now the section drift: {clients: …, feature_shift: …, start: …, ramp: …}, for any "
                "table; the former place stops working with the next release",
                RenamedWarning,
                stacklevel=2,
            )
        dp = self.privacy.dp
        if self.drift is not None and self.drift.label_shift and dp is not None and dp.unit == "patient":
            raise ValueError(
                "drift.label_shift repeats patients, whom privacy.dp with unit patient counts once; use feature_shift"
            )
        return self

    @model_validator(mode="after")
    def _one_learning_rate_of_the_server(self) -> RunConfig:
        if self.server.lr is not None and "server_lr" in self.model_fields_set and self.server_lr != 1.0:
            raise ValueError("give server.lr or server_lr, not both")
        if self.server.optimizer in ("adam", "yogi") and self.server_lr != 1.0:
            raise ValueError(f"server.optimizer {self.server.optimizer} takes server.lr, not server_lr")
        return self

    @model_validator(mode="after")
    def _patients_are_counted_in_epochs(self) -> RunConfig:
        if (
            self.training.steps is not None
            and self.privacy.dp is not None
            and self.privacy.dp.unit == "patient"
        ):
            raise ValueError("training.steps: DP-SGD of patients counts epochs; give training.epochs instead")
        return self

    @model_validator(mode="after")
    def _rule_can_work_in_this_mode(self) -> RunConfig:
        rules = [aggregators.registry.get(name) for name in aggregators.available()]
        problem = self.privacy.why_not(aggregators.registry.class_of(*self.section("aggregator")), rules)
        if problem is None and self.training.method == "scaffold":
            problem = self.privacy.why_no_control_variates(self.training.steps)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _attack_takes_place(self) -> RunConfig:
        """An attack that never begins, or that reaches nobody, would pass for one that a rule withstood."""
        for section, nobody in (("attack", "nobody attacks"), ("fault", "nobody is broken")):
            window = self.window(section)
            if not window.fraction and not window.clients:
                continue
            if window.start > self.rounds:
                raise ValueError(
                    f"{section}.start={window.start} is after the last round (rounds={self.rounds}): the {section} "
                    "never begins"
                )
            clients = self.partition.get("clients")
            if isinstance(clients, int) and window.clients is None and window.fraction * clients < 0.5:
                raise ValueError(
                    f"{section}.fraction={window.fraction:g} of {clients} clients is less than half a client, so "
                    f"{nobody}; {1 / clients:.2g} is one of them"
                )
        return self

    @model_validator(mode="after")
    def _patients_are_counted_once(self) -> RunConfig:
        dp = self.privacy.dp
        if (
            faults.registry.get(self.fault["name"]).repeats_patients
            and dp is not None
            and dp.unit == "patient"
        ):
            raise ValueError(
                f"fault '{self.fault['name']}' repeats patients, whom privacy.dp with unit patient counts once"
            )
        return self

    def section(self, name: str) -> tuple[str, dict[str, Any]]:
        """A member section as (name, parameters)."""
        values = dict(getattr(self, name))
        return values.pop("name"), values

    def window(self, section: str = "attack") -> AttackWindow:
        """Who attacks, or is broken (`fault`), and when."""
        return AttackWindow(**{key: getattr(self, section)[key] for key in AttackWindow.model_fields})

    def attack_parameters(self, section: str = "attack") -> tuple[str, dict[str, Any]]:
        """The name and own parameters of the attack, or of the `fault`, without the window."""
        name, values = self.section(section)
        return name, {key: value for key, value in values.items() if key not in AttackWindow.model_fields}

    def identity(self) -> dict[str, Any]:
        """The identity of the run: what was said and is not a default, and the code of its plug-ins.

        The run's name is no part of it. A member's name always stands beside the parameters that it has.
        """
        values = self.non_default()
        values.pop("name", None)
        for section in SECTIONS:
            values.pop(section, None)
            member = self._member_identity(section)
            if member != {"name": type(self).model_fields[section].default["name"]}:
                values[section] = member
        if self.initial_model is not None:  # what it is, not where it lies
            values["initial_model"] = self.initial_model.sha256
        if self.plugins:  # what their code is, not where it lies
            values[plugins.KEY] = sorted(plugin.sha256 for plugin in self.plugins)
        return values

    def _member_identity(self, section: str) -> dict[str, Any]:
        registry, beside = SECTIONS[section]
        name, own = self.section(section)
        common = {} if beside is None else {key: own.pop(key) for key in beside.model_fields}
        window = {} if beside is None else beside(**common).non_default()
        return {"name": name, **window, **registry.validate(name, own).non_default()}

    @property
    def hash(self) -> str:
        """The same for the same experiment, whatever it is called and however many defaults are written out."""
        return _digest(self.identity())

    @property
    def legacy_hash(self) -> str:
        """What version 0.1 called this run: the hash of all values, defaults included. For one release."""
        values = {key: value for key, value in self.plain().items() if key in LEGACY_KEYS}
        for key in TRAINING_SINCE:
            if values["training"].get(key) == TrainingParams.model_fields[key].default:
                del values["training"][key]
        if self.fault["name"] != "none":  # version 0.1 had no such run
            values["fault"] = self.plain()["fault"]
        for section, (registry, _) in SECTIONS.items():
            if section not in values:
                continue
            params = registry.get(values[section]["name"]).Params
            for key in params.new:
                if values[section].get(key) == _plain(params.model_fields[key].default):
                    del values[section][key]
            for former, present in params.renamed.items():
                values[section][former] = values[section].pop(present)
        return _digest(values)

    @property
    def run_name(self) -> str:
        """The name of the run's folder."""
        return f"{self.name}-{self.hash}"

    @property
    def legacy_run_name(self) -> str:
        """The name of the folder in which version 0.1 has this run."""
        return f"{self.name}-{self.legacy_hash}"


def _plain(value: Any) -> Any:
    """A default as a configuration that was written and read has it."""
    return list(value) if isinstance(value, tuple) else value


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def load_config(values: Mapping[str, Any], where: str = "config") -> RunConfig:
    """Check a configuration; `where` (usually the file) opens every error message."""
    values = {key: value for key, value in values.items() if key != RECORD}
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, RunConfig)}") from None
    except PluginError as error:
        raise PluginError(f"{where}: {error}", error.file, error.line) from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except TypeError as error:
        raise ConfigError(f"{where}: keys must be words ({error})") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file, or one line on what is wrong with it.

    The files of its dataset and of its plug-ins are seen from its own folder, wherever the mapping goes from here.
    """
    values = read_yaml_file(path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys and values, got {type(values).__name__}")
    values = dataset_paths.anchored(values, path.parent)
    return initial_model.anchored(plugins.anchored(values, path.parent), path.parent)


def override(values: Mapping[str, Any], changes: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Apply dotted keys: `["aggregator.name=krum", "seed=3"]` or `{"aggregator.name": "krum"}`.

    A new name in a section leaves behind the old member's parameters that the new one does not have.

    >>> override({"aggregator": {"name": "caac", "t_boot": 5}}, ["aggregator.name=fedavg", "seed=3"])
    {'aggregator': {'name': 'fedavg'}, 'seed': 3}
    """
    flat = parse_overrides(changes)
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    # Names first, so that `attack.scale=1 attack.name=sign-flip` means the same in either order.
    for key, value in sorted(flat.items(), key=lambda pair: not pair[0].endswith(".name")):
        *path, last = key.split(".")
        place: Any = result
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"'{key}': {part} is not a section")
        if last == "name" and len(path) == 1 and path[0] in SECTIONS and place.get("name") != value:
            for stale in _stale_keys(path[0], value, place):
                del place[stale]
        place[last] = value
    return result


def _stale_keys(section: str, member: Any, values: Mapping[str, Any]) -> list[str]:
    """Keys of a section that its new member does not have; none where nobody knows the member."""
    try:
        known = [*_known_keys(section, member), *SECTIONS[section][0].get(member).Params.renamed]
    except ParameterError:
        return []
    return [key for key in values if key not in known]


def parse_overrides(changes: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as a mapping of dotted keys to values; texts `key=value` are read as YAML."""
    if isinstance(changes, Mapping):
        return dict(changes)
    flat: dict[str, Any] = {}
    for key, value in map(_pair, changes):
        if key in flat:
            raise ConfigError(f"'{key}' is given twice among the overrides: keep one of them")
        flat[key] = value
    return flat


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested overrides as dotted ones.

    >>> dotted({"attack": {"name": "alie", "k": 2}, "seed": 1})
    {'attack.name': 'alie', 'attack.k': 2, 'seed': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping)
        flat |= dotted(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def _pair(change: str) -> tuple[str, Any]:
    key, equals, value = change.partition("=")
    if not equals or not key:
        raise ConfigError(f"'{change}': an override is written key=value, for example seed=3")
    try:
        return key, parse_yaml(value)
    except yaml.YAMLError:
        raise ConfigError(f"'{change}': the value is not valid YAML") from None
