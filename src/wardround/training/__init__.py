"""Local training of all clients of a round: one interface, several engines.

An engine takes the global weights and one task a client, and returns one row a client: the update
w_i − w. Which engine runs changes the time, not the result.
"""

from wardround.training.base import (
    ClientData,
    ClientTask,
    Objective,
    Trained,
    Trainer,
    TrainingParams,
    learning_rate,
)
from wardround.training.sequential import SequentialTrainer

__all__ = [
    "ClientData",
    "ClientTask",
    "Objective",
    "SequentialTrainer",
    "Trained",
    "Trainer",
    "TrainingParams",
    "learning_rate",
]
