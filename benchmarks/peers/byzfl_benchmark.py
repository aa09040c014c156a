"""Run ByzFL's own benchmark on MNIST, for anchor F of docs/anchors.md; needs `pip install --no-deps byzfl==0.0.11`.

Usage: byzfl_benchmark.py MNIST_FOLDER RESULTS_FOLDER [STEPS]
→ ByzFL's folders of results, and one line per run on standard output: f, γ, aggregator, attack, seed, test accuracy.

ByzFL's configuration is its default one (`byzfl.benchmark.benchmark.default_config`) but for what `smaller` changes.
It reads MNIST through torchvision, of which it needs three transforms and one dataset: they are given here.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wardround.datasets.mnist import Mnist

GAMMAS = [1.0, 0.33, 0.0]
ATTACKERS = [2, 4]


class Mnist28:
    """`torchvision.datasets.MNIST`, as far as ByzFL looks at it."""

    def __init__(self, root: str, train: bool, download: bool = False, transform: Any = None) -> None:
        images, labels = Mnist().arrays(Path(root))["train" if train else "test"]
        self.data, self.targets = (
            torch.from_numpy(images[:, 0].copy()),
            torch.from_numpy(labels.copy()).long(),
        )
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.data[index]), int(self.targets[index])


class Compose:
    """One transform after the other."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __call__(self, image: Tensor) -> Tensor:
        for step in self.steps:
            image = step(image)
        return image


class ToTensor:
    """Bytes → shades between 0 and 1, with a dimension of channels."""

    def __call__(self, image: Tensor) -> Tensor:
        return image[None].float() / 255


class Normalize:
    """Shades of mean 0 and deviation 1."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.mean, self.std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.std


class NotForMnist:
    """A transform of other datasets, which is built but never used."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass


def stand_in_for_torchvision() -> None:
    """Make `from torchvision import datasets, transforms` work."""
    package, datasets, transforms = (
        types.ModuleType(name) for name in ("torchvision", "torchvision.datasets", "torchvision.transforms")
    )
    vars(datasets)["MNIST"] = Mnist28
    vars(transforms).update(
        Compose=Compose,
        ToTensor=ToTensor,
        Normalize=Normalize,
        RandomHorizontalFlip=NotForMnist,
        RandomCrop=NotForMnist,
    )
    vars(package).update(datasets=datasets, transforms=transforms)
    sys.modules.update(
        {"torchvision": package, "torchvision.datasets": datasets, "torchvision.transforms": transforms}
    )
    sys.modules.setdefault(
        "seaborn", types.ModuleType("seaborn")
    )  # of ByzFL's pictures, which are not drawn here


def smaller(config: dict[str, Any], data: Path, results: Path, steps: int) -> dict[str, Any]:
    """ByzFL's configuration with fewer steps, attackers and partitions, one seed, and its smaller network."""
    config = copy.deepcopy(config)
    config["benchmark_config"].update(nb_steps=steps, device="cpu", nb_training_seeds=1, f=ATTACKERS)
    config["benchmark_config"]["data_distribution"][0]["distribution_parameter"] = GAMMAS
    config["model"]["name"] = "fc_mnist"
    config["evaluation_and_results"].update(
        data_folder=str(data),
        results_directory=str(results),
        evaluation_delta=steps,
        store_per_client_metrics=False,
    )
    return config


def report(results: Path) -> None:
    """One line of JSON per finished run."""
    for file in sorted(results.glob("*/config.json")):
        folder, settings = file.parent, json.loads(file.read_text())
        for file in sorted(folder.glob("test_accuracy_tr_seed_*")):
            last = file.read_text().replace("\n", ",").strip(",").split(",")[-1]
            line = {
                "f": settings["benchmark_config"]["f"],
                "gamma": settings["benchmark_config"]["data_distribution"]["distribution_parameter"],
                "aggregator": settings["aggregator"]["name"],
                "attack": settings["attack"]["name"],
                "seed": int(file.name.split("_")[4]),
                "accuracy": float(last),
            }
            print(json.dumps(line))


def main(data: Path, results: Path, steps: int) -> None:
    stand_in_for_torchvision()
    from byzfl.benchmark import benchmark

    results.mkdir(parents=True, exist_ok=True)
    os.chdir(results.parent)
    config = smaller(benchmark.default_config, data, results, steps)
    Path("config.json").write_text(json.dumps(config, indent=4))
    benchmark.run_benchmark(nb_jobs=1)
    report(results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(
        Path(sys.argv[1]).resolve(),
        Path(sys.argv[2]).resolve(),
        int(sys.argv[3]) if len(sys.argv) > 3 else 300,
    )
