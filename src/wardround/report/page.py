"""One self-contained HTML page about some runs: it needs no network and no server."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import wardround
from wardround.analysis import Analysis, Section
from wardround.analysis.rendering import count
from wardround.analysis.runs import Run
from wardround.analysis.tables import Comparison, compare
from wardround.errors import ConfigError
from wardround.files import replace_file
from wardround.report.contents import Contents, collect
from wardround.report.html_figures import section
from wardround.report.html_tables import comparison_table, table
from wardround.report.opening import opening_section, what_is_common
from wardround.report.selection import BROAD, ELSEWHERE, spread

__all__ = ["page", "write_page"]

ROWS_UNFOLDED = 150  # more rows of rules and attacks are folded: the figures are below them
ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
"""What has a meaning in HTML, written as JSON's own escapes: it occurs in strings only."""


def write_page(runs: Sequence[Run], path: Path, title: str, contents: Contents | None = None) -> Path:
    """Write the report on these runs to `path`, whole or not at all."""
    text = page(contents or collect(runs), title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def page(contents: Contents, title: str) -> str:
    """The HTML of the page."""
    from plotly.offline import get_plotlyjs

    def static(name: str) -> str:
        return resources.files("wardround.report").joinpath(f"static/{name}").read_text(encoding="utf-8")

    data = script_json([{"key": f.key, "data": f.data, "layout": f.layout} for f in contents.all_figures])
    runs = len(contents.runs)
    common = what_is_common(contents.runs)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{static("page.css")}</style></head>
<body><main>
<h1>{html.escape(title)}</h1>
<p>{count(runs, "run")}{f": {html.escape(common)}" if common else ""}</p>
{opening_section(contents.opening, [] if contents.analysis is None else contents.analysis.notes)}
{_comparisons(contents)}
{_omitted(contents)}
{"".join(map(section, contents.figures))}
{_verdicts(contents.analysis)}
{_single(contents)}
{_details_of(contents.analysis)}
<footer>Written by wardround {wardround.__version__} from {count(runs, "run folder")}.</footer>
</main>
<script>{get_plotlyjs()}</script>
<script type="application/json" id="figures">{data}</script>
<script>{static("page.js")}</script>
</body></html>
"""


def script_json(value: object) -> str:
    r"""JSON for a script element, in which no name is markup.

    Without this, a client named `</script>` would end the element, and one named `<!--<script>` would make a browser
    take the rest of the page, its real end included, as content.

    >>> print(script_json(["</script>", "<!--<script>", "]]>", "a & b"]))
    ["\u003c/script\u003e", "\u003c!--\u003cscript\u003e", "]]\u003e", "a \u0026 b"]
    """
    return json.dumps(value, ensure_ascii=True).translate(ESCAPED)  # ensure_ascii: U+2028 and U+2029 too


def _verdicts(analysis: Analysis | None) -> str:
    if analysis is None:
        return ""
    return "".join(_verdict_cards(part) for part in analysis.sections if part.verdicts)


def _verdict_cards(part: Section) -> str:
    cards = "".join(
        f'<article class="verdict {v.verdict.replace(" ", "-")}"><h3>{v.key} <strong>{v.verdict}</strong></h3>'
        f"<p>{html.escape(v.statement)}</p><p>{html.escape(v.reason[:1].upper() + v.reason[1:])}.</p></article>"
        for v in part.verdicts
    )
    return f'<section><h2>{html.escape(part.title)}</h2><div class="verdicts">{cards}</div></section>'


def _single(contents: Contents) -> str:
    """Figures of single runs, folded: they are drawn when they are opened."""
    if not contents.single:
        return ""
    folded = "".join(
        f"<details><summary>{html.escape(f'{run.method}, {run.attack_label}')} "
        f"<small>{html.escape(_place(run))}</small></summary>{''.join(map(section, figures))}</details>"
        for run, figures in contents.single
    )
    return (
        "<section><h2>Single runs</h2><p>Weights, detection and anomaly of every client over time. "
        f"{html.escape(contents.selection)}</p>{folded}</section>"
    )


def _place(run: Run) -> str:
    return f"{run.setting_label}, seed {run.seed}" if run.setting_label else f"seed {run.seed}"


def _details_of(analysis: Analysis | None) -> str:
    if analysis is None:
        return ""
    tables = "".join(
        f"<details><summary>{html.escape(content.title)}</summary>{table(content)}</details>"
        for content in analysis.tables
    )
    return f"<section><h2>Numbers and statistics</h2>{tables}</section>"


def _omitted(contents: Contents) -> str:
    """What figures leave out, and how to get it; empty where they show all runs."""
    if not contents.omitted:
        return ""
    return f'<p class="note">{html.escape(" ".join([*contents.omitted, ELSEWHERE]))}</p>'


def _comparisons(contents: Contents) -> str:
    by_setting: dict[str, list[Comparison]] = {}
    for line in compare(contents.runs):
        by_setting.setdefault(line.setting, []).append(line)
    opening = contents.opening
    shown = spread(sorted(by_setting.items()), BROAD.settings)
    folds = sum(len(lines) for _, lines in shown) > ROWS_UNFOLDED
    parts = []
    for setting, lines in shown:
        name = html.escape(opening.settings[setting] if len(by_setting) > 1 else "")
        content = comparison_table(lines, opening.attacks)
        if folds:
            summary = f"{name or 'Every rule under every attack'} <small>{len(lines)} rows</small>"
            parts.append(f"<details><summary>{summary}</summary>{content}</details>")
        else:
            parts.append((f"<h3>{name}</h3>" if name else "") + content)
    some = f" {len(shown)} of {len(by_setting)} settings." if len(shown) < len(by_setting) else ""
    return (
        "<section><h2>All rules and attacks</h2><p>Means over seeds; Δ is what the attack cost, clean minus "
        f"attacked with the same seed. Click a heading to sort.{some}</p>{''.join(parts)}</section>"
    )
