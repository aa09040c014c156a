"""Trust from six fingerprints of an update: each part a file, each usable alone.

The rules `fedbnp`, `fedbnp-sharp` and `rl` put the parts together; they are found by name like every rule:

>>> from wardround import aggregators
>>> [name for name in aggregators.available() if name.startswith("fedbnp") or name == "rl"]
['fedbnp', 'fedbnp-sharp', 'rl']
"""

from wardround.aggregators.projection import Projection
from wardround.detection.agent import Agent
from wardround.detection.attention import DualAttention
from wardround.detection.detector import Detector, DetectorParams
from wardround.detection.features import FEATURES, measure, standardised
from wardround.detection.shapley import Game, coalition_game, exact_shapley, monte_carlo_shapley
from wardround.detection.trust import combined_trust
from wardround.detection.vae import Vae

__all__ = [
    "FEATURES",
    "Agent",
    "Detector",
    "DetectorParams",
    "DualAttention",
    "Game",
    "Projection",
    "Vae",
    "coalition_game",
    "combined_trust",
    "exact_shapley",
    "measure",
    "monte_carlo_shapley",
    "standardised",
]
