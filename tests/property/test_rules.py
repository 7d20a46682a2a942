"""Rules against their own meaning: every tensor of every model ends where it was meant to."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.layer_regex import layer_regex
from offload.rules import (
    Rule,
    make_rules,
    parse_overrides,
    render_overrides,
    replay,
    with_user_rules,
)

EXTRAS = (
    "attn_q.weight", "attn_norm.weight", "ffn_gate_inp.weight", "ffn_norm.weight",
    "exp_probs_b.bias", "ffn_down_shexp.weight", "ffn_gate_inp_shexp.weight",
)  # fmt: skip
EXPERT_SETS = (
    ("ffn_up_exps.weight", "ffn_gate_exps.weight", "ffn_down_exps.weight"),
    ("ffn_gate_up_exps.weight", "ffn_down_exps.weight"),
    tuple(f"ffn_{m}_exps.{p}" for m, p in product(("up", "gate", "down"), ("weight", "bias"))),
    ("ffn_up_exps.weight", "ffn_up_exps.scale", "ffn_down_exps.weight", "ffn_down_exps.scale"),
    (
        "ffn_up_exps.weight",
        "ffn_down_exps.weight",
        "ffn_up_chexps.weight",
        "ffn_down_chexps.weight",
    ),
)


def random_names(rng: random.Random) -> tuple[list[str], dict[int, list[str]]]:
    """Names of a made-up model, and its routed experts by layer."""
    n_layer = rng.choice((4, 12, 36, 48, 61, 94, 128))
    lead, step = rng.choice((0, 0, 1, 3)), rng.choice((1, 1, 1, 2))
    kinds = rng.sample(EXPERT_SETS, rng.choice((1, 1, 2)))
    names, experts = ["token_embd.weight", "output.weight", "rope_freqs.weight"], {}
    for il in range(n_layer):
        names += [f"blk.{il}.{extra}" for extra in EXTRAS]
        if il >= lead and il % step == step - 1:
            experts[il] = [f"blk.{il}.{part}" for part in rng.choice(kinds)]
            names += experts[il]
        else:
            names += [f"blk.{il}.ffn_{m}.weight" for m in ("up", "gate", "down")]
    return names, experts


def random_moved(rng: random.Random, experts: dict[int, list[str]]) -> dict[str, str]:
    """Whole layers, runs of layers and a few single matrices, on one or two buffer types."""
    layers = sorted(experts)
    if rng.random() < 0.5:
        i, j = sorted(rng.sample(range(len(layers) + 1), 2))
        chosen = layers[i:j]
    else:
        chosen = rng.sample(layers, rng.randint(1, len(layers)))
    moved = {name: "CPU" for il in chosen for name in experts[il]}
    for _ in range(rng.randint(0, 2)):
        stem = rng.choice(experts[rng.choice(layers)]).rsplit(".", 1)[0]
        buffer_type = rng.choice(("CPU", "CPU", "CUDA1"))
        moved |= {n: buffer_type for il in layers for n in experts[il] if n.startswith(stem + ".")}
    return moved


def plain_value(moved: Mapping[str, str]) -> str:
    """The `-ot` value of somebody patient: layers and parts listed, one rule for each kind."""
    parts: dict[tuple[str, int], set[str]] = {}
    for name, buffer_type in moved.items():
        _, number, part = name.split(".", 2)
        parts.setdefault((buffer_type, int(number)), set()).add(re.escape(part))
    layers: dict[tuple[str, frozenset[str]], list[int]] = {}
    for (buffer_type, il), texts in parts.items():
        layers.setdefault((buffer_type, frozenset(texts)), []).append(il)
    return ",".join(
        rf"blk\.({'|'.join(map(str, sorted(numbers)))})\.({'|'.join(texts)})={buffer_type}"
        for (buffer_type, texts), numbers in layers.items()
    )


@pytest.mark.parametrize("seed", range(400))
def test_replaying_the_rules_gives_the_plan(seed: int) -> None:
    """First match wins over the emitted rules sends exactly the moved tensors where they go."""
    rng = random.Random(seed)
    names, experts = random_names(rng)
    moved = random_moved(rng, experts)
    rules = make_rules(moved, names)
    assert replay(rules, names) == moved
    assert len(rules) == len(set(moved.values()))  # a rule has one buffer type: fewer cannot be
    assert not any(c in rule.pattern for rule in rules for c in ",=;' ")
    assert parse_overrides(render_overrides(rules)) == rules
    assert len(render_overrides(rules)) <= len(plain_value(moved))


@pytest.mark.parametrize("seed", range(100))
def test_what_the_user_placed_changes_nothing_for_the_rest(seed: int) -> None:
    """Behind the user's rules ours still place exactly the tensors that were left open."""
    rng = random.Random(seed)
    names, experts = random_names(rng)
    users = parse_overrides(
        rng.choice((r"blk\.1.*exps=CUDA1", "ffn_down=CUDA0", r"[02468]\.ffn_=CPU"))
    )
    owned = replay(users, names)
    moved = {n: b for n, b in random_moved(rng, experts).items() if n not in owned}
    rules = with_user_rules(users, make_rules(moved, names, fixed=owned))
    assert replay(rules, names) == moved | replay(users, names)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_set_of_any_names(data: st.DataObject) -> None:
    """Whatever a file calls its tensors, and whichever of them move, the rules are exact."""
    layer_name = st.builds(
        "blk.{}.{}{}".format,
        st.integers(0, 130),
        st.sampled_from(("ffn_up_exps", "ffn_up_chexps", "ffn_gate_up_exps", "ffn_down_exps", "a",
                         "a_b", "a_b_c", "ssm_a", "ssm_alpha", "nextn.a", "ffn_up", "ffn_.*exps")),
        st.sampled_from((".weight", ".bias", ".weight_scale", "", ".a.b")),
    )  # fmt: skip
    strange = st.text(min_size=1, max_size=12)
    names = data.draw(st.lists(layer_name | layer_name | strange, min_size=1, unique=True))
    moved = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(("CPU", "CUDA1"))))
    rules = make_rules(moved, names)
    assert replay(rules, names) == moved
    assert len(rules) == len(set(moved.values()))
    assert not moved or parse_overrides(render_overrides(rules)) == rules


def test_rules_are_the_same_every_time() -> None:
    """The order in which Python happens to keep sets decides nothing."""
    program = """
import random, sys
sys.path.insert(0, sys.argv[1])
from tests.property.test_rules import make_rules, random_moved, random_names, render_overrides
for seed in range(60):
    rng = random.Random(seed)
    names, experts = random_names(rng)
    print(render_overrides(make_rules(random_moved(rng, experts), names)))
"""
    root = Path(__file__).resolve().parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, str(root)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("seed", range(60))
def test_whole_layers_need_one_rule(seed: int) -> None:
    """Any set of whole layers is one rule, no longer than the plain list of its layers."""
    rng = random.Random(seed)
    names, experts = random_names(rng)
    layers = rng.sample(sorted(experts), rng.randint(1, len(experts)))
    moved = {name: "CPU" for il in layers for name in experts[il]}
    (rule,) = make_rules(moved, names)
    plain = rf"blk\.({'|'.join(map(str, sorted(layers)))})\.ffn_.*exps"
    assert len(rule.pattern) <= len(plain)


def _cheapest(must: set[int], never: set[int]) -> int:
    """Length of the plain alternation, parentheses counted where there is a bar."""
    text = "|".join(map(str, sorted(must)))
    return len(text) + 2 * ("|" in text)


@pytest.mark.parametrize("seed", range(300))
def test_layer_regex_is_exact_and_never_longer_than_the_list(seed: int) -> None:
    """All wanted numbers, no refused one, free ones as it likes."""
    rng = random.Random(seed)
    n = rng.choice((10, 12, 48, 94, 128, 200))
    must = set(rng.sample(range(n), rng.randint(1, n)))
    free = {il for il in range(n) if rng.random() < 0.1} - must
    never = set(range(n)) - must - free
    text = layer_regex(must, never)
    pattern = re.compile(f"(?:{text})", re.ASCII)
    assert all(pattern.fullmatch(str(il)) for il in must)
    assert not any(pattern.fullmatch(str(il)) for il in never)
    assert len(text) <= _cheapest(must, never)


def test_a_mixed_plan_reads_as_a_person_would_write_it() -> None:
    """Two runs of layers and half a layer: one rule, both parts recognisable."""
    names = [f"blk.{il}.{part}" for il in range(36) for part in (*EXTRAS, *EXPERT_SETS[0])]
    layers = [0, 1, 2, 18, 19, 20, 21]
    moved = {f"blk.{il}.{part}": "CPU" for il in layers for part in EXPERT_SETS[0]}
    moved |= {f"blk.3.ffn_{m}_exps.weight": "CPU" for m in ("up", "gate")}
    pattern = r"blk\.(([0-2]|1[89]|2[01])\.ffn_.*exps|3\.ffn_(up|gate)_exps)"
    assert make_rules(moved, names) == (Rule(pattern=pattern, buffer_type="CPU"),)
