"""Which hospitals are connected, how long the server waits for them, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flwr.serverapp import Grid

from wardround import __version__ as wardround_version
from wardround.datasets import Dataset
from wardround.datasets.partition import Assignment
from wardround.datasets.preprocessing import Preprocessing
from wardround.datasets.schema import Schema
from wardround.datasets.tabular import adopt
from wardround.errors import ConfigError, WardroundError
from wardround.federation.clients import TooFewReplies
from wardround.flower.config import FederationConfig
from wardround.flower.messages import HELLO, MIN_COUNT_KEY, REFUSED_KEY, SCHEMA_KEY, VERSIONS_KEY, Note
from wardround.flower.server.broker import SHORTEST_SLEEP, Broker
from wardround.flower.server.doorbell import Bell
from wardround.flower.server.key_folder import KeyFolder
from wardround.flower.server.roster import SHAPE, Roster, identity_of, identity_of_key
from wardround.flower.server.table_agreement import agree, shape_of
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import AUDIT_LOG

__all__ = ["Membership", "QuorumMissed"]

Result = TypeVar("Result")


class QuorumMissed(WardroundError):
    """Too few hospitals answered, and all retries are used up."""


class Membership:
    """The hospitals of a federation: who is connected, under which name, and how to reach them."""

    def __init__(
        self,
        config: FederationConfig,
        grid: Grid,
        folder: RunFolder,
        dataset: Dataset | None,
        assignment: Assignment | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.config, self.grid, self.folder = config, grid, folder
        self.params, self.clock, self.sleep = config.federation, clock, sleep
        self.audit = AuditLog(folder.path / AUDIT_LOG)
        bell = Bell.from_environment(sleep)
        self.broker = Broker(grid, self.params.poll_seconds, self._log_unusable, clock, sleep, bell)
        self.order = None if assignment is None else assignment.clients
        self._key_folder = _key_folder(config)
        self.roster = Roster(
            self.audit.append,
            self.params.identity == "node",
            self.params.rebind,
            self.order,
            None if self._key_folder is None else _identities(self._key_folder),
        )
        self.schema = _schema_of(config, dataset, assignment)
        """What the hospitals' tables must fit; None: not known yet, or no tables."""
        self._ask_again: dict[str, float] = {}
        """Identity of a hospital that was refused or whose data did not fit → when it is asked again."""
        self._present: set[str] = set()
        self._gone: set[str] = set()
        """Hospitals that were connected when somebody last looked, and those that were before."""
        if dataset is not None and (dataset.raw is None or assignment is not None):
            values = (dataset.task.value, dataset.class_names, dataset.input_shape, dataset.feature_names)
            self.roster.shape = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in zip(SHAPE, values, strict=True)
            }
            if dataset.preprocessing is not None:
                self.roster.shape |= shape_of(dataset.preprocessing)
        if assignment is None:
            self._begin_from_model()

    def _begin_from_model(self) -> None:
        """A run that begins from an exported model has its columns, levels and scales already."""
        initial = self.config.run.initial_model
        preprocessing = None if initial is None else initial.preprocessing()
        if preprocessing is None:
            return
        if self.schema is not None and self.schema.hash != preprocessing.schema.hash:
            raise ConfigError(
                "federation.schema is another than that of initial_model; leave it out: the model's own is used"
            )
        self.schema, self.roster.shape = preprocessing.schema, shape_of(preprocessing)

    def _log_unusable(self, event: str, sender: str, round: int, reason: str) -> None:
        client = self.roster.names.get(sender, sender)
        self.audit.append(event, client=client, round=round, reason=reason)

    def refresh(self) -> dict[str, int]:
        """Return the connected hospitals (name → node id); ask each new node for its name."""
        if self._key_folder is not None:
            self._key_folder.changed()
            self.roster.obey(_identities(self._key_folder))
        nodes = list(self.grid.get_nodes())
        for node in nodes:
            self.broker.bell.introduce(node.node_id, identity_of(node))
        _, unknown = self.roster.split_known(nodes)
        now = self.clock()
        early = {identity for identity, time in self._ask_again.items() if time > now}
        not_asked = sorted(set(unknown) - self.broker.pending(HELLO) - early)
        refused = {identity for identity in not_asked if identity in self.roster.refused}
        new = {identity: unknown[identity] for identity in not_asked if identity not in refused}
        self.broker.send(self._hello(), new, 0, self.params.deadline_seconds)
        for identity in sorted(refused):  # it is told why, and may have fixed it
            hello = self._hello(self.roster.refused[identity])
            self.broker.send(hello, {identity: unknown[identity]}, 0, self.params.deadline_seconds)
        self._admit_new()
        present, _ = self.roster.split_known(nodes)
        self._note_presence(present)
        if self.order is not None:
            return {client: present[client] for client in self.order if client in present}
        return dict(sorted(present.items()))

    def _note_presence(self, nodes: Mapping[str, int]) -> None:
        """Log who has gone, and who is back: with other software or data, perhaps, so that it is asked again."""
        present = set(nodes)
        for client in sorted(self._present - present):
            self.audit.append("disconnected", client=client)
        back = sorted((present - self._present) & self._gone)
        for client in back:
            self.audit.append("connected", client=client)
        asked = {identity: nodes[name] for identity, name in self.roster.names.items() if name in back}
        self.broker.send(self._hello(), asked, 0, self.params.deadline_seconds)
        self._gone = (self._gone | self._present) - present
        self._present = present

    def _hello(self, refused: str | None = None) -> Note:
        head: dict[str, Any] = {
            "kind": HELLO,
            MIN_COUNT_KEY: self.config.run.preprocessing.min_count,
            VERSIONS_KEY: {"wardround": wardround_version},
        }
        if refused is not None:
            head[REFUSED_KEY] = refused
        return Note(head if self.schema is None else {**head, SCHEMA_KEY: self.schema.to_dict()})

    def _admit_new(self) -> set[str]:
        """Admit those who have introduced themselves since the last look; return their identities."""
        introductions = self.broker.introductions()
        for identity, reply in introductions.items():
            known_as_refused = identity in self.roster.refused
            self.roster.admit(identity, reply)
            # One that has just been refused is asked again at once, because it has to be told.
            if identity in self.roster.unfit or (known_as_refused and identity in self.roster.refused):
                self._ask_again[identity] = self.clock() + self.params.recheck_seconds
        return set(introductions)

    def agree(self) -> None:
        """Fix what data look like: for tables the schema and the preprocessing, by all hospitals' statistics."""
        roster = self.roster
        if roster.shape is not None and "preprocessing" in roster.shape:
            self._check_schema_is_the_same(roster.shape)
            return
        if roster.shape is not None or (not roster.tables and self.schema is None):
            roster.agree_on_shape()
            return
        preprocessing = agree(roster.tables, self.schema, self.config.run.preprocessing, self.audit.append)
        roster.shape = shape_of(preprocessing)
        if self.schema is None:  # nobody knew it when the hospitals introduced themselves
            self.schema = preprocessing.schema
            self._introduce_again()

    def _check_schema_is_the_same(self, shape: dict[str, Any]) -> None:
        """A run that is resumed has its schema already."""
        agreed = Schema.from_dict(shape["schema"])
        if self.schema is not None and self.schema.hash != agreed.hash:
            raise ConfigError(
                "federation.schema is another than this run began with; put the old one back, or begin another run "
                "(under another name)"
            )
        self.schema = agreed

    def _introduce_again(self) -> None:
        """Ask all hospitals whether their tables fit the schema that was agreed on."""
        nodes = {identity_of(node): node.node_id for node in self.grid.get_nodes()}
        known = {identity: node for identity, node in nodes.items() if identity in self.roster.names}
        self.broker.send(self._hello(), known, 0, self.params.deadline_seconds)
        waiting, end = set(known), self.clock() + self.params.deadline_seconds
        while True:
            waiting -= self._admit_new()
            if not waiting or self.clock() >= end:
                return
            self.sleep(max(self.params.poll_seconds, SHORTEST_SLEEP))

    def prepared(self, dataset: Dataset | None) -> Dataset | None:
        """The server's own dataset as the hospitals' tables are preprocessed."""
        shape = self.roster.shape or {}
        if dataset is None or self.order is not None or shape.get("preprocessing") is None:
            return dataset
        return adopt(dataset, Preprocessing.from_dict(shape["preprocessing"]), self.config.run.seed)

    def wait_for(self, count: int) -> dict[str, int]:
        """Wait until `count` hospitals are connected, but no longer than the deadline; return who is."""
        end = self.clock() + self.params.deadline_seconds
        while len(present := self.refresh()) < count and self.clock() < end:
            if len(present) + len(self.roster.refused) + len(self.roster.unfit) >= self.config.clients:
                break  # everyone expected has come, even if some were refused
            self.sleep(max(self.params.poll_seconds, SHORTEST_SLEEP))
        return present

    def wait_for_start(self, resumed: bool) -> None:
        """Wait for all expected hospitals (up to the deadline); a resumed run waits only for its quorum."""
        needed = self.params.needed(self.config.per_round)
        self._gone = set(self.roster.names.values())

        def attempt() -> None:
            present = self.wait_for(needed if resumed else self.config.clients)
            if len(present) < needed:
                raise TooFewReplies(
                    f"{len(present)} of {self.config.clients} hospitals have joined, {needed} are needed"
                )

        if (self.roster.shape or {}).get("schema") is not None:
            self.agree()  # a run that is resumed: whoever introduces itself is told the schema
        self.retry_until_quorum(attempt, 1)
        self.agree()

    def retry_until_quorum(self, attempt: Callable[[], Result], round: int) -> Result:
        """Return what `attempt` returns; repeat it while it raises `TooFewReplies` and retries are left."""
        number = 0
        while True:
            number += 1
            try:
                return attempt()
            except TooFewReplies as error:
                self.wait_for_retry(round, number, str(error))

    def wait_for_retry(self, round: int, attempt_number: int, reason: str) -> None:
        """Log that an attempt missed the quorum, then sleep until the next one, longer each time.

        Args:
            round: The round that was attempted.
            attempt_number: 1 for the first attempt.
            reason: Why the quorum was missed.

        Raises:
            QuorumMissed: No retry is left after this attempt.
        """
        retries = self.params.retries
        wait = self.params.wait(attempt_number) if attempt_number <= retries else None
        self.audit.append("quorum-missed", round=round, reason=reason, retry_in_seconds=wait)
        if wait is None:
            raise QuorumMissed(
                f"round {round}: {reason}; gave up after {retries} retries. Bring hospitals back and start "
                "again: the run resumes from here"
            )
        self.sleep(wait)


def _key_folder(config: FederationConfig) -> KeyFolder | None:
    """The folder of registered keys; None where hospitals are known by their names alone."""
    folder = config.federation.node_keys
    return None if folder is None or config.federation.identity != "node" else KeyFolder(folder)


def _identities(folder: KeyFolder) -> dict[str, str]:
    """Identity → name of every registered key: a hospital's name is the file name of its key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return {
        identity_of_key(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)): name
        for name, key in folder.keys.items()
    }


def _schema_of(
    config: FederationConfig, dataset: Dataset | None, assignment: Assignment | None
) -> Schema | None:
    """The schema that hospitals must fit: what `fed.yaml` gives, or what the server's own table has."""
    given = config.federation.given_schema()
    if given is not None or assignment is not None:
        return given
    return None if dataset is None or dataset.raw is None else dataset.raw.schema
