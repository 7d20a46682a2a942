"""What findings say in numbers: who is short by how much, and that their advice holds."""

from __future__ import annotations

import re

import pytest

from offload.emit import make_launch
from offload.emit.ik import ik_shares
from offload.lint import Finding, LintReport, Machine, lint, parse_command
from offload.split import HOST
from offload.units import GIB, MIB
from tests.lint_examples import codes, example_machine, example_model, lint_example

SHAPE, CARDS = "mistral-small-4-119b", "CUDA0:22.5GiB CUDA1:22.5GiB"


def _one(report: LintReport, code: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.code == code]
    return found


def test_the_number_that_does_not_move() -> None:
    """Card 1 holds 25 750 MiB of weights whatever N is; lint names the card and its layers."""
    for n, first in ((8, 16662), (9, 15206), (10, 13750), (11, 12294)):
        report = lint_example(
            f"llama-server -m m -ngl 99 -ts 1,1 -c 8192 --n-cpu-moe {n}", SHAPE, CARDS
        )
        assert report.plan is not None
        weights = [m.model_bytes // MIB for m in report.plan.memory.devices]
        assert weights == [first, 25750]
        text = _one(report, "card-over-budget").text
        assert "CUDA1 needs 25,920 MiB" in text and "2,880 MiB over" in text
        assert "layers 19-35 and the output layer" in text
        assert f"{n} of the 19 layers of CUDA0, 0 of the 17 layers of CUDA1" in (
            _one(report, "ncmoe-relieves-first-card-only").text
        )


def test_the_named_rule_relieves_the_card() -> None:
    """The rule in the fix, added to the command, brings the card within its margin."""
    command = "llama-server -m m -ngl 99 -ts 1,1 -c 8192 -ncmoe 10"
    fix = _one(lint_example(command, SHAPE, CARDS), "card-over-budget").fix
    rule = re.search(r"-ot '[^']+'", fix)
    assert rule is not None
    better = lint_example(f"{command} {rule[0]}", SHAPE, CARDS)
    assert not better.has_errors
    assert "card-over-margin" not in codes(better)


def test_a_good_command_is_left_as_it_is() -> None:
    """Notes alone change nothing: the corrected command is the one that was given."""
    words = (
        "env", "A=1", "llama-server", "-m", "m", "-ngl", "99", "-ts", "1,1", "-c", "4096",
        "-fit", "off", "--port", "8081",
    )  # fmt: skip
    machine = example_machine("CUDA0:31GiB CUDA1:31GiB")
    report = lint(parse_command(words), model=example_model("qwen3.5-35b-a3b"), machine=machine)
    assert report.findings == ()
    assert report.fixed_argv == words
    without_env = parse_command(words[1:])
    assert lint(without_env, machine=machine, model=None).fixed_argv == words


def test_what_does_not_decide_placement_is_kept() -> None:
    """Host, port, sampling and an alias survive; placement flags and variables are written anew."""
    report = lint_example(
        "LLAMA_ARG_N_CPU_MOE=10 CUDA_VISIBLE_DEVICES=0,1 llama-server -m /x/m.gguf -ngl 99 -ts 1,1"
        " -c 8192 --host 127.0.0.1 --port 9000 --temp 0.7 -a name --no-mmap --jinja",
        SHAPE, CARDS,
    )  # fmt: skip
    argv = report.fixed_argv
    assert argv[:5] == ("env", "CUDA_VISIBLE_DEVICES=0,1", "llama-server", "-m", "/x/m.gguf")
    kept = "--host 127.0.0.1 --port 9000 --temp 0.7 -a name --jinja"
    assert " ".join(argv).endswith(kept)
    assert "--no-mmap" not in argv and "-ncmoe" not in argv


def test_words_alone_are_mended_in_place() -> None:
    """Where only the form is wrong, the user's own placement stays as it is."""
    report = lint_example(
        "llama-server -m m -ngl=99 -c 4096 -fa --no-mmap -fit off", "qwen3.5-35b-a3b",
        "CUDA0:31GiB",
    )  # fmt: skip
    assert codes(report) == {"flag-equals-value", "flash-attn-without-value", "removed-flag"}
    assert " ".join(report.fixed_argv) == (
        "llama-server -m m -ngl 99 -c 4096 -fa on -lm none -fit off"
    )


def test_layers_follow_dev_and_rpc_comes_first() -> None:
    """`-dev` orders the cards; without it RPC devices stand before the others."""
    cards = "CUDA0:23.5GiB CUDA1:12GiB RPC0[192.0.2.1:50052]:8GiB"
    base = "llama-server -m m -ngl 99 -c 4096 -ts 10,10,21 --rpc 192.0.2.1:50052"
    plan = lint_example(base, "qwen3.5-35b-a3b", cards).plan
    assert plan is not None
    assert [card.name for card in plan.devices] == ["RPC0", "CUDA0", "CUDA1"]
    plan = lint_example(f"{base} -dev CUDA1,RPC0,CUDA0", "qwen3.5-35b-a3b", cards).plan
    assert plan is not None
    assert [card.name for card in plan.devices] == ["CUDA1", "RPC0", "CUDA0"]
    assert plan.split.counts(3) == (10, 10, 21)
    plan = lint_example(f"{base} -sm none -mg 1", "qwen3.5-35b-a3b", cards).plan
    assert plan is not None
    assert [card.name for card in plan.devices] == ["CUDA0"]


def test_without_shares_free_memory_splits() -> None:
    """As llama.cpp does, and not evenly: 30 and 10 GiB give three quarters to the first."""
    plan = lint_example(
        "llama-server -m m -ngl 99 -c 4096", "qwen3.5-35b-a3b", "CUDA0:30GiB CUDA1:10GiB"
    ).plan
    assert plan is not None
    assert plan.split.counts(2) == (31, 10)


def test_rules_win_in_the_order_of_the_command() -> None:
    """The first rule that finds a tensor places it, whichever flag it came from."""
    cards = "CUDA0:31GiB CUDA1:31GiB"
    kept = r"-ot 'blk\.(0|1)\..*exps=CUDA0'"
    first = lint_example(f"llama-server -m m -ngl 99 -ts 1,1 -c 4096 {kept} -cmoe",
                         "qwen3.5-35b-a3b", cards).plan  # fmt: skip
    last = lint_example(f"llama-server -m m -ngl 99 -ts 1,1 -c 4096 -cmoe {kept}",
                        "qwen3.5-35b-a3b", cards).plan  # fmt: skip
    assert first is not None and last is not None
    assert first.experts_on_host(0)[0] == 2
    assert last.experts_on_host(0)[0] == 0


def test_fit_may_move_things_only_where_nothing_is_set() -> None:
    """Over budget is an error with `-ngl` or `-fit off`, and `--fit`'s business without."""
    fitted = lint_example("llama-server -m m -c 8192", SHAPE, CARDS)
    assert not fitted.has_errors and "fit-decides" in codes(fitted)
    for flags in ("-ngl 99", "-ngl all", "-ts 1,1", "-fit off", "-ot exps=CUDA0"):
        report = lint_example(f"llama-server -m m -c 8192 {flags}", SHAPE, CARDS)
        assert "card-over-budget" in codes(report), flags
    single = lint_example("llama-server -m m -c 8192 -ts 1", SHAPE, "CUDA0:22.5GiB")
    assert "fit-decides" in codes(single)
    bench = lint_example("llama-bench -m m -p 512", SHAPE, CARDS)
    assert "card-over-budget" in codes(bench)


def test_the_training_context_is_what_an_unset_one_means() -> None:
    """llama-server's default is the whole training context, not ours; `--fit` may reduce it."""
    plan = lint_example("llama-server -m m -ngl 99 -fit off", SHAPE, CARDS).plan
    assert plan is not None and plan.context.n_ctx == 1048576
    report = lint_example("llama-server -m m -ngl 99 -fitc 8192", SHAPE, CARDS)
    assert report.plan is not None and report.plan.context.n_ctx == 8192
    assert "context-shrinks" in codes(report)
    explicit = lint_example("llama-server -m m -ngl 99 -c 0", SHAPE, CARDS)
    assert explicit.plan is not None and explicit.plan.context.n_ctx == 1048576


def test_host_memory_is_checked_when_it_is_known() -> None:
    """Pinned weights beyond the host's memory are an error, mapped ones a warning."""
    model = example_model("qwen3.5-35b-a3b")
    machine = Machine(devices=example_machine("CUDA0:23.5GiB").devices, host_free_bytes=8 * GIB)
    for mode, severity in (("none", "error"), ("mmap", "warning")):
        command = parse_command([f"llama-server -m m -ngl 99 -c 4096 -cmoe -lm {mode}"])
        report = lint(command, model=model, machine=machine)
        assert str(_one(report, "pinned-beyond-host-ram").severity) == severity


def test_the_mtp_block_takes_a_unit() -> None:
    """GLM-4.5-Air: `-ngl 47` of 48 units leaves layer 0 on the host, as `--fit` itself emits."""
    report = lint_example("llama-server -m m -ngl 47 -c 4096", "glm-4.5-air", "CUDA0:79GiB")
    finding = _one(report, "layers-left-on-host")
    assert "1 layer(s), 0, on the host" in finding.text and "MTP" in finding.text
    assert report.plan is not None and report.plan.split.layers_of(HOST) == (0,)
    whole = lint_example("llama-server -m m -ngl 48 -c 4096", "glm-4.5-air", "CUDA0:79GiB")
    assert "layers-left-on-host" not in codes(whole)


def test_ik_llama_cpp_shares_bytes_out() -> None:
    """The bytes that our emitter writes for given layers are read as those layers again."""
    shape, cards = "glm-4.5-air", "CUDA0:79GiB CUDA1:79GiB"
    n_different = 0
    for counts in ((2, 46), (24, 24), (45, 3), (16, 32)):
        shares = ",".join(map(str, counts))
        base = "llama-server -m m -ngl 99 -c 8192"
        plain = lint_example(f"{base} -ts {shares}", shape, cards).plan
        assert plain is not None and plain.split.counts(2) == counts
        as_bytes = ik_shares(make_launch(plain).layer_bytes, counts)
        text = ",".join(map(str, as_bytes))
        forked = lint_example(f"{base} -ts {text} -fmoe", shape, cards)
        assert forked.plan is not None and forked.plan.split.counts(2) == counts
        assert "--load-mode" not in forked.fixed_argv and "-fmoe" in forked.fixed_argv
        as_layers = lint_example(f"{base} -ts {shares} -fmoe", shape, cards).plan
        assert as_layers is not None
        n_different += as_layers.split != plain.split
    assert n_different


def test_nothing_fits_is_no_command() -> None:
    """Where not even a small context fits, no corrected command is invented."""
    report = lint_example("llama-server -m m -ngl 99", SHAPE, "CUDA0:1.2GiB", host="4GiB")
    assert report.has_errors
    assert report.fixed_argv == ()


def test_a_log_is_laid_over_the_command() -> None:
    """With both, the failed card's planned bytes and layers are told, and what would relieve it."""
    command = parse_command(["llama-server -m m -ngl 99 -ts 1,1 -c 8192 -ncmoe 10"])
    log = [
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 25750.10 MiB on device 1:"
        " cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA1 buffer of size 27001000000",
        "llama_model_load: error loading model: unable to allocate CUDA1 buffer",
    ]
    report = lint(
        command, model=example_model(SHAPE), machine=example_machine(CARDS), logs=[log, log]
    )
    finding = _one(report, "out-of-memory")
    assert finding.text.startswith("CUDA1: 25,750 MiB were asked")
    assert "layers 19-35" in finding.text and "own layers 19-21" in finding.fix
    assert "in 2 tries" in _one(report, "same-bytes-again").text


def test_unknown_cards_are_not_missed() -> None:
    """Where nobody knows the cards, `-dev` and buffer types are not called wrong for it."""
    report = lint_example(
        "llama-server -m m -ngl 99 -c 4096 -dev CUDA0,CUDA1 -ts 1,1 -ot 'x=CUDA1,exps=CPU'",
        "qwen3.5-35b-a3b", "no cards",
    )  # fmt: skip
    assert not report.has_errors
    assert "no-cards" in codes(report)


def test_usual_patterns_are_not_found_fault_with() -> None:
    """Patterns from guides that do what they say give no finding about rules."""
    about_rules = {
        "rule-matches-nothing", "rule-matches-too-much", "rule-shadowed", "class-as-number",
        "glob-or-space-in-rule", "unknown-buffer", "bad-regex", "slow-regex",
    }  # fmt: skip
    for pattern in (
        r".ffn_.*_exps.=CPU", r"\.ffn_(gate|up|down)_exps.=CPU", r"exps=CPU",
        r"\.(6|7|8|9|[0-9][0-9]|[0-9][0-9][0-9])\.ffn_(gate|up|down)_exps.=CPU",
        r"blk\.(?:[0-9]|1[0-7])\.ffn_.*_exps\.=CPU", r"blk\.\d*\.ffn_up_exps=CPU",
        r"blk\.([0-3]|1\d)\.ffn_.*exps=CPU,blk\.(2\d|3\d)\.ffn_.*exps=CUDA0",
    ):  # fmt: skip
        report = lint_example(
            f"llama-server -m m -ngl 99 -c 4096 -ot '{pattern}'", "qwen3.5-35b-a3b",
            "CUDA0:31GiB",
        )  # fmt: skip
        assert not about_rules & codes(report), pattern


def test_a_repository_stands_for_the_model() -> None:
    """`-hf` is kept, and no `-m` is made up."""
    report = lint_example("llama-server -hf some/model-GGUF:Q4 -ngl 99 -c 8192", SHAPE, CARDS)
    assert report.has_errors
    assert report.fixed_argv[:2] == ("llama-server", "-ngl")
    assert report.fixed_argv[-2:] == ("-hf", "some/model-GGUF:Q4")


def test_docker_and_other_wrappers_are_kept() -> None:
    """What stands before the program is kept, variables that flags now stand for are not."""
    report = lint_example(
        "docker run --gpus all -e LLAMA_ARG_CTX_SIZE=8192 -e TZ=UTC ghcr.io/x/llama.cpp:server-cuda"
        " -m /m.gguf -ngl 99 -ts 1,1", SHAPE, CARDS,
    )  # fmt: skip
    assert report.plan is not None and report.plan.context.n_ctx == 8192
    words = " ".join(report.fixed_argv)
    assert words.startswith("docker run --gpus all -e TZ=UTC ghcr.io/x/llama.cpp:server-cuda -m")


def test_kimi_linear_wants_whole_slots() -> None:
    """b11434 asserts it; a multiple, one slot or one cache for all are fine."""
    for flags, is_wrong in (
        ("-np 3", True), ("-np 4", False), ("-np 3 -ub 510", False), ("-np 3 -kvu", False),
        ("", False), ("-np 5 -b 100", False), ("-np 3 -b 100", True),
    ):  # fmt: skip
        report = lint_example(f"llama-server -m m -c 4096 {flags}", "kimi-linear", "no cards")
        assert ("slots-do-not-divide-ubatch" in codes(report)) == is_wrong, flags


def test_host_memory_in_logs() -> None:
    """The kernel's kill is an error, refused pinning a warning."""
    killed = lint(None, logs=[["load_tensors: loading model tensors", "Killed"]])
    assert [f.code for f in killed.findings] == ["pinned-beyond-host-ram"] and killed.has_errors
    line = "ggml_cuda_host_malloc: failed to allocate 35378.00 MiB of pinned memory: out of memory"
    unpinned = lint(None, logs=[[line]])
    assert "35378 MiB" in _one(unpinned, "pinned-beyond-host-ram").text


def test_numbers_that_are_not_ended_find_more_layers() -> None:
    """A number that no escaped dot ends is found in longer numbers too."""
    for pattern, is_loose in (
        (r"blk.1.*exps", True), (r"blk\.1.*exps", True),
        (r"blk\.1\..*exps", False), (r"blk\.(1|2)\.ffn_.*exps", False),
        (r"blk\.1[0-9]\.ffn_.*exps", False), (r"blk.1.ffn_up_exps", False),
    ):  # fmt: skip
        report = lint_example(
            f"llama-server -m m -ngl 99 -c 4096 -ot '{pattern}=CPU'", "qwen3.5-35b-a3b",
            "CUDA0:31GiB",
        )  # fmt: skip
        found = [f for f in report.findings if f.code == "rule-matches-too-much"]
        assert bool(found) == is_loose, pattern
        assert all("10-19" in f.text for f in found)


@pytest.mark.parametrize(
    ("cards", "severity"),
    [
        ("CUDA0:31GiB:936GB/s CUDA1:31GiB:346GB/s", "note"),
        ("CUDA0:31GiB:346GB/s CUDA1:31GiB:936GB/s", "warning"),
        ("CUDA0:31GiB CUDA1:31GiB", "warning"),
    ],
)
def test_experts_on_a_slower_card_may_be_meant(cards: str, severity: str) -> None:
    """The owner being known as the faster one it is a note, else a warning."""
    line = "llama-server -m m -ngl 99 -ts 1,1 -c 4096 -lm none -ot 'blk\\.3\\..*exps=CUDA1'"
    report = lint_example(line, "qwen3.5-35b-a3b", cards)
    assert [str(f.severity) for f in report.findings if f.code == "expert-off-its-owner"] == [
        severity
    ]


def test_rules_to_the_owner_are_fine() -> None:
    """Experts ruled to their owner stray nowhere; host and card are not two cards apart."""
    base = "llama-server -m m -ngl 99 -ts 1,1 -c 4096 -lm none"
    cards = "CUDA0:31GiB CUDA1:31GiB"
    for rules in (r"blk\.3\.=CUDA0,blk\.39\.=CUDA1", r"blk\.3\.ffn_up_exps=CPU"):
        report = lint_example(f"{base} -ot '{rules}'", "qwen3.5-35b-a3b", cards)
        strays = {"expert-off-its-owner", "kv-elsewhere", "up-gate-apart", "rule-matches-too-much"}
        assert not strays & codes(report), rules
    host_and_card = r"blk\.3\.ffn_up_exps=CPU,blk\.39\.ffn_(up|gate)_exps=CUDA0"
    report = lint_example(f"{base} -ot '{host_and_card}'", "qwen3.5-35b-a3b", cards)
    assert "expert-off-its-owner" in codes(report) and "up-gate-apart" not in codes(report)


def test_shares_and_cards_are_counted() -> None:
    """One share for each card is right; fewer leave cards empty, more are dropped."""
    base = "llama-server -m m -ngl 99 -c 4096 -ts"
    cards = "CUDA0:31GiB CUDA1:31GiB"
    for shares, is_wrong in (("1", True), ("1,1", False), ("1,1,1", True), ("1,1,0", False)):
        report = lint_example(f"{base} {shares}", "qwen3.5-35b-a3b", cards)
        assert ("tensor-split-length" in codes(report)) == is_wrong, shares
    empty = lint_example(f"{base} 1", "qwen3.5-35b-a3b", cards)
    assert "CUDA1" in _one(empty, "card-without-layers").text


def test_one_failure_is_told_once() -> None:
    """llama.cpp prints up to three lines about one allocation; two cards are two failures."""
    one = [
        "allocating 1000.00 MiB on device 1: cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA1 buffer of size 1048576000",
        "error loading model: unable to allocate CUDA1 buffer",
    ]
    assert [f.code for f in lint(None, logs=[one]).findings] == ["out-of-memory"]
    rocm = [line.replace("CUDA1", "ROCm1") for line in one]
    assert lint(None, logs=[rocm]).findings[0].text.startswith("ROCm1: 1,000 MiB")
    other = [line.replace("1000", "3000").replace("1048576000", "3145728000") for line in one]
    assert len(lint(None, logs=[[*one[:2], *other]]).findings) == 2


def test_layers_stay_on_cards_where_they_can() -> None:
    """Kept shares would leave layers of this dense model on the host; without them all fit."""
    report = lint_example(
        "llama-server -m m -ts 1,6 -ngl 50 -c 8192", "llama-3.1-70b", "CUDA0:4.04GiB CUDA1:47GiB"
    )
    argv = report.fixed_argv
    assert argv[argv.index("-ngl") + 1] == "81"
    assert argv[argv.index("-ts") + 1] != "1,6"
