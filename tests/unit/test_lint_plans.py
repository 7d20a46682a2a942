"""Our own commands lint without an error, and anything at all gets an answer in bounded time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.device import devices_from_flags
from offload.emit import emit_bench_args, emit_server_args, make_launch
from offload.errors import UsageError
from offload.ggml import TYPES_BY_NAME
from offload.lint import CODES, Machine, Severity, lint, parse_command
from offload.lint.flags import BENCH, COMMON, ENV, IK, REMOVED
from offload.model import Model
from offload.options import PlanOptions, Strategy
from offload.plan import Plan, make_plan
from offload.units import GIB
from tests.lint_examples import codes, example_machine, example_model, lint_example

SMALL = ("gpt-oss-20b", "deepseek-v2-lite", "ernie-4.5-21b-a3b", "gemma-4-26b-a4b")
LARGE = (
    "qwen3.5-35b-a3b", "gpt-oss-120b", "glm-4.5-air", "mistral-small-4-119b", "qwen3-14b",
    "qwen3-next-80b-a3b",
)  # fmt: skip
BACKENDS = ("CUDA", "ROCm", "Vulkan")
N_PLANS = 500


def _random_plan(rng: random.Random) -> Plan | None:
    """A plan of a random shape on random cards with random wishes; None where none is feasible."""
    model = example_model(rng.choice(SMALL if rng.random() < 0.8 else LARGE))
    backend, n_cards = rng.choice(BACKENDS), rng.randint(1, 4)
    cards = tuple(
        f"{backend}{i}:{rng.choice((8, 11.5, 15.5, 22.5, 23.5, 31.5, 47))}GiB"
        for i in range(n_cards)
    )
    devices = devices_from_flags(None, None, cards)
    q8 = TYPES_BY_NAME["Q8_0"]
    type_kv = rng.choice((TYPES_BY_NAME["F16"], TYPES_BY_NAME["F16"], q8))
    options = PlanOptions(
        n_ctx=rng.choice((4096, 4096, 16384)),
        n_ubatch=rng.choice((512, 512, 512, 2048)),
        n_parallel=rng.choice((None, None, 1, 3)),
        kv_unified=rng.choice((None, None, True, False)),
        type_k=type_kv,
        type_v=type_kv,
        op_offload=rng.random() < 0.9,
        n_cpu_moe=rng.choice((None, None, None, 5)),
        tensor_split=rng.choice((None, None, tuple(float(i + 1) for i in range(n_cards)))),
        split_mode=rng.choice(("layer", "layer", "layer", "none")),
        strategy=rng.choice((*(Strategy.OWN,) * 20, *Strategy)),
        device_names=rng.choice(((), tuple(card.name for card in devices))),
    )
    try:
        plan = make_plan(
            model, devices, options, host_free_bytes=rng.choice((None, 256 * GIB)),
            with_advice=False,
        )  # fmt: skip
    except UsageError:
        return None
    return plan if plan.feasible else None


def test_commands_of_our_own_plans_have_no_error() -> None:
    """500 feasible plans, seeded: what we emit is accepted, fits, and finds its tensors."""
    rng = random.Random(20261201)
    n_plans = n_bench = 0
    while n_plans < N_PLANS:
        plan = _random_plan(rng)
        if plan is None:
            continue
        n_plans += 1
        machine = Machine(devices=plan.offered_devices, host_free_bytes=plan.host_free_bytes)
        argv = emit_server_args(make_launch(plan))
        report = lint(parse_command(argv), model=plan.model, machine=machine)
        wrong = [f for f in report.findings if f.severity is Severity.ERROR]
        assert not wrong, (argv, wrong)
        assert report.plan is not None
        assert report.plan.memory == plan.memory
        assert report.plan.split == plan.split
        rules = {"rule-matches-nothing", "rule-matches-too-much", "rule-shadowed", "bad-regex"}
        assert not rules & codes(report)
        if n_plans % 10 == 0 and plan.context.n_ctx <= 4096:
            bench = (*emit_bench_args(make_launch(plan)), "-p", "512", "-n", "32")
            report = lint(parse_command(bench), model=plan.model, machine=machine)
            assert not report.has_errors, (bench, report.findings)
            n_bench += 1
    assert n_bench > 5


WORDS = st.one_of(
    st.sampled_from(sorted({*COMMON, *BENCH, *IK, *REMOVED})),
    st.sampled_from(sorted(f"{name}=1" for name in ENV)),
    st.sampled_from(("llama-server", "llama-bench", "llama-cli", "env", "|", "--", "-", "\\", "")),
    st.sampled_from((
        "exps=CPU", "blk.1.=CUDA1", "=CPU", "a=b=c", "[0-10]=CPU", "(a+)+$=CPU", "1,1", "0", "-1",
        "99", "all", "auto", "on", "off", "q8_0", "CUDA0", "CUDA0/CUDA1", "none", "row", "graph",
        "99999999999999999999", "nan", "1e38,1", "0,0", ";", ",", "draft-mtp", "8-64*2",
    )),
    st.text(max_size=12),
)  # fmt: skip


def _check_answer(words: list[str], model: Model | None, machine: Machine) -> None:
    """Findings have codes, and a corrected command has no error."""
    try:
        command = parse_command(words)
    except UsageError:
        return
    report = lint(command, model=model, machine=machine)
    assert codes(report) <= CODES
    if report.fixed_argv and report.has_errors:
        fixed = parse_command(report.fixed_argv, is_argv=True)
        again = lint(fixed, model=model, machine=machine)
        assert not again.has_errors, (words, report.fixed_argv, again.findings)


@settings(max_examples=60)
@given(words=st.lists(WORDS, max_size=14), is_small=st.booleans())
def test_any_words_get_an_answer(words: list[str], is_small: bool) -> None:
    """No command line over a model and cards gives a traceback, nor a correction in need of one."""
    size = 8 if is_small else 31
    machine = example_machine(f"CUDA0:{size}GiB CUDA1:{size}GiB")
    _check_answer(words, example_model("deepseek-v2-lite"), machine)


@settings(max_examples=500)
@given(words=st.lists(WORDS, max_size=14))
def test_any_words_without_a_model_get_an_answer(words: list[str]) -> None:
    """The same where neither the model nor the cards are known."""
    _check_answer(words, None, Machine())


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=80),
            st.sampled_from((
                "alloc_tensor_range: failed to allocate CUDA1 buffer of size 99999999999999999",
                "allocating 1e99 MiB on device 1: cudaMalloc failed: out of memory",
                "loaded meta data with", "load_tensors: offloaded 9/0 layers to GPU",
                "tensor blk.x (0 MiB q) buffer type overridden to CPU", "GGML_ASSERT(x)",
                "load_tensors: layer  99 assigned to device CUDA0",
            )),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_any_log_gets_an_answer(lines: list[str]) -> None:
    """A log may hold anything; lint has at least one thing to say about it."""
    report = lint(None, logs=[lines])
    assert report.findings
    assert codes(report) <= CODES


HOSTILE = (
    "(a+)+$", "((.*)*)*x", "(.*.*.*.*.*)*exps", ".*.*.*.*ffn.*.*.*q", "(x+x+)+y", "(.|..)*exps$",
    "((((((((((a*)*)*)*)*)*)*)*)*)*", "(blk|.*){30}", "[^b]*[^l]*[^k]*[^f]*zz",
    "b*" * 200, "(" * 2000, "[" + "a-z" * 5000 + "]",
)  # fmt: skip


@pytest.mark.timeout(60)
def test_hostile_patterns_are_given_up() -> None:
    """Patterns that search for ever are refused or given up, all of them within seconds.

    The largest model has a thousand names; without bounds one of these takes longer than a life.
    """
    for pattern in HOSTILE:
        command = f"llama-server -m m -ngl 99 -c 4096 -ot '{pattern}=CPU'"
        report = lint_example(command, "glm-4.5-air", "CUDA0:23.5GiB CUDA1:23.5GiB")
        wanted = {"slow-regex", "bad-regex", "rule-matches-nothing", "rule-matches-too-much"}
        assert wanted & codes(report), pattern


def test_many_slow_patterns_share_one_budget() -> None:
    """Each just below the bound, thousands of them: the clock ends the search, not patience."""
    from offload.lint.user_rules import Matcher, UserRule

    ticks = iter(range(10**9))
    matcher = Matcher(("blk.0.ffn_up_exps.weight",) * 50, clock=lambda: next(ticks) * 0.004)
    rules = [UserRule(flag="-ot", pattern=f"x{i}.*y", buffer_type="CPU") for i in range(4000)]
    assert len(list(matcher.matches(rules))) < 100
    assert {finding.code for finding in matcher.findings} == {"slow-regex"}
    assert matcher.spent_s < 2
