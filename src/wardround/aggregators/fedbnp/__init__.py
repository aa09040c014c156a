"""Trust from six fingerprints of an update: each part a file, each usable alone.

The rules `fedbnp`, `fedbnp-sharp` and `rl` put the parts together; they are found by name like every rule:

>>> from wardround import aggregators
>>> [name for name in aggregators.available() if name.startswith("fedbnp") or name == "rl"]
['fedbnp', 'fedbnp-sharp', 'rl']
"""

from wardround.aggregators._math.projection import Projection
from wardround.aggregators.fedbnp.agent import Agent
from wardround.aggregators.fedbnp.attention import DualAttention
from wardround.aggregators.fedbnp.detector import Detector, DetectorParams
from wardround.aggregators.fedbnp.features import FEATURES, measure, standardised
from wardround.aggregators.fedbnp.rule import FedBnp, FedBnpSharp, ReinforcedTrust
from wardround.aggregators.fedbnp.shapley import Game, coalition_game, exact_shapley, monte_carlo_shapley
from wardround.aggregators.fedbnp.trust import combined_trust
from wardround.aggregators.fedbnp.vae import Vae

__all__ = [
    "FEATURES",
    "Agent",
    "Detector",
    "DetectorParams",
    "DualAttention",
    "FedBnp",
    "FedBnpSharp",
    "Game",
    "Projection",
    "ReinforcedTrust",
    "Vae",
    "coalition_game",
    "combined_trust",
    "exact_shapley",
    "measure",
    "monte_carlo_shapley",
    "standardised",
]
