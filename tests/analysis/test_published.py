"""Published figures beside ours: what the section of a matrix may say, whom it is about, and the table."""

import pytest

from wardround.analysis import load_runs, measure_all
from wardround.analysis.published import published_table, read_published, reproduce
from wardround.errors import ConfigError

SECTION = {
    "source": "a paper (2020)",
    "tolerance": 0.02,
    "figures": [
        {"label": "Krum", "where": {"aggregator.name": "krum"}, "value": 0.70},
        {"label": "Average", "where": {"aggregator": {"name": "fedavg"}}, "value": 0.80, "note": "found why"},
        {"label": "Median", "where": {"aggregator.name": "median"}, "value": 0.5},
    ],
}


@pytest.fixture
def measured(make_run):
    for seed in range(2):
        make_run("krum", seed=seed, auroc=0.70 + 0.02 * seed)
        make_run("fedavg", seed=seed, auroc=0.75)
    return measure_all(load_runs([make_run.root]))


def test_each_figure_meets_the_runs_that_it_is_about(measured):
    published = read_published({"published": SECTION})
    krum, average, median = reproduce(published, measured)
    assert (krum.ours, krum.seeds, krum.within) == (pytest.approx(0.71), 2, True)
    assert (average.difference, average.within) == (pytest.approx(-0.05), False)
    assert (median.ours, median.within, median.seeds) == (None, None, 0)
    table = published_table(published, measured)
    assert table.rows[0] == ["Krum", "0.700", "0.710 ± 0.014", 2, "+0.010", "yes"]
    assert [row[-1] for row in table.rows] == ["yes", "no", None]
    notes = " ".join(table.notes)
    for said in ("1 of 2 are", "1 of 3 figures have none of ours", "Average: found why"):
        assert said in notes
    assert "a paper (2020)" in table.title


def test_a_figure_has_a_tolerance_and_a_measure_of_its_own(measured):
    figures = [{"label": "Krum", "where": {"aggregator.name": "krum"}, "value": 0.0, "measure": "flag_fpr"}]
    figures += [
        {"label": "wide", "where": {"aggregator.name": "fedavg"}, "value": 0.80, "tolerance": 0.051},
        {"label": "narrow", "where": {"aggregator.name": "fedavg"}, "value": 0.80, "tolerance": 0.049},
    ]
    published = read_published({"published": {**SECTION, "figures": figures}})
    assert [line.within for line in reproduce(published, measured)][1:] == [True, False]
    table = published_table(published, measured)
    assert table.columns[:2] == ["run", "measure"]
    assert [row[1] for row in table.rows] == ["flagged: FPR", "AUROC", "AUROC"]


def test_per_cent_stay_per_cent(measured):
    figures = [{"label": "Krum", "where": {"aggregator.name": "krum"}, "value": 72.5}]
    section = {"source": "s", "tolerance": 2, "percent": True, "figures": figures}
    published = read_published({"published": section})
    (line,) = reproduce(published, measured)
    assert line.published == pytest.approx(0.725)
    assert line.within, "1.5 points of 2"
    assert published_table(published, measured).rows == [["Krum", "72.5", "71.0 ± 1.4", 2, "-1.5", "yes"]]


def test_the_published_spread_counts_as_tolerance(measured):
    for spread, within in ((0.051, True), (0.049, False)):
        figures = [{"label": "f", "where": {"aggregator.name": "fedavg"}, "value": [0.80, spread]}]
        published = read_published({"published": {**SECTION, "figures": figures}})
        assert [line.within for line in reproduce(published, measured)] == [within]
        assert published_table(published, measured).rows[0][1] == f"0.800 ± {spread:.3f}"


@pytest.mark.slow
def test_figures_of_single_clients(runs):
    measured = measure_all(runs)
    client = sorted(measured[0].run.record["clients"])[0]
    own = [m.run.rounds[-1].per_client[client]["auroc"] for m in measured if m.run.method == "fedavg"]
    own = [value for value in own if value is not None]
    figures = [{"label": "f", "where": {"aggregator.name": "fedavg"}, "value": 0.9, "clients": {client: 0.5}}]
    published = read_published({"published": {**SECTION, "figures": figures}})
    whole, single = reproduce(published, measured)
    assert (whole.client, single.client) == ("all", client)
    assert single.ours == pytest.approx(sum(own) / len(own))
    assert [row[1] for row in published_table(published, measured).rows] == ["all", client]


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        ({}, 4),
        ({"seed": 1}, 2),
        ({"aggregator.pre": None}, 4),
        ({"aggregator.pre": []}, 4),
        ({"aggregator.pre": [{"name": "nnm"}]}, 0),
        ({"aggregator.f": 3}, 0),
        ({"aggregator.name": "krum", "seed": 0}, 1),
    ],
)
def test_which_runs_are_meant(where, runs, measured):
    section = {**SECTION, "figures": [{"label": "x", "where": where, "value": 1.0}]}
    (line,) = reproduce(read_published({"published": section}), measured)
    assert line.seeds == runs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measure": "aurok"}, "no measure 'aurok'; did you mean 'auroc'"),
        ({"tolerance": 0}, "tolerance"),
        ({"figures": []}, "figures"),
        ({"figures": [{"label": "x"}]}, "'x' has no figure; give value, clients or groups"),
        ({"figures": [{"label": "x", "value": 1, "wher": {}}]}, "wher"),
        ({"figures": [{"label": "x", "value": 1, "measure": "f2"}]}, "no measure 'f2'"),
        ({"sorce": "y"}, "sorce"),
    ],
)
def test_a_wrong_section_is_said_before_anything_is_computed(change, message):
    with pytest.raises(ConfigError, match=f"m.yaml: published: .*{message}"):
        read_published({"published": {**SECTION, **change}}, "m.yaml")
    with pytest.raises(ConfigError, match=r"m.yaml: published must have the keys source, measure"):
        read_published({"published": [1]}, "m.yaml")


def test_most_matrices_have_no_such_section():
    assert read_published({"base": {}}) is None
