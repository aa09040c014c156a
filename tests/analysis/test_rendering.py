"""Tables in three notations."""

import io
import re
from decimal import Decimal
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from wardround.analysis import analyze, compare, load_runs
from wardround.analysis.rendering import Table, difference, fixed, signed
from wardround.cli.console import comparison_table as console_table
from wardround.report.page import write_page


def test_notation_is_escaped_where_it_must_be():
    table = Table(
        "k", "50 % of a_b & c", ["name", "ΔAUROC ± sd"], [["a|b_c", 0.12345], ["x", None]], ("note #1",)
    )
    assert "| a\\|b_c | 0.123 |" in table.markdown()
    assert "| :--- | ---: |" in table.markdown()
    assert table.csv() == "name,ΔAUROC ± sd\na|b_c,0.12345\nx,\n"
    latex = table.latex()
    assert r"\caption{50 \% of a\_b \& c. note \#1}" in latex
    assert r"name & $\Delta$AUROC $\pm$ sd \\" in latex
    assert r"a|b\_c & 0.123 \\" in latex
    assert r"\begin{tabular}{lr}" in latex


@given(st.floats(-10, 10), st.integers(1, 6))
def test_a_number_is_rounded_as_people_do(value, digits):
    shown = fixed(value, digits)
    assert abs(Decimal(shown) - Decimal(repr(value))) <= Decimal(5).scaleb(-digits - 1) + Decimal(
        "1e-7"
    ).scaleb(-digits)
    assert len(shown.partition(".")[2]) == digits
    assert shown != "-" + "0." + "0" * digits
    assert Decimal(signed(value, digits)) == Decimal(shown)


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000)), min_size=1, max_size=6))
def test_the_mean_of_differences_and_the_difference_of_means_look_the_same(pairs):
    """What the terminal, the page and the paired test show is one number, whichever way it was summed up."""
    clean, attacked = [a / 2000 for a, _ in pairs], [b / 2000 for _, b in pairs]
    by_pairs = fmean(a - b for a, b in zip(clean, attacked, strict=True))
    by_means = fmean(clean) - fmean(attacked)
    assert fixed(by_pairs) == fixed(by_means)
    assert difference(by_pairs) == difference(by_means)


def test_a_difference_is_the_same_on_terminal_page_and_in_tables(make_run, tmp_path):
    """Three seeds whose mean loss is exactly between two numbers of three digits."""
    for seed, lost in enumerate((0.0235, 0.0245, 0.0255)):
        make_run("fedavg", seed=seed, auroc=0.8, curve=lambda number: 0.8)
        make_run("fedavg", seed=seed, attack="sign-flip", curve=lambda number, lost=lost: 0.8 - lost)
    runs = load_runs([make_run.root])
    (attacked,) = [line for line in compare(runs) if line.loss_of_auroc is not None]
    console = Console(width=200, file=io.StringIO())
    console.print(console_table([attacked], "t"))
    page = write_page(runs, tmp_path / "page.html", "t").read_text()
    performance = next(table for table in analyze(runs).tables if table.key == "performance")
    for shown in (console.file.getvalue(), page, performance.markdown()):
        assert "0.025" in shown
        assert "0.024" not in re.sub(r'data-value="[^"]*"|<script.*?</script>', "", shown, flags=re.DOTALL)
