"""The mutants themselves: they apply, they compile, they are told apart; and a few are really caught."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tidings.check import ALL_INVARIANTS
from tidings.core.errors import BadInput
from tidings.lab import mutants, planted
from tidings.lab.mutants import Case, Results, Verdict
from tidings.lab.seeds import Plan

QUICK = {
    "tail-commits-before-persist": "check",
    "numbers-reused": "acknowledged",
    "key-collects-nothing": "finality",
    "asof-not-raised": "completeness",
}
"""Planted mutants that a calm seed shows, and who must be among those that catch them."""
LIMIT = 120.0

NESTED = """
class Machine:
    def step(self, a, b):
        assert a > 0
        if a < b and not self.done:
            return [x for x in b if x]
        return 1 if a < b else "\N{GREEK SMALL LETTER LAMDA}" if not a == b else 2

    def check(self):
        if self.a > 1:
            assert False
"""


@pytest.mark.parametrize("mutant", planted.PLANTED, ids=lambda mutant: mutant.id)
def test_a_planted_mutant_applies_and_compiles(mutant: planted.Mutant) -> None:
    source = mutants.module_path(mutant.module).read_text()
    mutated = mutant.apply(source)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


def test_a_mutant_without_its_anchor_is_refused() -> None:
    mutant = planted.Mutant("m", "core.span", "no such line", "", "")
    with pytest.raises(BadInput, match="occurs 0 times"):
        mutant.apply("something else")


def test_planted_mutants_have_names_of_their_own_and_touch_every_mechanism() -> None:
    assert len({mutant.id for mutant in planted.PLANTED}) == len(planted.PLANTED) >= 24
    touched = {mutant.module.rpartition(".")[2] for mutant in planted.PLANTED}
    mechanisms = "chain log configuration interregion publishing pull views proxy client history span"
    assert touched >= set(mechanisms.split())


def test_every_guard_and_comparison_is_negated_once() -> None:
    found = mutants.negations("protocols.nested", NESTED)
    assert [case.id.removeprefix("nested.py:Machine.step:") for case in found] == [
        "a < b and (not self.done)",
        "a < b",
        "x",
        "a < b#2",
        "a == b",
    ]
    assert '"\N{GREEK SMALL LETTER LAMDA}" if not (not (a == b)) else 2' in found[-1].source


def test_generated_mutants_are_stable_told_apart_and_compile() -> None:
    cases = mutants.generated()
    assert [case.id for case in cases] == [case.id for case in mutants.generated()]
    assert len({case.id for case in cases}) == len({(case.module, case.source) for case in cases}) == len(cases) > 300
    for case in cases:
        compile(case.source, case.id, "exec")


def test_every_excused_survivor_is_a_generated_mutant_with_a_reason() -> None:
    reasons = mutants.equivalents()
    assert set(reasons) <= {case.id for case in mutants.generated()}
    assert all(len(why) > 20 for why in reasons.values())


def test_an_outcome_is_kept_until_any_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mutants.jsonl"
    case, verdicts = Case("m", "core.span", "x = 1"), [Verdict(3, ["order"], "why", 0.5)]
    monkeypatch.setattr(mutants, "KILLERS", tmp_path / "killers.tsv")
    mutants.KILLERS.write_text("5\tm\n7\tn\n")
    assert Results(path, [1, 2]).killers == {"m": 5, "n": 7}, "what is known from other machines"
    Results(path, [1, 2]).add(case, verdicts)
    path.write_bytes(path.read_bytes() + b'["torn')
    again = Results(path, [1, 2])
    assert again.known[again.key(case)] == verdicts
    assert again.key(Case("m", "core.span", "x = 2")) not in again.known
    assert Results(path, [1, 2, 3]).key(case) not in again.known
    monkeypatch.setattr(mutants, "JUDGED", ("core",))
    changed = Results(path, [1, 2])
    assert changed.key(case) not in again.known
    assert changed.killers == {"m": 3, "n": 7}, "which seed caught it is worth knowing even so"


def test_a_probed_module_means_the_same_and_tells_which_conditions_it_evaluated() -> None:
    reached: set[int] = set()
    space: dict[str, object] = {"_reached": reached}
    exec(
        compile(mutants.probed("def f(a, b):\n    return 1 if a < b and not a == 0 else 2 if b else 3"), "", "exec"),
        space,
    )
    call = space["f"]
    assert callable(call)
    assert call(1, 2) == 1 and reached == {0, 1, 2}
    reached.clear()
    assert call(3, 0) == 3 and reached == {0, 1, 3}, "the second comparison is not looked at"


def test_a_mutant_faces_only_the_seeds_that_reach_it_the_last_killer_first() -> None:
    went = [Verdict(seed, [], "", 1.0, 10, {"m": spots}) for seed, spots in ((5, [0, 1]), (7, [1]), (9, [1]))]
    trials = mutants.Trials([5, 7, 8, 9], [*went, Verdict(8, ["order"], "", 1.0)])
    assert trials.unfit == [8]
    assert trials.seeds(Case("g", "m", "", 0), None) == [5]
    assert trials.seeds(Case("g", "m", "", 1), 9) == [9, 5, 7]
    assert trials.seeds(Case("g", "m", "", 2), None) == []
    assert trials.seeds(Case("p", "m", ""), None) == [5, 7, 9]


def test_the_summary_names_all_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "equivalents", lambda: {"g2": "it is the same"})
    seen = [invariant.__name__ for invariant in ALL_INVARIANTS if invariant.__name__ != "order"]
    caught = Verdict(4, ["check", *seen], "", 1.0)
    clean = [Verdict(seed, [], "", 1.0) for seed in range(40)]
    outcomes = {"p1": [caught], "p2": clean, "g1": [*clean, caught], "g2": clean, "g3": []}
    result = mutants.summary("sprinkler", ["p1", "p2"], ["g1", "g2", "g3"], outcomes, [9])
    assert (result["mutants"], result["caught"], result["escaped"]) == (2, 1, ["p2"])
    survivors = [{"where": "g2", "why": "it is the same", "seeds": 40}, {"where": "g3", "why": "", "seeds": 0}]
    assert result["generated"] == {"mutants": 3, "caught": 1, "survivors": survivors}
    assert result["by_invariant"]["integrity"] == 2 and result["by_invariant"]["order"] == 0
    assert result["broken"] == [
        "planted p2 escaped",
        "1 of 3 generated mutants caught: less than 90%",
        "survivor without a reason in survivors.toml: g3",
        "order has caught no mutant",
        "seed 9 fails without any mutant",
    ]


def test_every_kind_of_seed_is_among_the_first() -> None:
    order = mutants.in_turns(range(100))
    kinds = [Plan(seed).kind for seed in order]
    assert sorted(order) == list(range(100))
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds)) > 12
    assert kinds[0][0] == "calm"


@pytest.mark.slow
def test_the_protocol_without_a_mutant_passes_the_first_seeds(first_seeds: list[int]) -> None:
    assert [verdict.by for verdict in mutants.hunt(Case("", "", ""), first_seeds, LIMIT)] == [[], [], []]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_mutant_is_caught_by_one_of_the_first_seeds(name: str, first_seeds: list[int]) -> None:
    (case,) = [case for case in mutants.planted() if case.id == name]
    verdict = mutants.hunt(case, first_seeds, LIMIT)[-1]
    assert QUICK[name] in verdict.by, verdict.detail


@pytest.mark.slow
def test_a_mutant_that_hangs_is_caught() -> None:
    case = Case("hangs", "core.ticks", mutants.module_path("core.ticks").read_text() + "\nwhile True:\n    pass\n")
    (verdict,) = mutants.hunt(case, [0], 2.0)
    assert verdict.by == ["timeout"]


@pytest.mark.slow
def test_a_mutant_that_no_signal_handler_can_interrupt_is_ended_by_the_kernel() -> None:
    stubborn = "\nimport signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True:\n    pass\n"
    case = Case("stubborn", "core.ticks", mutants.module_path("core.ticks").read_text() + stubborn)
    (verdict,) = mutants.hunt(case, [0], 1.0)
    assert verdict.by == ["crash"]


@pytest.fixture(scope="module")
def first_seeds() -> list[int]:
    return mutants.in_turns(range(40))[:3]
