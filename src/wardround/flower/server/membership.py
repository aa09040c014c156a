"""Which hospitals are connected, how long the server waits for them, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flwr.serverapp import Grid

from wardround.datasets import Dataset
from wardround.datasets.partition import Assignment
from wardround.errors import WardroundError
from wardround.federation.clients import TooFewReplies
from wardround.flower.config import FederationConfig
from wardround.flower.messages import HELLO, Note
from wardround.flower.server.broker import SHORTEST_SLEEP, Broker
from wardround.flower.server.roster import SHAPE, Roster, identity_of_key
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
        self.broker = Broker(grid, self.params.poll_seconds, self._log_unusable, clock, sleep)
        self.order = None if assignment is None else assignment.clients
        self.roster = Roster(
            self.audit.append,
            self.params.identity == "node",
            self.params.rebind,
            self.order,
            _registered(config),
        )
        if dataset is not None:
            values = (dataset.task.value, dataset.class_names, dataset.input_shape, dataset.feature_names)
            self.roster.shape = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in zip(SHAPE, values, strict=True)
            }

    def _log_unusable(self, event: str, sender: str, round: int, reason: str) -> None:
        client = self.roster.names.get(sender, sender)
        self.audit.append(event, client=client, round=round, reason=reason)

    def refresh(self) -> dict[str, int]:
        """Return the connected hospitals (name → node id); ask each new node for its name."""
        nodes = list(self.grid.get_nodes())
        _, unknown = self.roster.split_known(nodes)
        not_asked = sorted(set(unknown) - self.broker.pending(HELLO))
        new = {identity: unknown[identity] for identity in not_asked}
        self.broker.send(Note({"kind": HELLO}), new, 0, self.params.deadline_seconds)
        for identity, reply in self.broker.introductions().items():
            self.roster.admit(identity, reply)
        present, _ = self.roster.split_known(nodes)
        if self.order is not None:
            return {client: present[client] for client in self.order if client in present}
        return dict(sorted(present.items()))

    def wait_for(self, count: int) -> dict[str, int]:
        """Wait until `count` hospitals are connected, but no longer than the deadline; return who is."""
        end = self.clock() + self.params.deadline_seconds
        while len(present := self.refresh()) < count and self.clock() < end:
            if len(present) + len(self.roster.refused) >= self.config.clients:
                break  # everyone expected has come, even if some were refused
            self.sleep(max(self.params.poll_seconds, SHORTEST_SLEEP))
        return present

    def wait_for_start(self, resumed: bool) -> None:
        """Wait for all expected hospitals (up to the deadline); a resumed run waits only for its quorum."""
        needed = self.params.needed(self.config.per_round)

        def attempt() -> None:
            present = self.wait_for(needed if resumed else self.config.clients)
            if len(present) < needed:
                raise TooFewReplies(
                    f"{len(present)} of {self.config.clients} hospitals have joined, {needed} are needed"
                )

        self.retry_until_quorum(attempt, 1)
        self.roster.agree_on_shape()

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
                "again: the run goes on from here"
            )
        self.sleep(wait)


def _registered(config: FederationConfig) -> dict[str, str] | None:
    """Identity → name of every registered key: a hospital's name is the file name of its key."""
    folder = config.federation.node_keys
    if folder is None or config.federation.identity != "node":
        return None
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from wardround.flower.certificates import public_keys

    return {
        identity_of_key(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)): name
        for name, key in public_keys(folder).items()
    }
