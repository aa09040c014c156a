"""Figures as files: every kind of figure in every format, the same bytes for the same runs."""

import pytest

from wardround.errors import WardroundError
from wardround.report.contents import collect
from wardround.report.figures import Figure
from wardround.report.paper import FORMATS, write_figures

pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra 'figures')")
BEGINS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def figures(runs):
    """One of every sort: by the stem of the key."""
    return list(
        {figure.key.split("-")[0]: figure for figure in reversed(collect(runs).all_figures)}.values()
    )[::-1]


@pytest.mark.slow
def test_every_figure_in_every_format(figures, tmp_path):
    assert {figure.key.split("-")[0] for figure in figures} == {
        "evidence", "auroc", "loss", "seeds", "partition", "calibration", "weights", "timeline", "anomaly",
    }  # fmt: skip
    paths = write_figures(figures, tmp_path / "new")
    assert len(paths) == len(figures) * len(FORMATS)
    for path in paths:
        assert path.read_bytes().startswith(BEGINS[path.suffix[1:]])
        assert path.stat().st_size > 2000
    svg = (tmp_path / "new" / "auroc-0.svg").read_text()
    assert "AUROC (test)" in svg, "text stays text"
    assert "sign-flip" in svg


@pytest.mark.slow
def test_the_same_figure_is_the_same_file(figures, tmp_path):
    for folder in ("a", "b"):
        write_figures([f for f in figures if f.key == "auroc-0"], tmp_path / folder, ["svg", "png"])
    for name in ("auroc-0.svg", "auroc-0.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_kind_of_trace_that_cannot_be_drawn_is_an_error(tmp_path):
    with pytest.raises(WardroundError, match="no way to draw sunburst"):
        write_figures([Figure("x", "t", "c", [{"type": "sunburst"}], {})], tmp_path)
