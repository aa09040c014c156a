"""The live page in a real browser: a run is started and seen to happen; keyboard, labels and contrast."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from wardround.runs.quarantine import quarantined

pytest.importorskip("starlette", reason="starlette is not installed (extra 'live')")
pytestmark = pytest.mark.slow

TOKEN = "correct horse battery staple"
PATIENCE = 120_000  # milliseconds
EXPERIMENT = {
    "dataset": {"name": "synthetic", "samples": 600, "features": 6},
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "mlp", "hidden": [8]},
    "aggregator": {"name": "fltrust"},  # flags who points away from the root update
    "attack": {"name": "sign-flip", "clients": ["hospital-02"], "start": 20},
    "rounds": 200,
    "evaluate_every": 5,
}


@pytest.fixture
def watch():
    """Start `wardround watch` on some folders and give its address."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "wardround", "watch", *map(str, arguments), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return re.search(r"http://\S+", process.stdout.readline())[0]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@pytest.fixture
def open_page(browser):
    """Open an address; whatever goes wrong in the page, or leaves for another host, fails the test."""
    wrong, contexts = [], []

    def note(message):
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    def start(url, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        host = url.split("?")[0]
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(host) else wrong.append(f"asked for {r.url}"))
        page.goto(url)
        return page

    yield start
    for context in contexts:
        context.close()
    assert wrong == []


def wait_for(page, condition):
    """Until the expression holds. (Playwright's own way evaluates it in the page, which our policy forbids.)"""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def text(page, selector):
    return page.text_content(selector)


def violations(page):
    """What axe-core finds wrong for people who do not see, or see little."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in found]


FLAGGED_CELLS = """() => {
  const canvas = document.getElementById("heat"), context = canvas.getContext("2d");
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Map();
  for (let i = 0; i < data.length; i += 4) {
    const key = `${data[i]},${data[i + 1]},${data[i + 2]}`;
    colours.set(key, (colours.get(key) ?? 0) + 1);
  }
  return { flagged: colours.get("213,94,0") ?? 0, colours: colours.size };
}"""


# A run of so small a model is over before a page has counted: it waits here until it was seen.
PAUSES = (50, 120)
RUN = """
import json, sys
from pathlib import Path
from wardround.runs.config import load_config
from wardround.runs.runner import run
experiment, out, pauses = map(json.loads, sys.argv[1:])
run(load_config(experiment), Path(out), lambda record: input() if record.round in pauses else None)
"""


def test_a_run_is_seen_from_nothing_to_its_end(watch, open_page, tmp_path):
    page = open_page(watch(tmp_path / "runs"), color_scheme="light", viewport={"width": 1300, "height": 900})
    page.wait_for_selector("text=does not exist yet")
    page.evaluate("""() => {
      window.seen = [];
      new MutationObserver(() => window.seen.push(Number(document.getElementById("rounds-done").textContent)))
        .observe(document.getElementById("rounds-done"), { childList: true, characterData: true, subtree: true });
    }""")
    arguments = (EXPERIMENT, str(tmp_path / "runs"), PAUSES)
    command = [sys.executable, "-c", RUN, *map(json.dumps, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as run:
        for count in PAUSES:
            wait_for(page, f"document.getElementById('rounds-done').textContent === '{count}'")
            assert page.get_attribute("#state", "data-state") != "finished"
            print(file=run.stdin, flush=True)
        page.wait_for_selector("tr.flagged:has-text('hospital-02')")
        page.wait_for_selector("#state[data-state=finished]")
        assert run.wait() == 0
    wait_for(page, "document.getElementById('rounds-done').textContent === '200'")
    seen = page.evaluate("window.seen")
    assert seen == sorted(seen)
    assert len(set(seen)) > 2, "the count rose while the run continued"
    wait_for(
        page,
        "document.querySelector('#clients tbody tr:nth-child(3) td:last-child').textContent === 'round 200'",
    )
    row = text(page, "#clients tr.flagged:has-text('hospital-02')")
    assert "attacks" in row
    assert "flagged" in row
    assert "score" in row
    assert page.locator("#clients tbody tr").count() == 6
    heat = page.evaluate(FLAGGED_CELLS)
    assert heat["flagged"] > 1000, "the attacker's row of the heat map is filled"
    assert heat["colours"] > 20, "and the others have their shades"
    assert page.locator("#curves path").count() == 1
    assert page.locator("#events li", has_text="the attack begins").count() == 1
    assert page.locator("#events li", has_text="flagged: hospital-02").count() >= 1
    assert float(text(page, "#quality")) > 0.5
    assert page.screenshot(path=tmp_path / "live.png", full_page=True)[:4] == b"\x89PNG"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1300), ("dark", 390)])
def test_labels_contrast_and_roles(watch, open_page, growing, tmp_path, scheme, width):
    growing("one", rounds=30).add(12, privacy={"epsilon": 1.5})
    growing("two", rounds=30, aggregator={"name": "krum"}).add(
        20, dropped={"client-2": "not finite"}
    ).finish()
    page = open_page(watch(tmp_path), color_scheme=scheme, viewport={"width": width, "height": 800})
    page.wait_for_selector("#clients tr.flagged")
    page.click("#heat-table summary")
    page.wait_for_selector("#heat-table tbody tr")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"


def test_runs_side_by_side(watch, open_page, growing, tmp_path):
    growing("one", rounds=30).add(12)
    page = open_page(watch(tmp_path))
    page.wait_for_selector("#run-title:has-text('caac')")
    second = growing("two", rounds=30, aggregator={"name": "krum"}).add(20)
    page.wait_for_selector("#runs tbody tr:nth-child(2)")
    wait_for(page, "document.querySelectorAll('#curves path').length === 2")
    page.click("#runs >> text=krum")
    page.wait_for_selector("#run-title:has-text('krum')")
    wait_for(page, "document.getElementById('rounds-done').textContent === '20'")
    second.add(2)
    wait_for(page, "document.getElementById('rounds-done').textContent === '22'")
    page.uncheck("#runs input:enabled")
    wait_for(page, "document.querySelectorAll('#curves path').length === 1")
    page.reload()
    page.wait_for_selector("#run-title:has-text('krum')")  # the address keeps what was chosen
    wait_for(page, "document.querySelectorAll('#curves path').length === 1")


@pytest.mark.parametrize("width", [1300, 420])
def test_seeds_stand_below_one_name_and_curves_do_not_repeat_it(watch, open_page, growing, tmp_path, width):
    for seed in range(3):
        growing(f"caac-{seed}", rounds=30, seed=seed).add(12)
        growing(f"krum-{seed}", rounds=30, seed=seed, aggregator={"name": "krum"}).add(12).finish()
    page = open_page(watch(tmp_path), viewport={"width": width, "height": 900})
    wait_for(page, "document.querySelectorAll('#runs tr.below').length === 6")
    names = "[...document.querySelectorAll('#runs tr.group .link')].map((name) => name.textContent)"
    assert page.evaluate(names) == ["caac · sign-flip 25 % · 3 seeds", "krum · sign-flip 25 % · 3 seeds"]
    shown = (
        "[...document.querySelectorAll('#runs tr.below:not([hidden]) .link')].map((name) => name.textContent)"
    )
    assert page.evaluate(shown) == ["seed 0", "seed 1", "seed 2"], (
        "only the experiment of the selected run is open"
    )
    folded = page.locator("#runs tr.group .link[aria-expanded=false]")
    folded.click()
    wait_for(page, f"{shown}.length === 6")
    # One curve per experiment, all with the same seed, which the title names.
    wait_for(page, "document.querySelectorAll('#curves path').length === 2")
    assert re.fullmatch(r"Curves, seed \d", text(page, "#curves-title"))
    legend = page.evaluate("[...document.querySelectorAll('#legend li')].map((line) => line.textContent)")
    assert sorted(line.split(":")[0] for line in legend) == ["caac · sign-flip 25 %", "krum · sign-flip 25 %"]
    beyond = "(cell) => cell.getBoundingClientRect().right > innerWidth"
    cells = "[...document.querySelectorAll('#runs tr:not([hidden]) td')]"
    assert page.evaluate(f"{cells}.filter({beyond}).length") == 0, "times and numbers are on the screen"
    assert violations(page) == []


def test_a_run_that_starts_again_is_drawn_anew(watch, open_page, growing, tmp_path):
    run = growing(rounds=30).add(12)
    page = open_page(watch(tmp_path))
    wait_for(page, "document.getElementById('rounds-done').textContent === '12'")
    for file in ("rounds.jsonl", "clients.jsonl"):
        (run.path / file).write_text("")
    run.done = 0
    run.add(2)
    wait_for(page, "document.getElementById('rounds-done').textContent === '2'")
    page.wait_for_selector("#clients tr:not(.flagged)")
    assert page.locator("#clients tr.flagged").count() == 0
    assert "started again" in text(page, "#events")


def test_the_keyboard_reaches_every_cell(watch, open_page, growing, tmp_path):
    growing(rounds=30).add(12)
    page = open_page(watch(tmp_path))
    page.wait_for_selector("#clients tr.flagged")
    page.focus("#heat")
    page.keyboard.press("End")
    assert "client-0\nround 12\nscore 9.00\nweight 0.0 %\nflagged" in text(page, "#heat-tip")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert text(page, "#heat-live").startswith("client-1, round 11, score 0.500")
    page.focus("#clients th:nth-child(5) button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#clients th:nth-child(5)[aria-sort=descending]")
    wait_for(page, "document.querySelector('#clients tbody td').textContent === 'client-0'")
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelector('#clients tbody td').textContent !== 'client-0'")


def test_an_operator_quarantines_and_releases(watch, open_page, growing, tmp_path):
    run = growing(federation=True, rounds=30).add(3)
    nasty = "<img src=x onerror=alert(1)>"
    breaking = ("<!--<script>", "</script>", "]]>")  # would end or swallow a script that held them
    lines = ({**run.client_line(4, name), "flag": True} for name in (nasty, *breaking))
    run.append("clients.jsonl", *lines)
    run.append("rounds.jsonl", run.round_line(4))
    url = watch(tmp_path, "--token", TOKEN)
    page = open_page(url)
    page.wait_for_selector("button[aria-label='Quarantine… client-1']")
    assert "token" not in page.url, "the token does not stay in the address"
    assert page.locator("#clients img").count() == 0, "names are text"
    for name in (nasty, *breaking):
        page.wait_for_selector(f"td:has-text('{name}')")
    page.click("button[aria-label='Quarantine… client-1']")
    assert violations(page) == []
    page.keyboard.type("broken scanner")
    page.keyboard.press("Enter")
    page.wait_for_selector("button[aria-label='Release… client-1']")
    assert quarantined(run.path) == {"client-1": "broken scanner"}
    page.wait_for_selector("#events li:has-text('broken scanner')")
    page.click("button[aria-label='Release… client-1']")
    page.keyboard.type("repaired")
    page.click("#action-go")
    page.wait_for_selector("button[aria-label='Quarantine… client-1']")
    assert quarantined(run.path) == {}


def test_without_a_token_the_actions_are_off(watch, open_page, growing, tmp_path):
    growing(federation=True).add(2)
    page = open_page(watch(tmp_path))
    page.wait_for_selector("#operator-note:has-text('--token')")
    assert page.locator("button:has-text('Quarantine')").count() == 0


def test_the_door(watch, browser, growing, tmp_path):
    growing().add(2)
    url = watch(tmp_path, "--token", TOKEN).split("?")[0]
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    assert violations(page) == []
    page.fill("input[name=token]", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=This page needs its token")
    page.fill("input[name=token]", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#run-title:has-text('caac')")
    page.close()
