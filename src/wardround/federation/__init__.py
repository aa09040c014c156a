"""The round loop: train ▸ attack ▸ guard ▸ aggregate ▸ apply ▸ judge."""

from wardround.federation.evaluation import evaluate
from wardround.federation.loop import Federation, RoundResult

__all__ = ["Federation", "RoundResult", "evaluate"]
