"""A finished or unfinished run as the analysis sees it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from wardround.experiments.folder import RunFolder, find_runs

__all__ = ["Run", "load_runs"]


class Run:
    """One run folder, read when asked."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.config: dict[str, Any] = folder.config()
        self.record: dict[str, Any] = self.config.get("record", {})

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Empty while the run goes on."""
        return self.folder.summary() or {}

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        return self.folder.rounds()

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        return self.folder.clients()

    @property
    def method(self) -> str:
        """The rule's name."""
        return self.config["aggregator"]["name"]

    @property
    def attack(self) -> str:
        """The attack in a few words: name, share and onset."""
        attack = self.config["attack"]
        byzantine = len(self.byzantine)
        if attack["name"] == "none" or not byzantine:
            return "clean"
        share = round(100 * byzantine / max(1, len(self.record["clients"])))
        onset = f" from round {attack['start']}" if attack["start"] > 1 else ""
        return f"{attack['name']} {share} %{onset}"

    @property
    def setting(self) -> str:
        """What makes runs comparable but for rule, attack and seed: dataset, partition, clients."""
        partition = self.config["partition"]
        alpha = f" α {partition['alpha']:g}" if "alpha" in partition else ""
        clients = len(self.record.get("clients", ()))
        return f"{self.config['dataset']['name']} · {partition['name']}{alpha} · {clients} clients"

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def byzantine(self) -> list[str]:
        return self.record.get("attack", {}).get("byzantine", [])

    def final(self, metric: str) -> float | None:
        """A test metric after the last round."""
        return (self.summary.get("final") or {}).get(metric)


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Every run at or below the given folders."""
    return [Run(folder) for folder in find_runs(paths)]
