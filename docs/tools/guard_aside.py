"""Write the tables on which caac-guard was tried last, and the matrix that tries it, into a folder.

python docs/tools/guard_aside.py SCIKIT_SURVIVAL.whl FOLDER
cd FOLDER && wardround matrix guard-aside.yaml --out runs/guard

The tables are those that scikit-survival brings (`pip download --no-deps scikit-survival==0.28.0` fetches its wheel),
without times: the label is whether the event came.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pandas
import yaml
from scipy.io import arff

TABLES = {
    "flchain": ("death", ["futime", "chapter"], ["sex", "mgus"], {"clients": 20, "alpha": 0.1}),
    "GBSG2": ("cens", ["time"], ["horTh", "menostat", "tgrade"], {"clients": 8, "alpha": 0.5}),
    "whas500": ("fstat", ["lenfol"], [], {"clients": 10, "alpha": 0.5}),
    "actg320": ("censor", ["time", "time_d", "censor_d", "id"], [], {"clients": 10, "alpha": 0.3}),
}
"""Name → its event, columns that tell it, words, and how its rows are shared out."""


def write(wheel: Path, folder: Path) -> Path:
    """Write the tables and the matrix, and return where the matrix is."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    with zipfile.ZipFile(wheel) as archive:
        for name, (event, telling, words, shares) in TABLES.items():
            text = archive.read(f"sksurv/datasets/data/{name}.arff").decode()
            table = pandas.DataFrame(arff.loadarff(io.StringIO(text))[0])
            table = table.map(lambda value: value.decode() if isinstance(value, bytes) else value)
            happened = table.pop(event).astype(str).isin(["1", "1.0", "dead", "True"]).astype(int)
            table = table.drop(columns=[column for column in telling if column in table]).assign(y=happened)
            table.to_csv(folder / f"{name}.csv", index=False)
            dataset = {"name": "csv", "file": f"{name}.csv", "label": "y", "categorical": words}
            runs.append(
                {"dataset": dataset, "partition": {"name": "dirichlet", "sizes": "power-law", **shares}}
            )
    matrix = {
        "name": "guard-aside",
        "base": {
            "model": {"name": "mlp", "hidden": [32]},
            "training": {"optimizer": "sgd", "lr": 0.05, "batch_size": 32, "epochs": 1},
            "rounds": 20,
            "evaluate_every": 5,
        },
        "runs": [
            {**run, **harm}
            for run in runs
            for harm in (
                {"attack": {"name": "none"}},
                {"attack": {"name": "label-flip", "mode": "invert", "p": 1, "fraction": 0.3}},
                {"attack": {"name": "fang-trimmed-mean", "fraction": 0.3}},
                {"attack": {"name": "min-sum", "fraction": 0.3}},
                {"attack": {"name": "optimal-ipm", "fraction": 0.3}},
                {"attack": {"name": "free-rider", "fraction": 0.3}},
                {"fault": {"name": "shifted-labels", "fraction": 0.2}},
                {"fault": {"name": "unit-error", "fraction": 0.2}},
            )
        ],
        "axes": {
            "training": [
                {"optimizer": "sgd", "lr": 0.05, "batch_size": 32, "epochs": 1},
                {"optimizer": "adam", "lr": 0.001, "batch_size": 32, "epochs": 1},
            ],
            "aggregator": [{"name": rule} for rule in ("oracle", "fedavg", "median", "caac-guard")],
        },
        "f": "attackers",
        "seeds": [30, 31, 32],
    }
    place = folder / "guard-aside.yaml"
    place.write_text(yaml.safe_dump(matrix, sort_keys=False), encoding="utf-8")
    return place


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), Path(sys.argv[2])))
