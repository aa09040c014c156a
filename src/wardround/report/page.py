"""One self-contained HTML page about some runs: it needs no network and no server."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import wardround
from wardround.analysis import Analysis, Section
from wardround.analysis.rendering import Table
from wardround.analysis.runs import Run
from wardround.analysis.tables import Comparison, compare
from wardround.errors import ConfigError
from wardround.files import replace_file
from wardround.report.contents import Contents, collect
from wardround.report.figures import Figure

__all__ = ["page", "write_page"]

HEADINGS = (
    ("method", True, "the aggregation rule"),
    ("attack", True, "what the Byzantine clients do"),
    ("seeds", False, "finished runs in this row"),
    ("AUROC", False, "test AUROC after the last round, mean over seeds"),
    ("± sd", False, "standard deviation over seeds"),
    ("ΔAUROC", False, "what the attack cost: clean minus attacked, same seeds"),
    ("detected", False, "attacking client-rounds flagged (or weighted below a tenth of an equal share)"),
    ("false alarms", False, "honest client-rounds flagged (or weighted below a tenth of an equal share)"),
)

ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
"""What has a meaning in HTML, written as JSON's own escapes: it occurs in strings only."""

EPSILON = ("ε", False, "privacy budget spent by the whole run, the largest over seeds")


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
    count = len(contents.runs)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{static("page.css")}</style></head>
<body><main>
<h1>{html.escape(title)}</h1>
<p>{_count(count, "run")}. An AUROC of 1 ranks all patients right by risk, 0.5 is chance.
Click a heading to sort.</p>
{_verdicts(contents.analysis)}
{_comparisons(compare(contents.runs))}
{"".join(map(_section, contents.figures))}
{_single(contents)}
{_details_of(contents.analysis)}
<footer>Written by wardround {wardround.__version__} from {_count(count, "run folder")}.</footer>
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


def _section(figure: Figure) -> str:
    title = html.escape(figure.title)
    return (
        f'<section><h2>{title}</h2><figure><div class="plot" id="{figure.key}" role="img" aria-label="{title}">'
        f"</div><figcaption>{html.escape(figure.caption)}</figcaption></figure></section>"
    )


def _verdicts(analysis: Analysis | None) -> str:
    if analysis is None:
        return ""
    return "".join(_verdict_cards(section) for section in analysis.sections if section.verdicts)


def _verdict_cards(section: Section) -> str:
    cards = "".join(
        f'<article class="verdict {v.verdict.replace(" ", "-")}"><h3>{v.key} <strong>{v.verdict}</strong></h3>'
        f"<p>{html.escape(v.statement)}</p><p>{html.escape(v.reason[:1].upper() + v.reason[1:])}.</p></article>"
        for v in section.verdicts
    )
    return f'<section><h2>{html.escape(section.title)}</h2><div class="verdicts">{cards}</div></section>'


def _single(contents: Contents) -> str:
    """Figures of single runs, folded: they are drawn when they are opened."""
    if not contents.single:
        return ""
    shown, whole = len(contents.single), contents.combinations
    some = f" Shown are {shown} of {whole}, attacked ones first." if shown < whole else ""
    folded = "".join(
        f"<details><summary>{html.escape(f'{run.method}, {run.attack}')} <small>{html.escape(run.setting)}, seed "
        f"{run.seed}</small></summary>{''.join(map(_section, figures))}</details>"
        for run, figures in contents.single
    )
    return (
        "<section><h2>Single runs</h2><p>Weights, detection and anomaly of every client over time, for the first seed "
        f"of each setting, attack and method.{some}</p>{folded}</section>"
    )


def _details_of(analysis: Analysis | None) -> str:
    if analysis is None:
        return ""
    tables = "".join(
        f"<details><summary>{html.escape(table.title)}</summary>{_table(table)}</details>"
        for table in analysis.tables
    )
    return f"<section><h2>Numbers and statistics</h2>{tables}</section>"


def _table(table: Table) -> str:
    head = "".join(_heading(name, i < table.words, "") for i, name in enumerate(table.columns))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=word' if i < table.words else ''}>{html.escape(_text(cell))}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return _framed(head, body) + notes


def _text(cell: str | float | int | None) -> str:
    return "" if cell is None else f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def _comparisons(lines: Sequence[Comparison]) -> str:
    by_setting: dict[str, list[Comparison]] = {}
    for line in lines:
        by_setting.setdefault(line.setting, []).append(line)
    return "".join(
        (f"<h2>{html.escape(setting)}</h2>" if len(by_setting) > 1 else "") + _comparison(part)
        for setting, part in sorted(by_setting.items())
    )


def _comparison(lines: Sequence[Comparison]) -> str:
    private = any(line.epsilon is not None for line in lines)
    headings = (*HEADINGS, EPSILON) if private else HEADINGS
    head = "".join(_heading(name, word, hint) for name, word, hint in headings)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="word">{html.escape(text)}</td>' for text in (line.method, line.attack))
        + f"<td>{line.seeds}{f' (+{line.unfinished} unfinished)' if line.unfinished else ''}</td>"
        + "".join(map(_cell, (line.auroc, line.auroc_sd, line.loss_of_auroc)))
        + "".join(map(_percent, (line.tpr, line.fpr)))
        + (_cell(line.epsilon) if private else "")
        + "</tr>"
        for line in lines
    )
    return _framed(head, body)


def _heading(name: str, word: bool, hint: str) -> str:
    title = f' title="{html.escape(hint)}"' if hint else ""
    return (
        f'<th{" class=word" if word else ""}{title}><button type="button">{html.escape(name)}</button></th>'
    )


def _framed(head: str, body: str) -> str:
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: float | None) -> str:
    return "<td></td>" if value is None else f'<td data-value="{value}">{value:.3f}</td>'


def _percent(value: float | None) -> str:
    return "<td></td>" if value is None else f'<td data-value="{value}">{100 * value:.1f} %</td>'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
