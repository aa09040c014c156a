"""The page: self-contained, escaped, and with everything in it that the runs hold."""

import html
import json
import re
from html.parser import HTMLParser

import pytest

from wardround.analysis import load_runs
from wardround.errors import WardroundWarning
from wardround.experiments import expand, run
from wardround.protocols import papers
from wardround.report.contents import collect
from wardround.report.opening import what_is_common
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


def test_the_page_opens_with_the_answer_the_picture_and_the_table(runs, contents, tmp_path):
    text = write_page(runs, tmp_path / "page.html", "answer", contents).read_text().split("<script>")[0]
    (answer,) = contents.analysis.recommendations
    order = [
        text.index(words)
        for words in (
            html.escape(answer.headline),
            html.escape(answer.details[0]),
            'id="evidence-0"',
            f'<td class=word data-label="rule">{answer.standings[0].method}',
            "All rules and attacks",
            'id="auroc-0"',
            "The hypotheses about CAAC-FL",
            "Single runs",
            "Numbers and statistics",
        )
    ]
    assert order == sorted(order)
    assert f"8 runs: {what_is_common(runs)}" in text
    assert what_is_common(runs) == "synthetic · dirichlet α 0.5 · 6 clients · attacks by 33 % from round 3"


def test_every_setting_has_its_own_answer(make_run, tmp_path):
    for alpha in (0.1, 0.5, 1.0):
        for method, kept in (("fedavg", 0.5), ("median", 0.8)):
            make_run(method, alpha=alpha, auroc=0.85)
            make_run(method, alpha=alpha, auroc=kept, attack="alie")
    text = write_page(load_runs([make_run.root]), tmp_path / "page.html", "three").read_text()
    assert text.count("Use median here, as far as a single seed can tell.") == 3
    for alpha in ("0.1", "0.5", "1"):
        assert f"<p>dirichlet α {alpha}</p>" in text
        assert f"<summary>The evidence: dirichlet α {alpha}</summary>" in text


def test_what_must_be_known_stands_between_answer_and_evidence(make_run, tmp_path):
    for method, kept in (("fedavg", 0.5), ("median", 0.8)):
        make_run(method, auroc=0.85)
        make_run(method, auroc=kept, attack="alie")
    make_run("median", auroc=0.8, attack="alie", name="copy")
    with pytest.warns(WardroundWarning, match="same experiment"):
        runs = load_runs([make_run.root])
    text = write_page(runs, tmp_path / "page.html", "copies").read_text()
    order = [
        text.index(words) for words in ("Use median here", '<p class="note">1 run folder holds', "evidence-0")
    ]
    assert order == sorted(order)


def test_one_seed_has_no_column_for_a_spread(make_run, tmp_path):
    make_run("krum", seed=0)
    one = write_page(load_runs([make_run.root]), tmp_path / "one.html", "one").read_text()
    make_run("krum", seed=1)
    two = write_page(load_runs([make_run.root]), tmp_path / "two.html", "two").read_text()
    assert [text.count(">± sd</button>") for text in (one, two)] == [0, 1]


def test_a_rule_without_flags_is_marked(make_run, tmp_path):
    make_run("krum", attack="alie", flags=lambda client, number: None)
    make_run("caac", attack="alie")
    text = write_page(load_runs([make_run.root]), tmp_path / "page.html", "flags").read_text()
    krum, caac = (
        re.search(f'<tr><td class="word">{name}</td>.*?</tr>', text).group() for name in ("krum", "caac")
    )
    assert krum.count(" %*</td>") == 2
    assert "*" not in caac
    assert "* the rule raises no flags" in text


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


@pytest.mark.slow
def test_what_a_private_run_spent_is_told(tmp_path):
    pytest.importorskip("opacus", reason="the extra 'privacy' is not installed")
    table = {"name": "synthetic", "samples": 400, "features": 6}
    (config,) = expand({"base": {"dataset": table, "rounds": 2, "privacy": {"dp": {"clip": 1.0}}}})
    folder = run(config, tmp_path)
    spent = folder.summary().privacy["epsilon"]
    text = write_page(load_runs([folder.path]), tmp_path / "page.html", "private").read_text()
    assert f'<td data-value="{spent}">{spent:.3f}</td>' in text
