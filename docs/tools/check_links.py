"""Check a built site: every link and anchor leads somewhere and nothing is loaded from the network.

python docs/tools/check_links.py [FOLDER] [--online]: with --online, addresses outside the site are asked, too.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, file: Path):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if identifier := values.get("id"):
            self.ids.add(identifier)
        if tag == "a" and (link := values.get("href")):
            self.links.append(link)
        if tag in ("script", "img", "iframe") and (source := values.get("src")):
            self.loads.append(source)
        if tag == "link" and values.get("rel") != "canonical" and (source := values.get("href")):
            self.loads.append(source)


def read_pages(site: Path) -> dict[str, Page]:
    """Path within the site → page."""
    return {file.relative_to(site).as_posix(): Page(file) for file in site.rglob("*.html")}


def find_broken(site: Path, pages: dict[str, Page]) -> list[str]:
    """One line per link to a file or anchor that is not there, and per thing that a page loads from the network."""
    problems = [
        f"{name}: loads {source} from the network"
        for name, page in pages.items()
        for source in page.loads
        if re.match(r"(https?:)?//", source)
    ]
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = unquote(link).partition("#")
            file = (site / Path(name).parent / target).resolve() if target else (site / name).resolve()
            if not file.exists() or not file.is_relative_to(site.resolve()):
                problems.append(f"{name}: {link} leads nowhere")
            elif anchor and anchor not in _anchors(pages, file.relative_to(site.resolve()).as_posix()):
                problems.append(f"{name}: {link}: there is no such anchor")
    return problems


def _anchors(pages: dict[str, Page], name: str) -> set[str]:
    return pages[name].ids if name in pages else set()


def outside(pages: dict[str, Page]) -> set[str]:
    """Addresses outside the site, without those on this machine."""
    links = {link for page in pages.values() for link in page.links if re.match(r"https?://", link)}
    return {link for link in links if "//127.0.0.1" not in link and "//localhost" not in link}


def does_not_answer(address: str) -> str | None:
    """Why an address cannot be reached; None if it can."""
    request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "wardround-links"})
    try:
        urllib.request.urlopen(request, timeout=20).close()
    except OSError as error:
        return f"{address}: {error}"
    return None


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--online"]
    site = Path(arguments[0]) if arguments else ROOT / "site"
    if not (site / "index.html").exists():
        raise SystemExit(f"{site}: no site here; build it with: make docs")
    pages = read_pages(site)
    problems = find_broken(site, pages)
    addresses = outside(pages)
    if "--online" in sys.argv:
        problems += [problem for address in sorted(addresses) if (problem := does_not_answer(address))]
    for problem in problems:
        print(problem, file=sys.stderr)
    count = sum(len(page.links) for page in pages.values())
    asked = "asked" if "--online" in sys.argv else "not asked, --online does"
    print(
        f"{len(pages)} pages, {count} links, {len(addresses)} addresses outside ({asked}): {len(problems)} broken"
    )
    if problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
