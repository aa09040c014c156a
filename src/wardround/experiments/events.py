"""Events of a run while it is executed, and how a worker executes one."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wardround.errors import WardroundError
from wardround.records import MAIN_METRICS, RoundRecord, main_metric, main_value
from wardround.runs.config import load_config

__all__ = ["ATTEMPTS", "Event", "Listener", "run_and_report"]

ATTEMPTS = 2  # a run whose worker died (not: whose code failed) is tried once more, from its checkpoint


@dataclass(frozen=True)
class Event:
    """Something happened to a run."""

    kind: str
    """started, round; and to end it: finished, skipped (finished before), failed, stopped."""
    run: str
    round: int = 0
    auroc: float | None = None
    """AUROC, or what `measure` says."""
    reason: str | None = None
    measure: str = "AUROC"

    @classmethod
    def of_round(cls, run: str, record: RoundRecord) -> Event:
        """A round has ended."""
        main = MAIN_METRICS[main_metric(record.metrics)]
        return cls("round", run, record.round, main_value(record.metrics), measure=main)

    @property
    def ends_the_run(self) -> bool:
        return self.kind in ("finished", "skipped", "failed", "stopped")


Listener = Callable[[Event], None]


def run_and_report(name: str, values: dict[str, Any], out: Path, listen: Listener) -> Event:
    """Run the configuration of the run `name` in this process; whatever happens becomes an event."""
    from wardround.runs.runner import run

    listen(Event("started", name))
    try:
        config = load_config(values)  # loads the plug-ins, which may have gone or changed since
        folder = run(config, out, lambda record: listen(Event("round", name, record.round)), workers=1)
    except KeyboardInterrupt:
        return Event("stopped", name)
    except WardroundError as error:
        return Event("failed", name, reason=str(error))
    except Exception as error:
        traceback.print_exc()
        return Event("failed", name, reason=f"{type(error).__name__}: {error}")
    summary = folder.summary()
    return Event("finished", name, config.rounds, None if summary is None else summary.auroc)
