"""How a delimited text file is written: separator, decimal sign and encoding, found in the file or given."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass

from wardround.errors import DataError

__all__ = ["SEPARATORS", "Dialect", "decode", "find_separator", "plain_numbers"]

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
LOOKED_AT = 200
"""Lines from which the separator is found."""
LATIN = "cp1252"
"""Windows' Latin-1, which has the euro sign and curly quotes beside Latin-1's own letters."""

_COMMA_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?")
_WHOLE_NUMBER = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)")

_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass(frozen=True)
class Dialect:
    """What is known about a file; None: to be found in the file."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    @property
    def words(self) -> str:
        """The dialect in a few words, as far as it is known."""
        parts = (
            [f"separator {SEPARATORS.get(self.separator, repr(self.separator))}"] if self.separator else []
        )
        if self.decimal:
            parts.append(f"decimal {'comma' if self.decimal == ',' else 'point'}")
        if self.encoding:
            parts.append(f"encoding {self.encoding}")
        return ", ".join(parts)


def decode(content: bytes, encoding: str | None, where: object) -> tuple[str, str]:
    """The text of a file and the name of its encoding: UTF-8, UTF-16 (by its mark or its zeros), else Latin-1.

    >>> decode("Müller".encode("utf-8-sig"), None, "a file"), decode("Müller".encode("latin-1"), None, "a file")
    (('Müller', 'UTF-8'), ('Müller', 'Latin-1'))
    """
    if encoding is not None:
        try:
            return content.decode(encoding).removeprefix("\ufeff"), encoding
        except LookupError:
            raise DataError(
                f"{where}: no encoding is called {encoding!r}; try utf-8, latin-1 or utf-16"
            ) from None
        except UnicodeError as error:
            raise DataError(f"{where} is not {encoding} text ({error})") from None
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return _utf_16(content, "utf-16", where)
    if content[:1000].count(0) > len(content[:1000]) / 4:  # Latin letters in UTF-16 have a zero byte each
        return _utf_16(content, "utf-16-le" if content[1:2] == b"\0" else "utf-16-be", where)
    try:
        return content.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError as error:
        if (zero := content.find(b"\0")) >= 0:
            raise DataError(
                f"{where} is not UTF-8, UTF-16 or Latin-1 text (byte {zero} is zero, byte {error.start} no letter)"
            ) from None
    try:
        return content.decode(LATIN), "Latin-1"
    except UnicodeDecodeError:
        return content.decode("latin-1"), "Latin-1"


def _utf_16(content: bytes, encoding: str, where: object) -> tuple[str, str]:
    try:
        return content.decode(encoding), "UTF-16"
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8, UTF-16 or Latin-1 text ({error})") from None


def find_separator(text: str) -> str:
    """The separator that cuts all lines into as many cells as the header has; of several, the one with most.

    >>> find_separator("age;score\\n63;1,5\\n70;2,25\\n"), find_separator("age\\n63\\n")
    (';', ',')
    """
    head = text[: text.find("\n", 200_000) + 1 or len(text)]
    best, best_rank = ",", (False, 1)
    for separator in SEPARATORS:
        try:
            rows = [row for _, row in zip(range(LOOKED_AT), _rows(head, separator), strict=False)]
        except csv.Error:
            continue
        if not rows:
            continue
        width = len(rows[0])
        rank = (width > 1 and all(len(row) == width for row in rows), width)
        if rank > best_rank:
            best, best_rank = separator, rank
    return best


def _rows(text: str, separator: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]


def plain_numbers(
    cells: list[str], decimal: str | None, missing: frozenset[str], may_be_thousands: bool = False
) -> list[str] | None:
    """Numbers with a decimal comma, rewritten with a point; None where the column is not written so.

    A column is, where one cell at least has the comma, and half of those that hold a value are such numbers or whole
    ones; words among them stay as they are, for whoever reads the numbers to complain about. Points before the comma
    are thousands.

    Args:
        cells: The column.
        decimal: "," or "." where that is given; None: found by the column.
        missing: Cells (in lower case) without a value.
        may_be_thousands: Whether 1,234 may also mean one thousand, as where cells are separated by commas. A column in
            which every comma can be read so is left as it is.

    >>> plain_numbers(["1,5", "", "1.234,25", "3"], None, frozenset({""}))
    ['1.5', '', '1234.25', '3']
    """
    if decimal == "." or (decimal is None and not any("," in cell for cell in cells)):
        return None
    commas, numbers, words, thousands = 0, 0, 0, may_be_thousands and decimal is None
    plain = []
    for cell in cells:
        word = cell.strip()
        if word.lower() in missing:
            plain.append(cell)
        elif _COMMA_NUMBER.fullmatch(word):
            commas, numbers = commas + 1, numbers + 1
            thousands = thousands and _THOUSANDS.fullmatch(word) is not None
            plain.append(word.replace(".", "").replace(",", "."))
        elif _WHOLE_NUMBER.fullmatch(word):
            numbers += 1
            plain.append(word.replace(".", ""))
        else:
            words += 1
            plain.append(cell)
    if decimal == ",":
        return plain
    return plain if commas and numbers >= words and not thousands else None
