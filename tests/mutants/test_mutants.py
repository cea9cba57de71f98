"""The mutants themselves: they apply, they compile, they are told apart; and a few are really caught."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tidings.campaign.gryphon import planted_bugs as gryphon_bugs
from tidings.campaign.mutation import conditions, mutants, planted
from tidings.campaign.mutation.mutants import NOTHING, Case, MutantVerdict, Results, Worker
from tidings.campaign.sprinkler import planted_bugs
from tidings.campaign.sprinkler.fault_plan import FaultPlan
from tidings.check import ALL_INVARIANTS
from tidings.core.errors import BadInput

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


@pytest.mark.parametrize("mutant", planted_bugs.PLANTED + gryphon_bugs.PLANTED, ids=lambda mutant: mutant.id)
def test_a_planted_mutant_applies_and_compiles(mutant: planted.Mutant) -> None:
    source = mutants.module_path(mutant.module).read_text()
    mutated = mutant.apply(source)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


def test_a_mutant_without_its_anchor_is_refused() -> None:
    mutant = planted.Mutant("m", "core.span", "no such line", "", "")
    with pytest.raises(BadInput, match="occurs 0 times"):
        mutant.apply("something else")


def test_planted_mutants_have_names_of_their_own_and_touch_every_mechanism() -> None:
    assert len({mutant.id for mutant in planted_bugs.PLANTED}) == len(planted_bugs.PLANTED) >= 24
    touched = {mutant.module.rpartition(".")[2] for mutant in planted_bugs.PLANTED}
    mechanisms = "chain log configuration interregion publishing pull views replica client history span"
    assert touched >= set(mechanisms.split())


def test_every_condition_has_a_name_once() -> None:
    found = conditions.conditions("protocols.nested", NESTED)
    assert [name.removeprefix("nested.py:Machine.step:") for name in found] == [
        "a < b and (not self.done)",
        "a < b",
        "x",
        "a < b#2",
        "a == b",
    ]


def test_generated_mutants_are_stable_told_apart_and_compile() -> None:
    cases = mutants.generated()
    assert [case.id for case in cases] == [case.id for case in mutants.generated()]
    assert len({(case.module, case.id) for case in cases}) == len(cases) > 300
    for module in mutants.mutated():
        compile(conditions.switched(mutants.module_path(module).read_text()), module, "exec")


def test_a_switched_module_means_the_same_until_a_condition_is_negated() -> None:
    evaluated: list[int] = []
    negated = None

    def condition(spot: int, value: object) -> object:
        evaluated.append(spot)
        return not value if spot == negated else value

    space: dict[str, object] = {"_condition": condition}
    source = "def f(a, b):\n    return 1 if a < b and not a == 0 else 2 if b else 3"
    exec(compile(conditions.switched(source), "", "exec"), space)
    call = space["f"]
    assert callable(call)
    assert [call(1, 2), call(0, 2), call(3, 0)] == [1, 2, 3]
    assert set(evaluated) == {0, 1, 2, 3}
    evaluated.clear()
    assert call(3, 0) == 3 and 2 not in evaluated, "the second comparison is not looked at"
    negated = 2
    assert call(0, 2) == 1


def test_an_outcome_is_kept_until_any_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mutants.jsonl"
    case, verdicts = Case("m", "core.span", "x = 1"), [MutantVerdict(3, ["order"], "why", 0.5)]
    assert Results(path, [1, 2]).killers == {}, "nothing is known yet"
    Results(path, [1, 2]).add(case, verdicts)
    path.write_bytes(path.read_bytes() + b'["torn')
    again = Results(path, [1, 2])
    assert again.of(case) == verdicts
    assert again.of(Case("m", "core.span", "x = 2")) is None
    assert Results(path, [1, 2, 3]).of(case) is None
    monkeypatch.setattr(mutants, "CAMPAIGN", "tidings.core.span")
    changed = Results(path, [1, 2])
    assert changed.of(case) is None
    assert changed.killers == {"m": 3}, "which seed caught it is worth knowing even so"


def test_a_mutant_faces_only_the_seeds_that_reach_it_the_last_killer_first() -> None:
    went = [MutantVerdict(seed, [], "", 1.0, {"m": spots}) for seed, spots in ((5, [0, 1]), (7, [1]), (9, [1]))]
    trials = mutants.Trials([*went, MutantVerdict(8, ["order"], "", 1.0)])
    assert trials.unfit == [8]
    assert trials.seeds(Case("g", "m", spot=0), None) == [5]
    assert trials.seeds(Case("g", "m", spot=1), 9) == [9, 5, 7]
    assert trials.seeds(Case("g", "m", spot=2), None) == []
    assert trials.seeds(Case("p", "m"), None) == [5, 7, 9]


def test_a_negated_condition_is_caught_and_nothing_else_of_its_worker_is_changed() -> None:
    name = "publishing.py:Publishers.judge:batch.first == entry.next"
    (case,) = [case for case in mutants.generated() if case.id == name]
    worker = Worker()
    try:
        assert worker.face(case, [84], LIMIT)[-1].by
        (whole,) = worker.face(NOTHING, [84], LIMIT)
        assert whole.by == [] and whole.reached[case.module]
    finally:
        worker.close()


def test_the_summary_gates_on_planted_bugs_and_reports_generated_mutants() -> None:
    seen = [invariant.__name__ for invariant in ALL_INVARIANTS if invariant.__name__ != "order"]
    caught = MutantVerdict(4, ["check", *seen], "", 1.0)
    clean = [MutantVerdict(seed, [], "", 1.0) for seed in range(6)]
    outcomes = {"p1": [caught], "p2": clean, "g1": [*clean, caught], "g2": clean, "g3": []}
    result = mutants.summary("sprinkler", ["p1", "p2"], ["g1", "g2", "g3"], outcomes, [9], mutants.judges())
    assert (result["mutants"], result["caught"], result["escaped"]) == (2, 1, ["p2"])
    survivors = [
        {"where": "g2", "why": "6 seeds went well with it"},
        {"where": "g3", "why": "no seed evaluates the condition"},
    ]
    assert result["generated"] == {"mutants": 3, "caught": 1, "survivors": survivors}
    assert result["by_invariant"]["integrity"] == 1 and result["by_invariant"]["order"] == 0
    assert result["broken"] == [
        "planted p2 escaped",
        "order has caught no planted bug",
        "seed 9 fails without any mutant",
    ]


def test_every_kind_of_seed_is_among_the_first() -> None:
    order = mutants.in_turns(range(100))
    kinds = [FaultPlan(seed).kind for seed in order]
    assert sorted(order) == list(range(100))
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds)) > 12
    assert kinds[0][0] == "calm"


def test_the_protocol_without_a_mutant_passes_the_first_seeds(first_seeds: list[int]) -> None:
    assert [verdict.by for verdict in mutants.hunt(NOTHING, first_seeds, LIMIT)] == [[], [], []]


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_mutant_is_caught_by_one_of_the_first_seeds(name: str, first_seeds: list[int]) -> None:
    (case,) = [case for case in mutants.planted() if case.id == name]
    verdict = mutants.hunt(case, first_seeds, LIMIT)[-1]
    assert QUICK[name] in verdict.by, verdict.detail


@pytest.mark.check
@pytest.mark.parametrize("case", mutants.planted(), ids=lambda case: case.id)
def test_a_planted_bug_is_caught_by_a_seed_of_the_campaign(case: Case) -> None:
    verdict = mutants.hunt(case, mutants.in_turns(range(mutants.SEEDS)), LIMIT)[-1]
    assert verdict.by, f"{case.id} escapes {mutants.SEEDS} seeds"


def test_a_mutant_that_hangs_is_caught() -> None:
    case = Case(
        "hangs", "core.hybrid_clock", mutants.module_path("core.hybrid_clock").read_text() + "\nwhile True:\n    pass\n"
    )
    (verdict,) = mutants.hunt(case, [0], 2.0)
    assert verdict.by == ["timeout"]


def test_a_mutant_that_no_signal_handler_can_interrupt_is_ended_by_the_kernel() -> None:
    stubborn = "\nimport signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True:\n    pass\n"
    case = Case("stubborn", "core.hybrid_clock", mutants.module_path("core.hybrid_clock").read_text() + stubborn)
    (verdict,) = mutants.hunt(case, [0], 1.0)
    assert verdict.by == ["crash"]


@pytest.fixture(scope="module")
def first_seeds() -> list[int]:
    return mutants.in_turns(range(40))[:3]
