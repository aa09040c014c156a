"""Which rule to use here, what it costs without an attack, what it saves under one, and how sure that is.

The recommendation is computed from the runs of one setting. A rule's *worst case* in a seed is its lowest AUROC over
all conditions: without attack, and under each attack. The rule with the highest worst case, mean over seeds, leads.
It is recommended unless

- it cannot be told apart from plain averaging (the reference), or plain averaging itself leads;
- its worst case keeps less than half of what the best rule has above chance without an attack;
- the runs hold no attack, or no second rule to compare it with.

Two rules are told apart when every seed says the same and the paired t-test is significant after Holm's correction
over all rules. Only rules that ran under the same conditions with the same seeds are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from wardround.analysis.measures import BASELINE, Measured
from wardround.analysis.rendering import difference, fixed
from wardround.analysis.runs import CHANCE, CLEAN
from wardround.analysis.statistics import LEVEL, Paired, adjusted, paired, smallest_wilcoxon_p
from wardround.records import MAIN_METRICS

__all__ = ["Recommendation", "Standing", "recommend", "recommendations"]

KEPT = 0.5  # of what the best rule has above chance without attack: with less, no rule is worth recommending

Results = Mapping[str, Mapping[tuple[str, int], float]]
"""AUROC by method, and by attack and seed."""

RECOMMENDED, TIED, HINT, NOT_NEEDED, UNDECIDED, NONE = (
    "recommended", "tied", "one seed", "not needed", "undecided", "none",
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """What one rule reached: AUROC by condition (clean, and each attack), one value per compared seed."""

    method: str
    values: Mapping[str, tuple[float, ...]]

    @property
    def worst(self) -> tuple[float, ...]:
        """The lowest AUROC of any condition, per seed."""
        return tuple(min(of_seed) for of_seed in zip(*self.values.values(), strict=True))

    @property
    def worst_attack(self) -> str | None:
        """The attack with the lowest mean AUROC."""
        attacked = {attack: fmean(values) for attack, values in self.values.items() if attack != CLEAN}
        return min(attacked, key=lambda attack: (attacked[attack], attack)) if attacked else None

    def mean(self, condition: str) -> float:
        """Mean AUROC over seeds under one condition."""
        return fmean(self.values[condition])


@dataclass(frozen=True)
class Recommendation:
    """What the runs of one setting say about which rule to use."""

    setting: str
    verdict: str
    """recommended, tied, one seed, not needed (plain averaging does as well), undecided, or none."""
    rule: str | None
    """The rule to use; None where these runs support none."""
    headline: str
    """The answer in one sentence."""
    details: tuple[str, ...]
    """What it costs, what it saves, and how sure that is, a sentence or two each."""
    reference: str | None
    """The rule that cost and saving are measured against."""
    cost: Paired | None
    """Without attack: the reference's AUROC minus the rule's, by seed."""
    saving: Paired | None
    """Under the attack that hurts the reference most: the rule's AUROC minus the reference's, by seed."""
    tied_with: tuple[str, ...]
    """Rules that these seeds cannot tell from the leading one."""
    seeds: tuple[int, ...]
    standings: tuple[Standing, ...]
    """The compared rules, best worst case first."""
    left_out: tuple[str, ...] = ()
    """Rules that did not run under all of these conditions."""
    measure: str = "AUROC"
    """What the figures are; of a survival task the C-index."""

    @property
    def text(self) -> str:
        """Headline and details as one paragraph."""
        return " ".join([self.headline, *self.details])


def recommendations(
    measured: Iterable[Measured], cautions: Mapping[str, str] | None = None
) -> list[Recommendation]:
    """One recommendation per setting, in the order of their names.

    Args:
        measured: Measured runs.
        cautions: By aggregator: what must be known before it is used, whatever these runs say.
    """
    warned: dict[str, str] = {}
    settings: dict[str, dict[str, dict[tuple[str, int], float]]] = defaultdict(lambda: defaultdict(dict))
    backdoors: set[str] = set()
    measures: dict[str, str] = {}
    for m in measured:
        if m.run.is_oracle:  # no rule that anybody could use
            continue
        if (caution := (cautions or {}).get(m.run.config["aggregator"]["name"])) is not None:
            warned[m.run.method] = caution
        if (value := m.main()) is not None:
            settings[m.run.setting][m.run.method][m.run.attack, m.run.seed] = value
            measures[m.run.setting] = MAIN_METRICS[m.run.main]
        if m["attack_success"] is not None:
            backdoors.add(m.run.setting)
    return [
        recommend(settings[setting], setting, setting in backdoors, warned, measures[setting])
        for setting in sorted(settings)
    ]


def recommend(
    results: Results,
    setting: str = "",
    backdoor: bool = False,
    cautions: Mapping[str, str] | None = None,
    measure: str = "AUROC",
) -> Recommendation:
    """Decide which rule the results of one setting support.

    Args:
        results: AUROC by method, and by attack (`clean` without) and seed.
        setting: Its name, for the heading.
        backdoor: Whether an attack aims at triggered samples, which AUROC does not show.
        cautions: By method: what must be known before it is used, whatever these results say.
        measure: What the results are, in words; chance must be 0.5 and higher must be better.
    """
    conditions, seeds, methods = _comparable(results)
    standings = _standings(results, conditions, seeds, methods)
    left_out = tuple(sorted(set(results) - set(methods)))
    attacks = [condition for condition in conditions if condition != CLEAN]
    reference = BASELINE if BASELINE in methods else None
    facts = _Facts(setting, standings, attacks, seeds, reference, left_out, backdoor, cautions or {}, measure)
    if not seeds or len(methods) < 2:
        return facts.nothing_to_compare()
    if not attacks:
        return facts.nobody_attacks()
    return facts.decide()


def _comparable(results: Results) -> tuple[list[str], list[int], list[str]]:
    """The conditions, seeds and methods that can be compared: every method under every condition with every seed.

    Conditions that fewest methods have are given up, one by one, until two methods have all that are left. Methods
    with fewer than half of the seeds of another one are left out, so that one unfinished rule does not hide the rest.
    """
    seeds_of: dict[str, dict[str, set[int]]] = {
        method: _by_condition(blocks) for method, blocks in results.items() if blocks
    }
    conditions = sorted(
        {c for by_condition in seeds_of.values() for c in by_condition}, key=lambda c: (c != CLEAN, c)
    )

    def whole(method: str) -> set[int]:
        return (
            set.intersection(*(seeds_of[method].get(c, set()) for c in conditions)) if conditions else set()
        )

    def holders(condition: str) -> int:
        return sum(condition in by_condition for by_condition in seeds_of.values())

    while len(conditions) > 1 and sum(bool(whole(method)) for method in seeds_of) < min(2, len(seeds_of)):
        # The clean runs go last: without them nobody knows what a rule costs.
        conditions.remove(min(conditions, key=lambda c: (c == CLEAN, holders(c), c)))
    most = max((len(whole(method)) for method in seeds_of), default=0)
    methods = sorted(method for method in seeds_of if whole(method) and 2 * len(whole(method)) >= most)
    seeds = sorted(set.intersection(*(whole(method) for method in methods))) if methods else []
    return conditions, seeds, methods


def _by_condition(blocks: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    seeds: dict[str, set[int]] = defaultdict(set)
    for attack, seed in blocks:
        seeds[attack].add(seed)
    return seeds


def _standings(
    results: Results, conditions: Sequence[str], seeds: Sequence[int], methods: Sequence[str]
) -> tuple[Standing, ...]:
    if not seeds:
        return ()
    standings = [
        Standing(method, {c: tuple(results[method][c, seed] for seed in seeds) for c in conditions})
        for method in methods
    ]
    # Of equals the simplest leads: plain averaging first, then by name.
    return tuple(sorted(standings, key=lambda s: (-fmean(s.worst), s.method != BASELINE, s.method)))


@dataclass(frozen=True)
class _Facts:
    """What was compared, and the sentences about it."""

    setting: str
    standings: tuple[Standing, ...]
    attacks: Sequence[str]
    seeds: Sequence[int]
    reference: str | None
    left_out: tuple[str, ...]
    backdoor: bool
    cautions: Mapping[str, str]
    measure: str

    def nothing_to_compare(self) -> Recommendation:
        if not self.standings:
            why = "no two rules ran under the same attacks with the same seeds"
            return self._made(NONE, None, f"No rule can be recommended: {why}.", [])
        only = self.standings[0]
        reached = (
            [f"{self.measure} {fixed(only.mean(CLEAN))} without an attack"] if CLEAN in only.values else []
        )
        if only.worst_attack is not None:
            reached.append(f"{fixed(only.mean(only.worst_attack))} under {only.worst_attack}")
        why = f"{only.method} is the only rule here, and there is nothing to compare it with"
        return self._made(
            NONE, None, f"No rule can be recommended: {why}.", [f"It reached {', '.join(reached)}."]
        )

    def nobody_attacks(self) -> Recommendation:
        best, second = self.standings[:2]
        test = paired(best.worst, second.worst)
        assert test is not None  # there are seeds
        why = "nobody attacks in these runs, so they cannot say what withstands an attack"
        told_apart = "" if self._apart([test])[0] else ", which these seeds do not tell apart"
        return self._made(
            NONE,
            None,
            f"No rule can be recommended: {why}.",
            [
                f"Without an attack {best.method} has the highest {self.measure}, {fixed(best.mean(CLEAN))}; next is "
                f"{second.method} with {fixed(second.mean(CLEAN))}{told_apart}."
            ],
        )

    def decide(self) -> Recommendation:
        best, *others = self.standings
        tests = [test for other in others if (test := paired(best.worst, other.worst)) is not None]
        tied = tuple(o.method for o, apart in zip(others, self._apart(tests), strict=True) if not apart)
        verdict, headline = self._headline(best, tied)
        rule = None if verdict in (NONE, UNDECIDED) else best.method
        return self._made(verdict, rule, headline, self._details(best, tied), best, tied)

    def _headline(self, best: Standing, tied: tuple[str, ...]) -> tuple[str, str]:
        worst, seeds = fmean(best.worst), len(self.seeds)
        if self._too_low(worst):
            return NONE, (
                f"No rule can be recommended: even the best one here, {best.method}, keeps "
                f"{_article(self.measure)} of only {fixed(worst)} in its worst case (0.5 is chance)."
            )
        if best.method == self.reference:
            return NOT_NEEDED, (
                f"{_plain(best.method).capitalize()} is enough against these attacks: no other rule here has a "
                "better worst case."
            )
        if seeds == 1:
            return HINT, f"Use {best.method} here, as far as a single seed can tell."
        if self.reference in tied:
            return UNDECIDED, (
                f"Not decided: {best.method} has the best worst case ({fixed(worst)}), but {seeds} seeds do not tell "
                f"it from {_plain(BASELINE)}."
            )
        if tied:
            return TIED, (
                f"Use {best.method} here. {_listed(tied)} may be as good: {seeds} seeds do not tell them apart."
            )
        return RECOMMENDED, f"Use {best.method} here."

    def _too_low(self, worst: float) -> bool:
        clean = [standing.mean(CLEAN) for standing in self.standings if CLEAN in standing.values]
        above = max(clean) - CHANCE if clean else 0.0
        return worst - CHANCE < KEPT * max(above, 0.0) or worst <= CHANCE

    def _apart(self, tests: Sequence[Paired]) -> list[bool]:
        """Which differences every seed agrees on, and the paired t-test too, after Holm's correction."""
        # Differences that are the same in all seeds have no variance to test against: nothing is surer.
        p_values = [1.0 if t.n < 2 or not t.difference else 0.0 if t.t_p is None else t.t_p for t in tests]
        return [
            max(test.above, test.below) == test.n and p <= LEVEL
            for test, p in zip(tests, adjusted(p_values), strict=True)
        ]

    def _details(self, best: Standing, tied: tuple[str, ...]) -> list[str]:
        sentences = [*self._cost_in_words(best), *self._saving_in_words(best), self._certainty(best)]
        if tied and best.method == self.reference:
            sentences.append(f"Not told apart from it: {_listed(tied)}.")
        if self.backdoor:
            sentences.append(f"{self.measure} does not show whether a backdoor works: see 'attack success'.")
        if best.method in self.cautions:
            sentences.append(self.cautions[best.method])
        return sentences

    def _cost_in_words(self, best: Standing) -> list[str]:
        if CLEAN not in best.values:
            return ["What it costs without an attack is not known: every run has one."]
        other = self._other(best)
        test = self._cost(best, other)
        assert test is not None
        figures = (
            f"{self.measure} {fixed(best.mean(CLEAN))}, {_plain(other.method)} has {fixed(other.mean(CLEAN))}"
        )
        amount = difference(test.difference)
        if best.method == self.reference:
            return [f"Without an attack: {figures}."]
        if test.difference <= 0 or amount == difference(0.0):
            return [f"Without an attack it costs nothing: {figures}{_interval(test, amount)}."]
        if test.low is not None and test.low <= 0:
            return [
                f"Without an attack it costs nothing that can be measured: {figures}{_interval(test, amount)}."
            ]
        return [f"Without an attack it costs {amount}: {figures}{_interval(test)}."]

    def _saving_in_words(self, best: Standing) -> list[str]:
        other = self._other(best)
        attack, test = other.worst_attack, self._saving(best, other)
        assert attack is not None  # there are attacks
        assert test is not None
        assert best.worst_attack is not None
        which = (
            f"the worst of {len(self.attacks)} attacks for {other.method}"
            if len(self.attacks) > 1
            else "attack"
        )
        saves = f"it saves {difference(test.difference)}"
        if test.difference <= 0:
            saves = f"it loses {difference(-test.difference)} more"
        sentences = [
            f"Under {which} ({attack}) it keeps {fixed(best.mean(attack))} where {other.method} keeps "
            f"{fixed(other.mean(attack))}: {saves}{_interval(test)}."
        ]
        if best.worst_attack != attack:
            sentences.append(
                f"Its own worst attack is {best.worst_attack}: {fixed(best.mean(best.worst_attack))}."
            )
        return sentences

    def _certainty(self, best: Standing) -> str:
        seeds = len(self.seeds)
        if seeds == 1:
            return "One seed says nothing about chance: run at least six before you rely on it."
        other = self._other(best)
        test = self._saving(best, other)
        assert test is not None
        ahead = "all" if test.above == seeds else "none" if not test.above else str(test.above)
        agreed = (
            f"Of {seeds} seeds, {ahead} {'has' if test.above == 1 else 'have'} it ahead under that attack"
        )
        if (smallest := smallest_wilcoxon_p(seeds)) > LEVEL:
            return f"{agreed}; with so few, a rank test cannot call it significant (p is {smallest:.3g} at best)."
        return f"{agreed} (rank test: p = {test.wilcoxon_p:.2g})."

    def _other(self, best: Standing) -> Standing:
        """What the leading rule is measured against: plain averaging, else the next best rule."""
        others = [standing for standing in self.standings if standing.method != best.method]
        return next((other for other in others if other.method == self.reference), others[0])

    def _cost(self, best: Standing, other: Standing) -> Paired | None:
        return paired(other.values[CLEAN], best.values[CLEAN]) if CLEAN in best.values else None

    def _saving(self, best: Standing, other: Standing) -> Paired | None:
        attack = other.worst_attack
        return None if attack is None else paired(best.values[attack], other.values[attack])

    def _made(
        self,
        verdict: str,
        rule: str | None,
        headline: str,
        details: Iterable[str],
        best: Standing | None = None,
        tied: tuple[str, ...] = (),
    ) -> Recommendation:
        other = None if best is None else self._other(best)
        return Recommendation(
            self.setting, verdict, rule, headline, tuple(details), None if other is None else other.method,
            None if best is None or other is None else self._cost(best, other),
            None if best is None or other is None else self._saving(best, other),
            tied, tuple(self.seeds), self.standings, self.left_out, self.measure,
        )  # fmt: skip


def _article(measure: str) -> str:
    return f"an {measure}" if measure.startswith("A") else f"a {measure}"


def _plain(method: str) -> str:
    return f"plain averaging ({method})" if method == BASELINE else method


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _interval(test: Paired, amount: str = "") -> str:
    """The 95 % interval in brackets, after the difference where the sentence does not have it."""
    parts = [f"difference {amount}"] if amount else []
    if test.low is not None and test.high is not None:
        parts.append(f"95 % interval {difference(test.low)} to {difference(test.high)}")
    return f" ({', '.join(parts)})" if parts else ""
