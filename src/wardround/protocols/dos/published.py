"""Figures that the DOS paper prints, beside ours.

Alkhunaizi, Kamzolov, Takáč, Nandakumar: "Suppressing Poisoning Attacks on Federated Learning for Medical
Imaging", MICCAI 2022: table 1 (CheXpert, ResNet-18, AUC averaged over all rounds) and section 4.3 (HAM10000).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from wardround.analysis.measures import Measured
from wardround.analysis.papers import Section
from wardround.analysis.rendering import Cell, Table
from wardround.analysis.runs import CLEAN, Run

__all__ = ["RULE", "attacker_share", "dos_tables", "figure_4_scenario", "section", "table_1_scenario"]

RULE = "dos"
SCENARIOS = ("No Attack", "Label Flip 10 %", "Mix Attack 40 %", "Noise 40 %", "Noise & Scaled 40 %")
CRAFTED = "Crafted 40 %"
FIGURE_4 = ("No Attack", "Noise 30 %", "Noise, × 100, × −0.5: 40 %")
METHODS = {"fedavg": "FedAvg", "median": "Median", "trimmed-mean": "T-M", "krum": "Krum", "dos": "DOS"}
TABLE_1 = {
    "fedavg": (0.70, 0.69, 0.50, 0.50, 0.50),
    "median": (0.70, 0.69, 0.69, 0.69, 0.54),
    "trimmed-mean": (0.70, 0.69, 0.69, 0.50, 0.50),
    "krum": (0.66, 0.66, 0.64, 0.63, 0.67),
    "dos": (0.70, 0.69, 0.68, 0.69, 0.67),
}
AVERAGES = {"fedavg": 0.58, "median": 0.66, "trimmed-mean": 0.62, "krum": 0.65, "dos": 0.68}
CRAFTED_FINAL = {"krum": 0.50, "dos": 0.65}  # section 4.4, of DOS and Krum only
PROPORTION = {0: 0.70, 10: 0.695, 20: 0.697, 30: 0.696, 40: 0.711, 50: 0.710, 60: 0.554}
CLIENTS = {5: 0.725, 10: 0.700, 20: 0.692, 40: 0.674}


def section(measured: Sequence[Measured]) -> Section | None:
    """The paper's tables; None where its scenarios are not among the runs."""
    tables = dos_tables(measured)
    return Section("The DOS paper's tables", tables=tuple(tables)) if tables else None


def dos_tables(measured: Sequence[Measured]) -> list[Table]:
    """The DOS paper's tables for every setting in which its scenarios were run with its rule."""
    tables: list[Table] = []
    by_setting: dict[str, list[Measured]] = defaultdict(list)
    for m in measured:
        by_setting[m.run.setting].append(m)
    for setting, members in sorted(by_setting.items()):
        scenarios = {table_1_scenario(m.run) for m in members} - {None}
        if len(scenarios) >= 3 and any(m.run.method == RULE for m in members):
            tables.append(_table_1(setting, members))
    for setting, members in sorted(by_setting.items()):
        if {figure_4_scenario(m.run) for m in members} >= set(FIGURE_4[1:]):
            tables.append(_figure_4(setting, members))
    for setting, members in sorted(by_setting.items()):
        noise = [m for m in members if _is_noise(m.run)]
        if len({attacker_share(m.run) for m in noise if m.run.method == RULE} - {0}) >= 3:
            tables.append(_proportion(setting, noise))
    by_place: dict[str, list[Measured]] = defaultdict(
        list
    )  # settings that differ in the number of clients alone
    for m in measured:
        if _is_noise(m.run) and attacker_share(m.run) == 40:
            by_place[_without_clients(m.run)].append(m)
    for place, noise in sorted(by_place.items()):
        if len({len(m.run.record["clients"]) for m in noise if m.run.method == RULE}) >= 3:
            tables.append(_clients(place, noise))
    return _with_own_keys(tables)


def _is_noise(run: Run) -> bool:
    return run.config["attack"]["name"] in ("noise", "none")


def _without_clients(run: Run) -> str:
    clients = f"{len(run.record.get('clients', ()))} clients"
    return " · ".join(part for part in run.setting_parts if part != clients)


def _with_own_keys(tables: Sequence[Table]) -> list[Table]:
    """A number behind the key of a table that occurs again, for another setting."""
    seen: Counter[str] = Counter()
    result = []
    for table in tables:
        number = seen[table.key]
        seen[table.key] += 1
        result.append(replace(table, key=f"{table.key}-{number}") if number else table)
    return result


def table_1_scenario(run: Run) -> str | None:
    """Which of the paper's six scenarios on CheXpert this is."""
    attack, share = run.config["attack"], attacker_share(run)
    if run.attack == CLEAN:
        return SCENARIOS[0]
    parts = tuple(part["name"] for part in attack.get("parts", ()))
    known = {
        ("label-flip", (), 10): SCENARIOS[1],
        ("mix", ("noise", "label-flip"), 40): SCENARIOS[2],
        ("noise", (), 40): SCENARIOS[3],
        ("mix", ("noise", "scaling"), 40): SCENARIOS[4],
        ("crafted", (), 40): CRAFTED,
    }
    return known.get((attack["name"], parts, share))


def figure_4_scenario(run: Run) -> str | None:
    """Which of the paper's three scenarios on HAM10000 this is."""
    attack, share = run.config["attack"], attacker_share(run)
    if run.attack == CLEAN:
        return FIGURE_4[0]
    parts = tuple(part["name"] for part in attack.get("parts", ()))
    known = {
        ("noise", (), 30): FIGURE_4[1],
        ("mix", ("noise", "scaling", "scaling"), 40): FIGURE_4[2],
    }
    return known.get((attack["name"], parts, share))


def _figure_4(setting: str, members: Sequence[Measured]) -> Table:
    values: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for m in members:
        scenario, last, mean = figure_4_scenario(m.run), m["auroc"], m["mean_auroc"]
        if scenario is not None and last is not None and mean is not None:
            values[m.run.method, scenario].append((last, mean))
    methods = [*METHODS, *sorted({method for method, _ in values} - METHODS.keys())]
    rows: list[list[Cell]] = []
    for method in methods:
        cells: list[Cell] = []
        for scenario in FIGURE_4:
            found = values.get((method, scenario))
            cells.append(
                f"{fmean(a for a, _ in found):.3f} / {fmean(b for _, b in found):.3f}" if found else None
            )
        if any(cells):
            rows.append([METHODS.get(method, method), *cells])
    return Table(
        "dos-figure-4",
        f"AUC under the DOS paper's scenarios on HAM10000 (its figure 4): {setting}",
        ["", *FIGURE_4],
        rows,
        (
            "After the last round / mean over all rounds. The paper draws these as curves; in words it gives "
            f"{PROPORTION[0]:.2f} without attack.",
        ),
    )


def attacker_share(run: Run) -> int:
    """How many of a hundred clients attack."""
    return round(100 * len(run.byzantine) / max(1, len(run.record.get("clients", ()))))


def _table_1(setting: str, members: Sequence[Measured]) -> Table:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for m in members:
        scenario = table_1_scenario(m.run)
        name = "auroc" if scenario == CRAFTED else "mean_auroc"
        if scenario is not None and (value := m[name]) is not None:
            values[m.run.method, scenario].append(value)
    scenarios = [*SCENARIOS, CRAFTED]
    methods = [*METHODS, *sorted({method for method, _ in values} - METHODS.keys())]
    rows: list[list[Cell]] = []
    for method in methods:
        ours = [fmean(v) if (v := values.get((method, s))) else None for s in scenarios]
        if not any(value is not None for value in ours):
            continue
        printed = [*TABLE_1.get(method, (None,) * 5), CRAFTED_FINAL.get(method)]
        known = [value for value in ours[:5] if value is not None]
        average = fmean(known) if len(known) == 5 else None
        pairs = [*zip(ours, printed, strict=True), (average, AVERAGES.get(method))]
        rows.append([METHODS.get(method, method), *(_beside(a, b) for a, b in pairs)])
    order = [*range(6), 7, 6]  # the average last but the crafted attack, which it leaves out
    heads = ["", *scenarios, "Avg"]
    return Table(
        "dos-table-1",
        f"AUC under the DOS paper's poisoning scenarios: {setting}",
        [heads[i] for i in order],
        [[row[i] for i in order] for row in rows],
        (
            "Ours, in brackets what the paper prints for CheXpert and ResNet-18 (its table 1). AUC is averaged over "
            "all rounds, Avg over the first five scenarios; the crafted attack's is the one after the last round, "
            "which the paper gives for DOS and Krum.",
        ),
    )


def _proportion(setting: str, measured: Sequence[Measured]) -> Table:
    groups = {share: [m for m in measured if attacker_share(m.run) == share] for share in PROPORTION}
    return _with_paper("dos-proportion", f"DOS against the proportion of malicious clients: {setting}", "malicious",
                       groups, PROPORTION, " %")  # fmt: skip


def _clients(place: str, measured: Sequence[Measured]) -> Table:
    groups = {count: [m for m in measured if len(m.run.record["clients"]) == count] for count in CLIENTS}
    return _with_paper("dos-clients", f"DOS against the number of clients, 40 % malicious: {place}", "clients",
                       groups, CLIENTS, "")  # fmt: skip


def _with_paper(
    key: str,
    title: str,
    what: str,
    groups: Mapping[int, Sequence[Measured]],
    printed: Mapping[int, float],
    unit: str,
) -> Table:
    """DOS beside what the paper prints, and the other rules that were run."""
    others = sorted({m.run.method for members in groups.values() for m in members} - {RULE})
    rows: list[list[Cell]] = []
    for point, members in groups.items():
        values = {
            method: [value for m in members if m.run.method == method and (value := m["auroc"]) is not None]
            for method in (RULE, *others)
        }
        if values[RULE]:
            means = [fmean(found) if found else None for method in others for found in [values[method]]]
            rows.append([f"{point}{unit}", len(values[RULE]), fmean(values[RULE]), printed[point], *means])
    columns = [what, "seeds", "DOS", "paper", *(METHODS.get(method, method) for method in others)]
    notes = ("AUC after the last round, mean over seeds; the paper's figures are DOS on HAM10000.",)
    return Table(key, title, columns, rows, notes)


def _beside(ours: float | None, printed: float | None) -> str | None:
    if ours is None:
        return None if printed is None else f"– ({printed:.2f})"
    return f"{ours:.3f}" if printed is None else f"{ours:.3f} ({printed:.2f})"
