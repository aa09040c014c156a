"""Which of two labels is the one to predict: words for yes and no in several languages, and an honest guess else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Positive", "choose_positive"]


def _folded(word: str) -> str:
    """In lower case, without accents, and with spaces for what joins words."""
    plain = unicodedata.normalize("NFKD", word.strip().casefold())
    bare = "".join(character for character in plain if not unicodedata.combining(character))
    return re.sub(r"(?<=\w)[\s_-]+(?=\w)", " ", bare)


def _words(text: str) -> frozenset[str]:
    return frozenset(map(_folded, text.split()))


YES = _words(
    """
    yes ja jo jawohl oui si sim tak ano da igen kylla evet nai да так ναι はい 是 有 예 네 نعم כן हाँ
    true wahr vrai verdadero verdadeiro vero sant
    positive pos positiv positif positivo pozitif positief позитивный + case cases event disease diseased
    sick ill krank malade enfermo malato doente ziek abnormal pathological auffallig pathologisch
    dead died deceased death expired tot gestorben verstorben decede mort fallecido muerto deceduto morto obito
    overleden
    present vorhanden malignant malign bosartig maligne maligno readmitted recurrence relapse
    """
)
NO = _words(
    """
    no nein nej nei nee non nao nie ne nu nem ei hayır hayir ochi нет ні οχι いいえ 否 无 無 아니오 아니요 لا לא नहीं
    false falsch faux falso falsk
    negative neg negativ negatif negativo negatief отрицательный - control controls none
    healthy well gesund sain sano saudavel gezond normal unauffallig
    alive survived survivor living lebend lebendig uberlebt vivant vivo sobrevive levend
    absent benign gutartig benin benigne benigno
    """
)
PAIRS = frozenset(
    {
        ("n", "y"),
        ("n", "j"),
        ("n", "o"),
        ("n", "s"),
        ("n", "t"),
        ("f", "t"),
        ("b", "m"),
        ("0", "1"),
        ("-1", "1"),
    }
)
"""(no, yes) of words that mean nothing by themselves."""
NEGATIONS = frozenset(
    [
        "no",
        "not",
        "non",
        "without",
        "kein",
        "keine",
        "nicht",
        "ohne",
        "pas",
        "sans",
        "sin",
        "senza",
        "sem",
        "zonder",
    ]
)


@dataclass(frozen=True)
class Positive:
    """The label to predict, of two."""

    name: str
    is_known: bool
    """The words say so. Else it is a guess, which must be told to the user."""


def choose_positive(names: Sequence[str]) -> Positive:
    """The positive one of two labels; what no word tells is guessed to be the later one, so in every file the same.

    >>> choose_positive(["ja", "nein"])
    Positive(name='ja', is_known=True)
    >>> choose_positive(["not readmitted", "readmitted"])
    Positive(name='readmitted', is_known=True)
    >>> choose_positive(["north", "south"])
    Positive(name='south', is_known=False)
    """
    one, other = names
    folded = (_folded(one), _folded(other))
    for (yes, no), name in ((folded, one), (folded[::-1], other)):
        if (no, yes) in PAIRS or (yes in YES and no in NO) or _negates(no, yes):
            return Positive(name, True)
    for (word, counterpart), name in ((folded, one), (folded[::-1], other)):
        if (word in YES and counterpart not in YES) or (counterpart in NO and word not in NO):
            return Positive(name, False)
    return Positive(_later(one, other), False)


def _negates(no: str, yes: str) -> bool:
    """Is one the other with a negation before it: "no event" and "event"?"""
    first, _, rest = no.partition(" ")
    return bool(rest) and rest == yes and first in NEGATIONS


def _later(one: str, other: str) -> str:
    try:
        return max(one, other, key=float)
    except ValueError:
        return max(one, other)
