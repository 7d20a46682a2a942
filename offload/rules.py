"""Placement to override rules (`-ot`), and rules to the place of each tensor."""
from __future__ import annotations
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from offload.errors import UsageError
HOST = "CPU"
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    pattern: str
    buffer_type: str
def make_rules(moved, names):
    by = {}
    for n, b in moved.items():
        _, il, rest = n.split(".", 2)
        by.setdefault((b, int(il)), set()).add(rest)
    groups = {}
    for (b, il), rests in by.items():
        groups.setdefault((b, frozenset(rests)), []).append(il)
    out = []
    for (b, rests), ils in groups.items():
        p = r"blk\.(" + "|".join(map(str, sorted(ils))) + r")\.(" + "|".join(re.escape(r) for r in sorted(rests)) + ")$"
        out.append(Rule(pattern=p, buffer_type=b))
    return tuple(out)
def replay(rules, names):
    c = [(re.compile(r.pattern), r.buffer_type) for r in rules]
    out = {}
    for n in names:
        for p, b in c:
            if p.search(n):
                out[n] = b
                break
    return out
def parse_overrides(text):
    out = []
    for part in text.split(","):
        p, eq, b = part.partition("=")
        if not eq: raise UsageError(f"-ot {part!r}: no '='")
        out.append(Rule(pattern=p, buffer_type=b))
    return tuple(out)
def render_overrides(rules, separator=","):
    return separator.join(f"{r.pattern}={r.buffer_type}" for r in rules)
_E = r"ffn_(up|down|gate_up|gate)_(ch|)exps"
def n_cpu_moe_rules(n):
    return tuple(Rule(pattern=rf"blk\.{i}\.{_E}", buffer_type="CPU") for i in range(n))
def cpu_moe_rule():
    return Rule(pattern=rf"\.{_E}", buffer_type="CPU")
