"""Local training of all clients of a round: one interface, several engines.

An engine takes the global weights and one task per client, and returns one row per client: the update
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
from wardround.training.engines import DEVICES, ENGINES, Device, Engine, make_trainer, resolve_device
from wardround.training.fused import FusedTrainer
from wardround.training.processes import ProcessesTrainer
from wardround.training.sequential import SequentialTrainer
from wardround.training.vectorized import VectorizedTrainer

__all__ = [
    "DEVICES",
    "ENGINES",
    "ClientData",
    "ClientTask",
    "Device",
    "Engine",
    "FusedTrainer",
    "Objective",
    "ProcessesTrainer",
    "SequentialTrainer",
    "Trained",
    "Trainer",
    "TrainingParams",
    "VectorizedTrainer",
    "learning_rate",
    "make_trainer",
    "resolve_device",
]
