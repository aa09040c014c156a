"""The page in a real browser: no error, every figure drawn, folded ones when they are opened, light and dark."""

import json

import pytest

from wardround.analysis import load_runs
from wardround.report.page import write_page

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_without_an_error_and_draws_its_figures(runs, browser, tmp_path, scheme):
    path = write_page(runs, tmp_path / "page.html", "in a browser")
    page = browser.new_page(color_scheme=scheme, offline=True)
    wrong = []
    page.on(
        "console",
        lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelector('#auroc-0 .main-svg')")
    open_figures = "[...document.querySelectorAll('.plot')].filter((plot) => !plot.closest('details'))"
    assert page.evaluate(f"{open_figures}.every((plot) => plot.querySelector('.main-svg'))")
    assert page.evaluate("document.querySelector('#weights-0 .main-svg') === null"), "folded: not drawn yet"
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.wait_for_function(
        "[...document.querySelectorAll('.plot')].every((p) => p.querySelector('.main-svg'))"
    )
    assert page.evaluate("document.querySelectorAll('#loss-0 .heatmaplayer image').length") == 1
    assert page.evaluate("document.querySelectorAll('#seeds-0 .boxlayer .box').length") > 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    plot = page.evaluate("document.querySelector('#auroc-0 .main-svg').style.background")
    assert plot.replace(" ", "") == background.replace(" ", ""), "figures wear the colours of the page"
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    assert wrong == []


def test_pressing_a_heading_sorts(runs, browser, tmp_path):
    page = browser.new_page()
    page.goto(write_page(runs, tmp_path / "page.html", "sorted").as_uri())
    column = "[...document.querySelector('table').tBodies[0].rows].map((row) => Number(row.cells[3].dataset.value))"
    page.click("table th:nth-child(4) button")
    rising = page.evaluate(column)
    assert rising == sorted(rising)
    page.click("table th:nth-child(4) button")
    assert page.evaluate(column) == sorted(rising, reverse=True)


def test_no_clients_name_costs_the_page_its_figures(make_run, browser, tmp_path):
    names = ("<!--<script>", "</script>", "]]>", "a & \u2028b")
    folder = make_run(attack="sign-flip", held={name: [50, 10] for name in names})
    page, wrong = browser.new_page(offline=True), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(write_page(load_runs([folder.path]), tmp_path / "page.html", "nasty names").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    page.wait_for_function(
        "document.querySelector('.plot') && "
        "[...document.querySelectorAll('.plot')].every((p) => p.querySelector('.main-svg'))"
    )
    assert page.locator("footer").count() == 1, "the end of the page is still there"
    drawn = page.evaluate("JSON.stringify(JSON.parse(document.getElementById('figures').textContent))")
    assert all(json.dumps(name, ensure_ascii=False)[1:-1] in drawn for name in names)
    assert wrong == []
