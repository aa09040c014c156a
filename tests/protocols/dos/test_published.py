"""The DOS paper's tables, with its figures beside ours."""

import pytest

from wardround.analysis import analyze, load_runs
from wardround.analysis.measures import measure_all
from wardround.protocols import papers
from wardround.protocols.dos.published import dos_tables

DOS_ATTACKS = [
    {"attack": "none"},
    {"attack": "label-flip", "share": 0.1},
    {"attack": "mix", "share": 0.4, "attack__parts": [{"name": "noise"}, {"name": "label-flip"}]},
    {"attack": "noise", "share": 0.4},
    {"attack": "mix", "share": 0.4, "attack__parts": [{"name": "noise"}, {"name": "scaling"}]},
    {"attack": "crafted", "share": 0.4},
]


TEN = {f"hospital-{i}": [10, 10] for i in range(10)}


def test_the_dos_papers_table_with_its_figures_beside_ours(make_run, table_of):
    for method, auroc in (("dos", 0.9), ("fedavg", 0.6)):
        for scenario in DOS_ATTACKS:
            make_run(method, held=TEN, start=1, curve=lambda n, a=auroc: a if n > 10 else a - 0.2, **scenario)
    table = table_of(analyze(load_runs([make_run.root]), papers=papers()), "dos-table-1")
    assert table.columns == ["", "No Attack", "Label Flip 10 %", "Mix Attack 40 %", "Noise 40 %", "Noise & Scaled 40 %",
                             "Avg", "Crafted 40 %"]  # fmt: skip
    assert [row[0] for row in table.rows] == ["FedAvg", "DOS"]
    # The mean over all rounds, half of them 0.2 lower; the crafted attack's is the last round's.
    assert table.rows[1] == ["DOS", "0.800 (0.70)", "0.800 (0.69)", "0.800 (0.68)", "0.800 (0.69)", "0.800 (0.67)",
                             "0.800 (0.68)", "0.900 (0.65)"]  # fmt: skip
    assert table.rows[0][-1] == "0.600", "the paper has no figure for FedAvg there"


def test_the_dos_papers_proportions(make_run, table_of):
    for share in (0.1, 0.3, 0.6):
        make_run("dos", held=TEN, attack="noise", share=share, auroc=0.7)
    table = table_of(analyze(load_runs([make_run.root]), papers=papers()), "dos-proportion")
    assert [(row[0], row[3]) for row in table.rows] == [("10 %", 0.695), ("30 %", 0.696), ("60 %", 0.554)]


def test_another_dataset_or_number_of_clients_is_not_averaged_into_the_proportions(make_run, table_of):
    twenty = {f"hospital-{i}": [10, 10] for i in range(20)}
    forty = {f"hospital-{i}": [10, 10] for i in range(40)}
    for share in (0.1, 0.3, 0.4):
        make_run("dos", held=TEN, attack="noise", share=share, auroc=0.7, dataset="ham10000")
        make_run("fedavg", held=TEN, attack="noise", share=share, auroc=0.5, dataset="ham10000")
    make_run("dos", held=twenty, attack="noise", share=0.4, auroc=0.6, dataset="ham10000")
    make_run("dos", held=forty, attack="noise", share=0.4, auroc=0.55, dataset="ham10000")
    make_run("dos", held=TEN, attack="noise", share=0.4, auroc=0.9, dataset="chestxray8")
    analysis = analyze(load_runs([make_run.root]), papers=papers())
    table = table_of(analysis, "dos-proportion")
    assert "ham10000" in table.title
    assert table.columns == ["malicious", "seeds", "DOS", "paper", "FedAvg"]
    assert table.rows[-1] == ["40 %", 1, pytest.approx(0.7), 0.711, pytest.approx(0.5)]
    clients = table_of(analysis, "dos-clients")
    assert [(row[0], row[2]) for row in clients.rows] == [
        ("10", pytest.approx(0.7)),
        ("20", pytest.approx(0.6)),
        ("40", pytest.approx(0.55)),
    ]


def test_the_scenarios_of_figure_4_stand_side_by_side(make_run):
    parts = [{"name": "noise"}, {"name": "scaling"}, {"name": "scaling"}]
    clients = {f"hospital-{i}": [10, 10] for i in range(10)}
    for method, auroc in (("dos", 0.7), ("fedavg", 0.6)):
        make_run(method, auroc=auroc, held=clients, dataset="ham10000")
        make_run(method, "noise", auroc=auroc - 0.1, held=clients, share=0.3, dataset="ham10000")
        make_run(
            method, "mix", auroc=auroc - 0.2, held=clients, share=0.4, dataset="ham10000", attack__parts=parts
        )
    tables = dos_tables(measure_all(load_runs([make_run.root])))
    (table,) = [table for table in tables if table.key.startswith("dos-figure-4")]
    assert [row[0] for row in table.rows] == ["FedAvg", "DOS"]
    for row, auroc in zip(table.rows, (0.6, 0.7), strict=True):
        finals = [float(cell.split(" / ")[0]) for cell in row[1:]]
        assert finals == pytest.approx([auroc, auroc - 0.1, auroc - 0.2])
        assert all(float(cell.split(" / ")[1]) < final for cell, final in zip(row[1:], finals, strict=True))
