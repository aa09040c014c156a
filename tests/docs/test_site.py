"""The site: built with every warning an error, complete, and content with itself."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from check_links import find_broken, outside, read_pages
from sitegen.members import slug

from wardround import aggregators, attacks

ROOT = Path(__file__).parents[2]


def every_member_has_its_page(site):
    for kind, names in (("rules", aggregators.available()), ("attacks", attacks.available())):
        for name in names:
            text = (site / kind / f"{slug(name)}.html").read_text(encoding="utf-8")
            assert '<svg xmlns:xlink="http://www.w3.org/1999/xlink" class="behaviour"' in text, name
            assert "currentColor" in text
            assert "Parameters" in text
    assert "<mfrac>" in (site / "rules" / "rfa.html").read_text(encoding="utf-8")


def no_style_asks_the_network(site):
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import ['\"]http", sheet.read_text(encoding="utf-8")), (
            sheet
        )


def every_page_can_be_reached_from_the_first(pages):
    linked = {unquote(link).partition("#")[0] for link in pages["index.html"].links}
    unreachable = (
        {name for name in pages if "/" not in name} - linked - {"index.html", "search.html", "genindex.html"}
    )
    assert not unreachable - {"py-modindex.html"}


def search_knows_the_rules(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(word in index for word in ("rules/krum", "attacks/alie", "steward", "heterogen"))


def a_browser_finds_without_a_network(browser, site):
    """Search works from the folder alone; formulas and pictures are drawn; nothing is asked for and nothing fails."""
    wrong = []
    page = browser.new_page(offline=True)
    page.set_default_timeout(120_000)
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url[:5] in ("file:", "data:") else wrong.append(request.url),
    )
    page.goto((site / "search.html").as_uri() + "?q=krum")
    page.wait_for_selector("#search-results li a", timeout=60_000)
    found = page.locator("#search-results li a").evaluate_all(
        "links => links.map((link) => link.getAttribute('href'))"
    )
    page.goto((site / "rules" / "caac.html").as_uri())
    root = page.locator("msqrt").first.bounding_box()
    drawn = page.locator("svg.behaviour").bounding_box()
    page.close()
    assert any("rules/krum.html" in link for link in found)
    assert root["height"] > 20
    assert drawn["width"] > 300
    assert not wrong


def test_broken_links_are_found(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">a</h1><a href="deep/b.html#there">1</a><a href="deep/b.html#gone">2</a><a href="c.html">3</a>'
        '<a href="../outside.html">4</a><a href="#top">5</a><a href="https://example.org/">6</a>'
    )
    (tmp_path.parent / "outside.html").write_text("")
    (tmp_path / "deep" / "b.html").write_text(
        '<p id="there"></p><a href="../index.html#top">1</a><script src="//example.org/x.js"></script>'
    )
    pages = read_pages(tmp_path)
    assert find_broken(tmp_path, pages) == [
        "deep/b.html: loads //example.org/x.js from the network",
        "index.html: deep/b.html#gone: there is no such anchor",
        "index.html: c.html leads nowhere",
        "index.html: ../outside.html leads nowhere",
    ]
    assert outside(pages) == {"https://example.org/"}


@pytest.mark.slow
def test_the_site(tmp_path, request, chromium):
    """One test: the site is built once, not once a worker."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "tools" / "build_site.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = read_pages(tmp_path)
    every_member_has_its_page(tmp_path)
    no_style_asks_the_network(tmp_path)
    assert not find_broken(tmp_path, pages)
    every_page_can_be_reached_from_the_first(pages)
    search_knows_the_rules(tmp_path)
    if chromium is not None:
        a_browser_finds_without_a_network(request.getfixturevalue("browser"), tmp_path)
