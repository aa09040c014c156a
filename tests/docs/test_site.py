"""The site: built with every warning an error, complete, and content with itself."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from sitegen.members import slug

from wardround import aggregators, attacks

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, file: Path):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if values.get("id"):
            self.ids.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and values.get("src"):
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") != "canonical" and values.get("href"):
            self.loads.append(values["href"])


def every_member_has_its_page(site):
    for kind, names in (("rules", aggregators.available()), ("attacks", attacks.available())):
        for name in names:
            text = (site / kind / f"{slug(name)}.html").read_text(encoding="utf-8")
            assert '<svg xmlns:xlink="http://www.w3.org/1999/xlink" class="behaviour"' in text, name
            assert "currentColor" in text
            assert "Parameters" in text
    assert "<mfrac>" in (site / "rules" / "rfa.html").read_text(encoding="utf-8")


def nothing_is_asked_of_the_network(site, pages):
    for name, page in pages.items():
        assert not [source for source in page.loads if re.match(r"(https?:)?//", source)], name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import ['\"]http", sheet.read_text(encoding="utf-8")), (
            sheet
        )


def links_and_anchors_lead_somewhere(site, pages):
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            found = (Path(name).parent / target).as_posix() if target else name
            found = (site / found).resolve().relative_to(site.resolve()).as_posix()
            assert (site / found).exists(), f"{name}: {link}"
            if anchor and found in pages:
                assert anchor in pages[found].ids, f"{name}: {link}"


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


@pytest.mark.slow
def test_the_site(tmp_path, request, chromium):
    """One test: the site is built once, not once a worker."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "tools" / "build_site.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {file.relative_to(tmp_path).as_posix(): Page(file) for file in tmp_path.rglob("*.html")}
    every_member_has_its_page(tmp_path)
    nothing_is_asked_of_the_network(tmp_path, pages)
    links_and_anchors_lead_somewhere(tmp_path, pages)
    every_page_can_be_reached_from_the_first(pages)
    search_knows_the_rules(tmp_path)
    if chromium is not None:
        a_browser_finds_without_a_network(request.getfixturevalue("browser"), tmp_path)
