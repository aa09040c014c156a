"""Evaluate the runs of `anchor-flanders` as Flower's baseline does: on test images that are not normalised.

Usage: flanders_evaluation.py MNIST_FOLDER OUT.jsonl [ATTACK…]   (with MNIST prepared: docs/datasets.md)
→ one JSON line per run: rule, attack, and the accuracy after each round on images normalised as in training (shades
from −1 to 1) and on images as they are (shades from 0 to 1). Runs that the file has are not repeated.

The baseline trains on `Normalize(0.5, 0.5)` and evaluates on `ToTensor()` alone. docs/anchors.md, D.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from wardround import models
from wardround.datasets.mnist import Mnist
from wardround.experiments import expand, presets
from wardround.runs.config import RunConfig
from wardround.runs.runner import build


def accuracies(weights: Tensor, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """On images normalised as in training, and on images as they are."""
    network = models.create("mlp", hidden=[128]).build((1, 28, 28), outputs=10)
    torch.nn.utils.vector_to_parameters(weights.clone(), network.parameters())
    with torch.no_grad():
        normalised, plain = (
            (network(x).argmax(1) == labels).double().mean() for x in (2 * images - 1, images)
        )
    return round(float(normalised), 4), round(float(plain), 4)


def play(config: RunConfig, images: Tensor, labels: Tensor) -> dict[str, object]:
    """One run, evaluated after each round."""
    federation = build(config)
    seen = []
    for round_ in range(1, config.rounds + 1):
        federation.step(round_)
        seen.append(accuracies(federation.weights, images, labels))
    return {
        "rule": config.aggregator["name"],
        "attack": config.attack["name"],
        "seed": config.seed,
        "normalised": [normalised for normalised, _ in seen],
        "plain": [plain for _, plain in seen],
    }


def main(folder: Path, out: Path, attacks: list[str]) -> None:
    shades, classes = Mnist().arrays(folder)["test"]
    images, labels = torch.from_numpy(shades.copy()).float() / 255, torch.from_numpy(classes.copy()).long()
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    keys = {(line["rule"], line["attack"], line["seed"]) for line in done}
    matrix, where = presets.load_matrix("anchor-flanders")
    for config in expand(
        matrix, where, ["seeds=[0]", f"evaluate_every={matrix['base']['rounds']}", "device=cpu"]
    ):
        key = (config.aggregator["name"], config.attack["name"], config.seed)
        if key in keys or (attacks and config.attack["name"] not in attacks):
            continue
        with out.open("a") as file:
            file.write(json.dumps(play(config, images, labels)) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
