"""The page about a table: nothing in the table is markup, and it can be read on a telephone."""

import pytest

from wardround import datasets
from wardround.datasets.table_check import check_table
from wardround.report.check_page import _sentence, check_page, write_check


@pytest.fixture
def check(tmp_path):
    path = tmp_path / "stays.csv"
    rows = [f"{i},<b>{i % 3}</b>,{'<script>' if i % 2 else 'south & east'},{i % 2}" for i in range(80)]
    path.write_text("age,<img src=x>,site,died\n" + "\n".join(rows))
    return check_table(
        datasets.create("csv", file=path, label="died", client="site", categorical=["<img src=x>"])
    )


def test_cells_are_no_markup(check):
    page = check_page(check)
    assert "<script" not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page
    assert "south &amp; east" in page
    assert "http" not in page, "it needs no network"


def test_it_opens_with_the_answer(check, tmp_path):
    page = write_check(check, tmp_path / "new" / "check.html").read_text()
    assert page.index('class="answer note"') < page.index("What stands out") < page.index("columns</h2>")
    assert "<code>drop</code>" in _sentence("name it under `drop`")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen(check, tmp_path, browser, width, scheme):
    path = write_check(check, tmp_path / "check.html")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(120_000)
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").inner_text() == "stays.csv"
    assert page.locator("tbody th").first.is_visible()
    page.close()
