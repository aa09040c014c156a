"""What can be known before a federation starts: `wardround check`, and the first thing that `serve` and `join` do."""

from __future__ import annotations

from wardround.flower.preflight.findings import Finding, Findings, failures

__all__ = ["Finding", "Findings", "failures"]
