"""What every run has, simulated or live: configuration, folder, runner, summary, audit log and quarantine."""

from wardround.runs.folder import RunFolder, find_runs

__all__ = ["RunFolder", "find_runs"]
