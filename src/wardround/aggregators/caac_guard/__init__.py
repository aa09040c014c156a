"""CAAC-Guard: profiles, peer statistics and the rule itself."""

from wardround.aggregators.caac_guard.rule import CaacGuard

__all__ = ["CaacGuard"]
