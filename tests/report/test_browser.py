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
    page.set_default_timeout(120_000)
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
    page.set_default_timeout(120_000)
    page.goto(write_page(runs, tmp_path / "page.html", "sorted").as_uri())
    table = "[...document.querySelectorAll('table')].find((table) => table.querySelector('tr.group'))"
    rows = "[...body.rows].slice(1).map((row) => Number(row.cells[1].dataset.value))"
    column = f"[...{table}.tBodies].map((body) => {rows})"
    press = f"{table}.querySelector('th:nth-child(2) button').click()"
    page.evaluate(press)
    rising = page.evaluate(column)
    assert len(rising) == 2, "clean and attacked"
    assert rising == [sorted(group) for group in rising]
    page.evaluate(press)
    assert page.evaluate(column) == [sorted(group, reverse=True) for group in rising], "each group by itself"
    assert page.evaluate(f"[...{table}.tBodies].every((body) => body.rows[0].className === 'group')")


def test_on_a_narrow_screen_the_numbers_are_on_it(runs, browser, tmp_path):
    page = browser.new_page(viewport={"width": 420, "height": 900})
    page.set_default_timeout(120_000)
    page.goto(write_page(runs, tmp_path / "page.html", "narrow").as_uri())
    page.wait_for_function("document.querySelector('#evidence-0 .main-svg')")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    cells = "(table) => [...table.tBodies[0].rows[table.querySelector('tr.group') ? 1 : 0].cells]"
    boxes = f"(table) => ({cells})(table).map((cell) => cell.getBoundingClientRect())"
    sticky = page.query_selector_all("table.sticky")
    assert len(sticky) >= 2
    for table in sticky:
        assert page.evaluate(f"(table) => ({boxes})(table)[1].right", table) <= 420, (
            "a number is on the screen"
        )
    page.evaluate("document.querySelectorAll('.scroll').forEach((frame) => { frame.scrollLeft = 200; })")
    for table in sticky:
        assert 0 <= page.evaluate(f"(table) => ({boxes})(table)[0].left", table) < 40, (
            "the first column stays"
        )
    cards = page.query_selector_all("table.cards")
    assert cards
    for table in cards:
        beyond = "filter((cell) => cell.getBoundingClientRect().right > 420).length"
        assert page.evaluate(f"(table) => [...table.querySelectorAll('td')].{beyond}", table) == 0, (
            "a card has no part beyond the screen"
        )


def test_icons_do_not_cover_the_legend(runs, browser, tmp_path):
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(120_000)
    page.goto(write_page(runs, tmp_path / "page.html", "icons").as_uri())
    page.wait_for_function("document.querySelector('#evidence-0 .main-svg')")
    boxes = page.evaluate(
        "[...document.querySelectorAll('.plot')].filter((plot) => plot.querySelector('.legend')).map((plot) => ["
        "plot.querySelector('.legend').getBoundingClientRect().right,"
        "plot.querySelector('.modebar-group').getBoundingClientRect().left])"
    )
    assert len(boxes) > 2
    assert all(legend <= icons for legend, icons in boxes)


def test_no_clients_name_costs_the_page_its_figures(make_run, browser, tmp_path):
    names = ("<!--<script>", "</script>", "]]>", "a & \u2028b")
    folder = make_run(attack="sign-flip", held={name: [50, 10] for name in names})
    page, wrong = browser.new_page(offline=True), []
    page.set_default_timeout(120_000)
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
