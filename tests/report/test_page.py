"""The page: self-contained, escaped, and with everything in it that the runs hold."""

import json
import re
from html.parser import HTMLParser

import pytest

from wardround.analysis import load_runs
from wardround.experiments import expand, run
from wardround.protocols import papers
from wardround.report.contents import collect
from wardround.report.page import write_page


@pytest.fixture(scope="module")
def contents(runs):
    return collect(runs, papers())


def test_the_page_needs_nothing_from_outside_and_trusts_no_name(runs, contents, tmp_path):
    path = write_page(runs, tmp_path / "deep" / "page.html", "a <b>bold</b> </script> title", contents)
    text = path.read_text()
    assert "a &lt;b&gt;bold" in text
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text.split("<script>")[0])
    data = re.search(r'id="figures">(.*?)</script>', text, re.S)
    figures = json.loads(data.group(1))
    assert len(figures) == len(contents.all_figures) == len({figure["key"] for figure in figures})
    assert not list(path.parent.glob("*.tmp"))


NASTY = ("<!--<script>", "</script>", "]]>", "--><b>", "a & \u2028\u2029b")


def test_no_clients_name_costs_the_page_its_figures(make_run, tmp_path):
    folder = make_run(attack="sign-flip", held={name: [50, 10] for name in NASTY})
    path = write_page(load_runs([folder.path]), tmp_path / "page.html", "nasty names")
    (data,) = _Scripts(path.read_text()).json
    assert json.loads(data)
    names = json.dumps(json.loads(data), ensure_ascii=False)
    assert all(name in names for name in NASTY)
    assert not set("<>&\u2028\u2029") & set(data), "nothing in it is markup"


class _Scripts(HTMLParser):
    """The content of the scripts with data, as a parser of HTML finds them."""

    def __init__(self, text):
        super().__init__()
        self.json, self._inside = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._inside = tag == "script" and ("type", "application/json") in attrs

    def handle_data(self, data):
        if self._inside:
            self.json.append(data)

    def handle_endtag(self, tag):
        self._inside = False


def test_runs_that_are_not_finished_have_a_page_too(runs, tmp_path):
    from wardround.analysis.runs import Run

    unfinished = Run(runs[0].folder)
    unfinished.summary = None
    text = write_page([unfinished], tmp_path / "page.html", "going on").read_text()
    assert "(+1 unfinished)" in text
    assert "Numbers and statistics" not in text


def test_what_a_private_run_spent_is_told(tmp_path):
    pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
    table = {"name": "synthetic", "samples": 400, "features": 6}
    (config,) = expand({"base": {"dataset": table, "rounds": 2, "privacy": {"dp": {"clip": 1.0}}}})
    folder = run(config, tmp_path)
    spent = folder.summary().privacy["epsilon"]
    text = write_page(load_runs([folder.path]), tmp_path / "page.html", "private").read_text()
    assert f'<td data-value="{spent}">{spent:.3f}</td>' in text
