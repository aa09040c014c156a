"""Small tables in the layouts of the anchors' raw files, with a signal in them."""

from pathlib import Path

import numpy as np

HOSPITALS = {"cleveland": 90, "hungarian": 70, "switzerland": 30, "va": 40}
REGIONS = {"BH": "Northeast", "A2": "South", "AO": "West", "E2": "Midwest", "GM": "Europe", "LL": "Canada"}


def write_heart(folder: Path) -> Path:
    """Four hospitals as UCI has them: 14 columns, ? for a gap, the last columns mostly empty."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, (name, rows) in enumerate(HOSPITALS.items()):
        draw = np.random.default_rng(place)
        lines = []
        for row in range(rows):
            sick = draw.random() < (0.9 if name == "switzerland" else 0.5)
            level = draw.integers(1, 5) if row > 3 else row + 1  # every level occurs
            cells = [
                40 + draw.integers(0, 30), draw.integers(0, 2), 4 if sick and draw.random() < 0.7 else level,
                120 + draw.integers(0, 40), 0 if name == "switzerland" else 200 + draw.integers(0, 90),
                draw.integers(0, 2), row % 3, 150 - 30 * sick + draw.integers(-15, 15),
                int(draw.random() < 0.2 + 0.5 * sick),
                round(float(sick + draw.random()), 1), "?", "?", "?", sick * draw.integers(1, 5),
            ]  # fmt: skip
            if row % 10 == 9:
                cells[3] = "?"
            lines.append(",".join(map(str, cells)))
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    return folder


def write_tcga(folder: Path, columns: int = 5) -> Path:
    """FLamby's three tables: patients with event and time, source sites, the split; some patients are in none."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    names = ["age_at_index", *(f"stage_{i}" for i in range(columns - 1))]
    table, split = [",".join(["pid", *names, "E", "T"])], ["pid,fold,fold2"]
    for number, site in enumerate(REGIONS):
        for row in range(46 - 4 * number):
            features = [40 + draw.integers(0, 50), *draw.integers(0, 2, columns - 1)]
            risk = 0.06 * (features[0] - 60) + 1.5 * features[1]
            time, lost = draw.exponential(1000 * np.exp(-risk)), draw.exponential(1500)
            pid = f"TCGA-{site}-{row:04d}"
            event = float(time <= lost)
            table.append(",".join(map(str, [pid, *features, event, round(min(time, lost), 1)])))
            if row % 9 != 8:  # not in the split: left out
                fold = "test" if row % 4 == 3 else "train"
                split.append(f"{pid},{fold},{fold}_{number}")
    (folder / "brca.csv").write_text("\n".join(table) + "\n")
    (folder / "train_test_split.csv").write_text("\n".join(split) + "\n")
    lines = ["TSS Code,Source Site,Country,State,Region"]
    lines += [f"{code},somewhere,USA,PA,{region}" for code, region in REGIONS.items()]
    (folder / "centers.csv").write_text("\n".join(lines) + "\n")
    return folder
