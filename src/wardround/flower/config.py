"""The configurations of a federation and of a hospital: `fed.yaml` and `hospital.yaml`.

`fed.yaml` has the keys of a run (`runs.config`) and a section `federation`. Two of a run's sections may be
missing: without `dataset` the server has no data of its own and the hospitals evaluate the model; without
`partition` the hospitals have data of their own, which is what a federation is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator

from wardround import aggregators, attacks, datasets, plugins
from wardround.attacks.base import KnowledgeLevel
from wardround.datasets import partition
from wardround.datasets.schema import SchemaOption
from wardround.errors import ConfigError, WardroundError, did_you_mean
from wardround.flower.hospital.policy import HospitalPolicy
from wardround.plugins import Plugin
from wardround.privacy.params import STEWARDED
from wardround.registry import Parameters, explain
from wardround.runs.config import RunConfig, load_config, read_yaml
from wardround.runs.folder import RunFolder
from wardround.runs.identity import adopt_former_folder, find_folder
from wardround.training.engines import Device, Engine
from wardround.yaml_text import parse_yaml

__all__ = [
    "FederationConfig",
    "FederationParams",
    "HospitalConfig",
    "federation_from",
    "from_run_config",
    "hospital_from",
    "load_federation",
    "load_hospital",
]

Section = TypeVar("Section", bound=BaseModel)
Answer = TypeVar("Answer")
LONGEST_WAIT = 300.0
MOST_ROUNDS = 10**9
"""Seconds between two tries, however often the quorum was missed before."""


class FederationParams(SchemaOption):
    """How the server deals with its hospitals.

    `schema`: what the columns of the hospitals' tables mean; None: as the server's own dataset has it, or as the
    hospitals' statistics agree on it.
    """

    clients: int | None = Field(None, ge=1)
    """Hospitals that are expected; None: as many as `partition` has."""
    quorum: int | float = 0.5
    """Usable updates a round needs: a count, or a share of the hospitals asked."""
    deadline_seconds: float = Field(600.0, gt=0)
    """A round does not wait longer than this for anyone."""
    retries: int = Field(5, ge=0)
    """How often a missed quorum is tried again before the run stops."""
    backoff_seconds: float = Field(10.0, ge=0)
    """Before the first retry; each later one waits twice as long, 5 minutes at most."""
    poll_seconds: float = Field(0.5, ge=0)
    """Between two looks for replies."""
    sample_cap: float | None = Field(1000.0, ge=1)
    """A hospital that claims more than this multiple of the round's median sample count is left out."""
    recheck_seconds: float = Field(15.0, ge=0)
    """How long after a refusal a hospital whose data did not fit is asked again: it may have fixed them."""
    identity: Literal["node", "name"] = "node"
    """Who a hospital is: the node (that is: the key) that announced the name first, or whoever says the name.
    The latter is for simulations, whose nodes have no keys."""
    rebind: tuple[str, ...] = ()
    """Hospitals that may come back as another node, because their key was replaced."""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    """Where the SuperLink listens."""
    certificate: Path | None = None
    certificate_key: Path | None = None
    root_certificates: Path | None = None
    node_keys: Path | None = None
    """The folder with the hospitals' public keys: nobody else may join."""
    state: Path | None = None
    """Where the server's processes keep their logs; None: beside the runs."""
    metrics_port: int | None = Field(None, ge=1, le=65535)
    """Where `serve` answers Prometheus (`/metrics`) and health checks (`/health`); None: nowhere."""
    metrics_host: str = "127.0.0.1"
    """Its address. The metrics name hospitals, and nobody is asked for a password."""
    deliver: bool = True
    """Bring the finished model to every hospital that took part."""
    delivery_seconds: float = Field(60.0, ge=0)
    """After the last round: how long the server waits for hospitals that are away, to give them the model."""
    onnx: bool = True
    """Is model.onnx part of what is delivered? Needs the extra `export` at the server."""

    @field_validator("quorum")
    @classmethod
    def _count_or_share(cls, value: int | float) -> int | float:
        if isinstance(value, bool) or value <= 0 or (isinstance(value, float) and value > 1):
            raise ValueError("must be a count of at least 1, or a share above 0 and up to 1.0")
        return value

    def needed(self, asked: int) -> int:
        """Usable updates that a round of `asked` hospitals needs.

        >>> FederationParams(quorum=0.5).needed(5), FederationParams(quorum=2).needed(5)
        (3, 2)
        """
        return max(1, self.quorum if isinstance(self.quorum, int) else math.ceil(self.quorum * asked))

    def wait(self, attempt: int) -> float:
        """Seconds before the `attempt`-th retry (from 1).

        >>> [FederationParams(backoff_seconds=100).wait(attempt) for attempt in (1, 2, 3)]
        [100.0, 200.0, 300.0]
        """
        return min(LONGEST_WAIT, self.backoff_seconds * 2.0 ** min(attempt - 1, 30))


@dataclass(frozen=True)
class FederationConfig:
    """A checked `fed.yaml`."""

    run: RunConfig
    federation: FederationParams
    has_dataset: bool
    """Does the server have data of its own, to judge by and for root samples?"""
    has_partition: bool
    """Do the hospitals share out the server's dataset (simulations), or have their own?"""

    @property
    def clients(self) -> int:
        """Hospitals that are expected."""
        if self.federation.clients is not None:
            return self.federation.clients
        return int(self.run.partition["clients"])

    @property
    def per_round(self) -> int:
        """Hospitals that are asked each round, when all are there."""
        return max(1, math.floor(self.run.participation * self.clients + 0.5))

    def plain(self) -> dict[str, Any]:
        """What goes into the run folder's config.yaml: the keys of any run, and `federation`."""
        values = self.run.plain()
        if not self.has_dataset:
            values["dataset"] = {"name": "hospitals"}
        if not self.has_partition:
            values["partition"] = {"name": "hospitals", "clients": self.clients}
        return {**values, "federation": self.federation.model_dump(mode="json")}

    def adopt_former_folder(self, out: Path) -> None:
        """Go on with a run that version 0.1 has begun."""
        adopt_former_folder(self.run, out)

    def find_folder(self, out: Path) -> RunFolder:
        """The run folder in `out`, where it is or where it will be."""
        values = self.plain()
        del values["federation"]  # quorum, addresses and keys may change before a run is resumed
        return find_folder(self.run, out, values)


class HospitalConfig(Parameters):
    """One hospital: its name, its data, its way to the server."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)
    plugins: tuple[Plugin, ...] = ()
    """Files and modules with members of its own. Before the sections, which may name such members."""
    dataset: dict[str, Any]
    """Its own data: any dataset of `wardround list datasets`; of one's own table `{name: csv, file: …, label: …}`."""
    partition: dict[str, Any] | None = None
    """For trials: this hospital holds one part of the dataset, as a run with this section deals it out."""
    part: int | None = Field(None, ge=0)
    """Which part (from 0)."""
    seed: int = Field(0, ge=0)
    """Decides which of its samples are for training and which for testing."""
    attack: dict[str, Any] | None = None
    """For drills: this hospital attacks (`{name: sign-flip, start: 3, …}`)."""
    steward_key: Path | None = None
    """The key it shares with the steward, for encrypted modes."""
    engine: Engine = "auto"
    """`auto` is `sequential` where the hospital has few samples (`warm_up.COMPILED_FROM`)."""
    device: Device = "auto"
    superlink: str = "127.0.0.1:8000"
    root_certificates: Path | None = None
    node_key: Path | None = None
    """Its private key."""
    peer_keys: Path | None = None
    """The folder with the other hospitals' public keys (NAME.pub), for the mode secure-aggregation: the server cannot
    play hospitals of its own then. Not to be had from the server."""
    runtime_port: int | None = Field(None, ge=1, le=65535)
    """Not used any more; accepted so that older files still work."""
    state: Path | None = None
    """A folder for what it remembers between rounds, and for its log; None: beside the configuration."""
    models: Path | None = None
    """A folder for the finished models that it is brought; None: `models` in its state folder."""
    policy: HospitalPolicy = HospitalPolicy()
    """What it accepts from the server; the defaults are safe."""

    @field_validator("plugins", mode="before")
    @classmethod
    def _loaded(cls, entries: Any) -> tuple[Plugin, ...]:
        return plugins.load_all(entries)

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _member(datasets.registry, values)

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, values: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if values is None else _member(partition.registry, values)

    def run_attack(self, where: str = "hospital") -> RunConfig:
        """The drill as a run would have it."""
        window = {"clients": [self.name], "fraction": 0.0}
        # How many rounds there are is the server's to say.
        return load_config({"attack": {**(self.attack or {}), **window}, "rounds": MOST_ROUNDS}, where)


def _member(registry: Any, values: dict[str, Any]) -> dict[str, Any]:
    if "name" not in values:
        raise ConfigError(f"{registry.kind}: 'name' is required; {did_you_mean('', registry.available())}")
    own = {key: value for key, value in values.items() if key != "name"}
    return {"name": values["name"], **registry.validate(values["name"], own).model_dump(mode="json")}


def load_federation(path: Path) -> FederationConfig:
    """`fed.yaml`, checked; every mistake is one line that begins with the file's name."""
    return federation_from(read_yaml(Path(path)), str(path), Path(path).parent)


def from_run_config(path: str, text: str) -> FederationConfig:
    """The federation that a Flower run is given: YAML text under `config-text`, or a path under `config`."""
    if text:
        return federation_from(text, "config-text")
    if not path:
        raise ConfigError("the run configuration has neither config (a path) nor config-text (YAML)")
    return load_federation(Path(path))


def load_hospital(path: Path) -> HospitalConfig:
    """`hospital.yaml`, checked; relative paths are seen from the file's folder."""
    return hospital_from(read_yaml(Path(path)), str(path), Path(path).parent)


def federation_from(
    values: Mapping[str, Any] | str, where: str = "config", base: Path | None = None
) -> FederationConfig:
    """A federation out of a mapping or of YAML text."""
    if isinstance(values, str):
        try:
            values = parse_yaml(values) or {}
        except yaml.YAMLError as error:
            raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', error)}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: expected keys and values")
    own = _with_federation_defaults(dict(values))
    section = own.pop("federation", None) or {}
    federation = _section(FederationParams, section, f"{where}: federation", base)
    run = load_config(own, where)
    config = FederationConfig(run, federation, "dataset" in own, "partition" in own)
    federation.given_schema()  # its mistakes are told here, with the schema's own name
    problem = _explained(where, _why_not, config)
    if problem is not None:
        raise ConfigError(f"{where}: {problem}")
    return config


def _with_federation_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in what the rule has other defaults for in a federation; what is said stays."""
    section = values.get("aggregator")
    if not isinstance(section, dict) or (name := section.get("name")) not in aggregators.available():
        return values  # or a plug-in's, or a mistake that is explained later
    defaults = aggregators.registry.get(name).federation_defaults
    return {**values, "aggregator": {**defaults, **section}}


def hospital_from(
    values: Mapping[str, Any], where: str = "config", base: Path | None = None
) -> HospitalConfig:
    """A hospital out of a mapping."""
    config = _section(HospitalConfig, values, where, base)
    if (config.partition is None) != (config.part is None):
        raise ConfigError(
            f"{where}: partition and part go together: how the data is dealt out, and which part"
        )
    if config.partition is not None and not (config.part or 0) < config.partition["clients"]:
        raise ConfigError(f"{where}: part must be below partition.clients = {config.partition['clients']}")
    if config.peer_keys is not None and config.node_key is None:
        raise ConfigError(f"{where}: peer_keys needs node_key: what this hospital sends is signed with it")
    if config.attack is not None:
        # The colluders of one hospital are that hospital.
        seen = (KnowledgeLevel.OWN, KnowledgeLevel.COLLUDERS)
        _explained(where, _check_drill, config.run_attack(where), seen)
    return config


def _explained(where: str, check: Callable[..., Answer], *args: Any) -> Answer:
    """Every message opens with the file."""
    try:
        return check(*args)
    except WardroundError as error:
        raise ConfigError(f"{where}: {error}") from None


def _section(model: type[Section], values: Any, where: str, base: Path | None) -> Section:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected keys and values")
    try:
        checked = model(**values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, model)}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except TypeError as error:
        raise ConfigError(f"{where}: keys must be words ({error})") from None
    if base is None:
        return checked
    paths = {
        key: base / value for key, value in checked if isinstance(value, Path) and not value.is_absolute()
    }
    return checked.model_copy(update=paths)


def _why_not(config: FederationConfig) -> str | None:
    """Why these parts cannot work together in a federation."""
    run = config.run
    if config.has_partition and not config.has_dataset:
        return "partition shares out the server's dataset, but there is none: add dataset, or leave partition out"
    if not config.has_partition and config.federation.clients is None:
        return "federation.clients is required (how many hospitals are expected) where there is no partition"
    if config.has_partition and config.federation.clients not in (None, run.partition["clients"]):
        return (
            f"federation.clients is {config.federation.clients}, but partition.clients is "
            f"{run.partition['clients']}"
        )
    rule = aggregators.create(run.aggregator["name"], **run.section("aggregator")[1])
    if run.fault["name"] != "none":
        return (
            f"fault '{run.fault['name']}': faults are played in simulations only; in a federation hospitals have their "
            "own, and nobody says so beforehand: leave fault out"
        )
    if rule.needs_attackers:
        return f"aggregator '{rule.name}' is told who attacks, which only a simulation knows: choose another rule"
    if (rule.needs_root_update or rule.needs_practice_ground) and not config.has_dataset:
        return f"aggregator '{rule.name}' needs root data at the server: add dataset"
    rule.check(config.per_round)
    if config.federation.needed(config.per_round) > config.per_round:
        return (
            f"federation.quorum is {config.federation.quorum}, but only {config.per_round} hospitals are asked "
            "a round"
        )
    _check_drill(run, (KnowledgeLevel.OWN,))
    if run.window().fraction and not config.has_partition:
        return (
            "attack.fraction: no hospital attacks because the server says so; a drill is in its hospital.yaml, and "
            "attack.clients names those who play one, for the record"
        )
    if run.training.client_momentum:
        return (
            "training.client_momentum: hospitals keep no momentum between rounds; use aggregator.pre: "
            "[{name: momentum}], which keeps it at the server"
        )
    privacy = run.privacy
    if privacy.mode in STEWARDED and privacy.steward is None:
        return (
            f"privacy.mode {privacy.mode} needs a steward in a process of its own in a federation: start "
            "`wardround steward` and give privacy.steward and privacy.steward_keys"
        )
    if privacy.pseudonyms is not None:
        return "privacy.pseudonyms: hospitals choose their names themselves in a federation"
    return None


def _check_drill(config: RunConfig, seen: tuple[KnowledgeLevel, ...]) -> None:
    """An attacker in a federation sits in its hospital: it can only use what it sees there."""
    name, params = config.attack_parameters()
    attack = attacks.create(name, **params)
    for part, _ in attack.assign(["one", "two"]):
        if part.knowledge not in seen or part.knows_defence:
            alone = [
                other
                for other in attacks.available()
                if attacks.registry.get(other).knowledge_levels[0] is KnowledgeLevel.OWN
            ]
            raise ConfigError(
                f"attack '{part.name}' sees other clients' updates, which no hospital of a federation can; "
                f"attacks that a hospital can play alone: {', '.join(alone)}"
            )
