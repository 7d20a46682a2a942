"""Does the fit find coefficients that it was given, say how sure it is, and what it cannot know?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from offload.cost import Coefficient, Coefficients, Work, add_waiting, predict
from tuner.fit import Run, advice_for, fit, rank_next_runs, solve_nnls

TRUTH = {"decode.const": 1e-3, "decode.read.CPU.Q4_K": 2e-11, "decode.read.CUDA0.Q4_K": 2e-12}


def run_of(amounts: Mapping[str, float], factor: float = 1.0, noise: float = 0.005) -> Run:
    """A run that takes what TRUTH says, times `factor`."""
    seconds = sum(TRUTH[name] * amount for name, amount in amounts.items())
    work = Work(amounts={n: a for n, a in amounts.items() if a})
    return Run(label=str(amounts), work=work, seconds=seconds * factor, noise=noise)


def amounts(card: float, host: float) -> dict[str, float]:
    """Bytes read on the card and on the host for one token."""
    return {
        "decode.const": 1.0,
        "decode.read.CPU.Q4_K": host,
        "decode.read.CUDA0.Q4_K": card,
    }


def test_nnls_agrees_with_brute_force() -> None:
    """The active set ends at the best of all 2^n subsets of free coefficients."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        left, right = rng.normal(size=(6, 4)), rng.normal(size=6)
        best = np.inf
        for bits in range(16):
            free = [j for j in range(4) if bits >> j & 1]
            x = np.zeros(4)
            if free:
                x[free] = np.linalg.lstsq(left[:, free], right, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(np.sum((left @ x - right) ** 2)))
        found = solve_nnls(left, right)
        assert (found >= 0).all()
        assert float(np.sum((left @ found - right) ** 2)) == pytest.approx(best, rel=1e-9)


def test_exact_runs_give_the_coefficients_back() -> None:
    """Noiseless runs that part all features: each coefficient within 1 %."""
    runs = [run_of(amounts(c, h)) for c, h in [(9e9, 0), (1e8, 1e8), (1e9, 1e9), (2e9, 5e7)]]
    found = fit(runs)
    assert not found.unidentified
    for name, value in TRUTH.items():
        assert found.coefficients.table[name].value == pytest.approx(value, rel=0.01)


def test_amounts_that_never_part_are_named_and_their_sum_is_known() -> None:
    """Constant and card bytes always alike: both unidentified, yet such runs are predicted."""
    runs = [run_of(amounts(1e9, h)) for h in (0, 1e8, 5e8, 1e9)]
    found = fit(runs)
    assert {u.feature for u in found.unidentified} & {"decode.const", "decode.read.CUDA0.Q4_K"}
    assert found.condition_numbers["decode"] > 1e6
    seen = predict(Work(amounts=amounts(1e9, 2e8)), found.coefficients)
    other = predict(Work(amounts=amounts(8e9, 2e8)), found.coefficients)
    assert seen is not None and other is not None
    assert seen.high_s / seen.low_s < 1.3 < other.high_s / other.low_s


def test_an_outlier_is_marked_and_hardly_moves_the_fit() -> None:
    """One run three times too slow stays in the list, marked; the others' fit stands."""
    pairs = [(c * 1e9, h * 1e8) for c in (1, 4, 9) for h in (0, 2, 8)]
    runs = [run_of(amounts(c, h)) for c, h in pairs]
    runs.append(run_of(amounts(4e9, 2e8), factor=3.0))
    found = fit(runs)
    assert [r.is_outlier for r in found.residuals] == [False] * len(pairs) + [True]
    assert found.coefficients.table["decode.read.CPU.Q4_K"].value == pytest.approx(2e-11, rel=0.1)


def test_prior_holds_where_the_runs_are_silent() -> None:
    """A feature the runs cannot part from another keeps the value it had before."""
    name = "decode.read.CUDA0.Q4_K"
    table = {
        name: Coefficient(name=name, value=2e-12, unit="s/byte", standard_error=2e-13),
    }
    prior = Coefficients(table=table, covariance={}, residual_sds={}, source="prior")
    runs = [run_of(amounts(1e9, h)) for h in (0, 1e8, 5e8, 1e9)]
    found = fit(runs, prior)
    assert found.coefficients.table[name].value == pytest.approx(2e-12, rel=0.1)
    assert found.coefficients.table["decode.const"].value == pytest.approx(1e-3, rel=0.3)


def test_the_next_run_is_the_one_least_known() -> None:
    """Of two candidates the one that parts what the runs left together comes first."""
    found = fit([run_of(amounts(1e9, h)) for h in (0, 1e8, 5e8, 1e9)])
    ranked = rank_next_runs(
        found,
        {"again": Work(amounts=amounts(1e9, 5e8)), "more": Work(amounts=amounts(8e9, 0))},
    )
    assert [label for label, _ in ranked] == ["more", "again"]


def test_phases_do_not_mix() -> None:
    """Decode and prefill runs are fitted apart and predicted with their own scatter."""
    runs = [run_of(amounts(c, h)) for c, h in [(9e9, 0), (1e8, 1e8), (1e9, 1e9), (2e9, 5e7)]]
    work = Work(amounts={"prefill.const": 1.0})
    runs += [Run(label=str(s), work=work, seconds=s) for s in (1.0, 1.4, 0.7, 1.2)]
    found = fit(runs).coefficients
    assert found.residual_sds["prefill"] > 5 * found.residual_sds["decode"]
    assert found.table["prefill.const"].value == pytest.approx(1.0, rel=0.2)


def test_every_kind_of_feature_has_advice() -> None:
    """What is not identifiable comes with a run that would settle it."""
    assert "depth" in advice_for("decode.context.CUDA0")
    assert advice_for("something.new")


def test_a_run_between_the_ends_shows_waiting_cards() -> None:
    """Where relief costs more at first, the mid-point is learned from, and others follow it."""
    card, host, slow = "decode.read.CUDA0.Q4_K", "decode.read.CPU.Q4_K", 0.45
    truth = {"decode.const": 1e-4, card: 5e-12, host: 2e-11, "decode.wait.CUDA0": slow}

    def run(n_host: int) -> Run:
        work = Work(amounts={"decode.const": 1.0, card: 1.2e9 - n_host * 3e7, host: n_host * 3e7})
        bent = add_waiting(work, truth)
        seconds = sum(truth[name] * amount for name, amount in bent.amounts.items())
        return Run(label=str(n_host), work=work, seconds=seconds)

    measured = [run(n) for n in (0, 10, 40)]
    bent, straight = fit(measured), fit(measured, waiting=False)
    assert bent.coefficients.table["decode.wait.CUDA0"].value == pytest.approx(slow, abs=0.1)
    worst = []
    for found in (bent, straight):
        guesses = {n: predict(run(n).work, found.coefficients) for n in (4, 6, 16, 20, 30)}
        worst.append(max(abs(g.seconds / run(n).seconds - 1) for n, g in guesses.items() if g))
    assert worst[0] < 0.6 * worst[1]


def test_without_a_run_between_the_ends_intervals_leave_room_for_waiting() -> None:
    """Two ends predict the middle on the straight line, but not as surely as the ends."""
    card, host = "decode.read.CUDA0.Q4_K", "decode.read.CPU.Q4_K"

    def work(n_host: int) -> Work:
        return Work(amounts={"decode.const": 1.0, card: 1.2e9 - n_host * 3e7, host: n_host * 3e7})

    runs = [Run(label=str(n), work=work(n), seconds=s) for n, s in ((0, 8e-3), (40, 30e-3))]
    known = fit(runs).coefficients
    end, middle = predict(work(40), known), predict(work(16), known)
    assert end is not None and middle is not None
    assert middle.seconds == pytest.approx(8e-3 + 0.4 * 22e-3, rel=0.02)
    assert middle.high_s / middle.low_s > 1.2 > end.high_s / end.low_s


def test_types_that_never_part_are_equally_fast() -> None:
    """Two types always in one proportion share the time; a model of one of them is predicted."""
    q4, q6 = "decode.read.CPU.Q4_K", "decode.read.CPU.Q6_K"

    def work(n: float) -> Work:
        return Work(amounts={"decode.const": 1.0, q4: 8e8 * n, q6: 2e8 * n})

    runs = [Run(label=str(n), work=work(n), seconds=1e-3 + 1e9 * n * 2e-11) for n in (1, 2, 4)]
    known = fit(runs).coefficients
    for name in (q4, q6):
        assert known.table[name].value == pytest.approx(2e-11, rel=0.15)
    found = predict(Work(amounts={"decode.const": 1.0, q6: 1e9}), known)
    assert found is not None and found.seconds == pytest.approx(21e-3, rel=0.15)
    assert found.high_s / found.low_s > 1.15


def test_cards_that_never_part_are_equally_fast() -> None:
    """Two cards that always do the same share the time; one that is slower is found out."""
    one, two = "decode.read.CUDA0.Q4_K", "decode.read.CUDA1.Q4_K"

    def run(first: float, second: float, slower: float = 1.0) -> Run:
        work = Work(amounts={"decode.const": 1.0, one: first, two: second})
        seconds = 1e-3 + 2e-12 * (first + slower * second)
        return Run(label=f"{first} {second}", work=work, seconds=seconds)

    alike = fit([run(n * 1e9, n * 1e9) for n in (1, 2, 4)]).coefficients.table
    assert alike[one].value == pytest.approx(alike[two].value, rel=0.01)
    assert alike[one].value == pytest.approx(2e-12, rel=0.1)
    pairs = [(1e9, 4e9), (4e9, 1e9), (2e9, 2e9), (1e9, 1e9)]
    parted = fit([run(*pair, slower=3.0) for pair in pairs]).coefficients.table
    assert parted[two].value / parted[one].value == pytest.approx(3.0, rel=0.05)


def test_a_prior_that_is_certain_is_kept() -> None:
    """A coefficient given without any error stays what it was."""
    name = "decode.const"
    table = {name: Coefficient(name=name, value=2e-3, unit="s", standard_error=0.0)}
    prior = Coefficients(table=table, covariance={}, residual_sds={}, source="prior")
    found = fit([run_of(amounts(1e9, h)) for h in (0, 1e8, 1e9)], prior)
    assert found.coefficients.table[name].value == pytest.approx(2e-3, rel=1e-3)


def test_short_prompts_do_not_make_long_ones_take_hours() -> None:
    """Of 16 and 64 tokens, 5 % of noise each way; 2048 tokens are predicted within a half.

    Attention is a hundredth of a short prompt and could seem to cost as much as all of it.
    """

    def prompt(n_tokens: int, n_layer: int, n_depth: int = 0) -> dict[str, float]:
        n_batches = max(1, n_tokens // 64)
        seen = n_depth + n_tokens / 2
        return {
            "prefill.const": 1.0,
            "prefill.ubatch": float(n_batches),
            "prefill.layer.RPC0": float(n_layer * n_batches),
            "prefill.flops.RPC0.Q4_K": 5e7 * n_layer * n_tokens,
            "prefill.read.RPC0": 4e7 * n_layer * n_batches,
            "prefill.attention.RPC0": 6144.0 * n_layer * n_tokens * seen,
        }

    truth = {
        "prefill.const": 5e-3, "prefill.ubatch": 1e-3, "prefill.layer.RPC0": 1e-3,
        "prefill.flops.RPC0.Q4_K": 5e-11, "prefill.read.RPC0": 5e-11,
        "prefill.attention.RPC0": 1e-10,
    }  # fmt: skip

    def seconds(amounts: Mapping[str, float]) -> float:
        return sum(truth[name] * amount for name, amount in amounts.items())

    long = prompt(2048, 32)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        runs = [
            Run(
                label=f"{n_tokens} {n_layer}",
                work=Work(amounts=amounts),
                seconds=seconds(amounts) * float(np.exp(rng.normal(0, 0.05))),
                noise=0.01,
            )
            for n_tokens in (16, 64)
            for n_layer in (8, 4, 8)
            for amounts in [prompt(n_tokens, n_layer)]
        ]
        said = predict(Work(amounts=long), fit(runs).coefficients)
        assert said is not None
        assert seconds(long) / 1.5 < said.seconds < seconds(long) * 1.5


def test_cards_of_one_model_learn_from_each_other() -> None:
    """One card seen with 10 % of noise, its twin with little: both are the twin's speed.

    Runs that say clearly that a twin is half as fast are believed all the same.
    """
    models = {"RPC0": "some card", "RPC1": "some card"}

    def runs_of(factor: float, noise: float) -> list[Run]:
        return [
            Run(
                label=f"{card} {n_bytes}",
                work=Work(amounts={f"decode.read.{card}.Q4_K": n_bytes}),
                seconds=1e-11 * n_bytes * (factor if card == "RPC1" else 1.0),
                noise=noise if card == "RPC1" else 0.005,
            )
            for card in models
            for n_bytes in (1e9, 2e9, 3e9)
        ]

    def seconds(found: Coefficients, card: str) -> float:
        return found.table[f"decode.read.{card}.Q4_K"].value

    vague = runs_of(1.1, 0.1)
    together = fit(vague, card_models=models).coefficients
    apart = fit(vague).coefficients
    assert seconds(together, "RPC1") < seconds(apart, "RPC1")
    assert seconds(together, "RPC1") == pytest.approx(seconds(together, "RPC0"), rel=0.08)
    clear = fit(runs_of(2.0, 0.005), card_models=models).coefficients
    assert seconds(clear, "RPC1") == pytest.approx(2e-11, rel=0.05)
    assert seconds(clear, "RPC0") == pytest.approx(1e-11, rel=0.05)
