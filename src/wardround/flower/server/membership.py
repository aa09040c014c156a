"""Where a federation's server meets its hospitals: who is there, how long they are waited for, when to give up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.serverapp import Grid

from wardround.datasets import Dataset
from wardround.datasets.partition import Assignment
from wardround.errors import WardroundError
from wardround.flower.config import FederationConfig
from wardround.flower.messages import HELLO, Note
from wardround.flower.server.broker import SHORTEST_NAP, Exchange
from wardround.flower.server.roster import SHAPE, Roster
from wardround.runs.audit import AuditLog
from wardround.runs.folder import RunFolder
from wardround.runs.quarantine import AUDIT_LOG

__all__ = ["Lobby", "QuorumMissed", "TooFewAnswers"]


class QuorumMissed(WardroundError):
    """Too few hospitals answered, time after time."""


class TooFewAnswers(Exception):
    """This try of a round had too few usable updates."""


class Lobby:
    """Where hospitals are met: who is there, and how to reach them."""

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
        self.exchange = Exchange(grid, self.params.poll_seconds, self._notice, clock, sleep)
        self.order = None if assignment is None else assignment.clients
        self.roster = Roster(
            self.audit.append, self.params.identity == "node", self.params.rebind, self.order
        )
        if dataset is not None:
            told = (dataset.task.value, dataset.class_names, dataset.input_shape, dataset.feature_names)
            self.roster.shape = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in zip(SHAPE, told, strict=True)
            }

    def _notice(self, event: str, who: str, round: int, reason: str) -> None:
        self.audit.append(event, client=self.roster.names.get(who, who), round=round, reason=reason)

    def look(self) -> dict[str, int]:
        """The hospitals that are there, by name; whoever is new is asked for its name."""
        nodes = list(self.grid.get_nodes())
        _, strangers = self.roster.sort(nodes)
        unasked = sorted(set(strangers) - self.exchange.asked(HELLO))
        order = Note({"kind": HELLO})
        new = {identity: strangers[identity] for identity in unasked}
        self.exchange.send(order, new, 0, self.params.deadline_seconds)
        for identity, reply in self.exchange.introductions().items():
            self.roster.introduce(identity, reply)
        present, _ = self.roster.sort(nodes)
        if self.order is not None:
            return {client: present[client] for client in self.order if client in present}
        return dict(sorted(present.items()))

    def meet(self, wanted: int) -> dict[str, int]:
        """Wait until so many hospitals are there, but no longer than the deadline."""
        end = self.clock() + self.params.deadline_seconds
        while len(present := self.look()) < wanted and self.clock() < end:
            if len(present) + len(self.roster.refused) >= self.config.clients:
                break  # all who are expected have come, if not all may take part
            self.sleep(max(self.params.poll_seconds, SHORTEST_NAP))
        return present

    def open(self, resumed: bool) -> None:
        """A new run waits for all who are expected (up to the deadline), a resumed one only for its quorum."""
        needed = self.params.needed(self.config.per_round)

        def arrive() -> None:
            present = self.meet(needed if resumed else self.config.clients)
            if len(present) < needed:
                raise TooFewAnswers(
                    f"{len(present)} of {self.config.clients} hospitals have joined, {needed} are needed"
                )

        self.persist(arrive, 1)
        self.roster.agree()

    def persist(self, attempt: Callable[[], Any], round: int) -> Any:
        """Try again while too few hospitals answer, waiting longer each time; then say so and stop."""
        for number in range(1, self.params.retries + 2):
            try:
                return attempt()
            except TooFewAnswers as few:
                last, wait = str(few), self.params.wait(number)
                again = number <= self.params.retries
                self.audit.append(
                    "quorum-missed", round=round, reason=last, retry_in_seconds=wait if again else None
                )
                if again:
                    self.sleep(wait)
        raise QuorumMissed(
            f"round {round}: {last}; gave up after {self.params.retries} retries. Bring hospitals back and start "
            "again: the run goes on from here"
        )
