"""The engine `fused`: `trainer` lays out the clients' samples, `loops` trains a client in one compiled call.

Only `trainer` may be imported without numba.
"""

from wardround.training.fused.trainer import FusedTrainer, why_not_fused

__all__ = ["FusedTrainer", "why_not_fused"]
