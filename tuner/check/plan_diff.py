"""What does today's plan do otherwise than the recorded one?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from offload.emit import Launch
from offload.render.text import ranges
from offload.rules import Rule
from offload.units import MIB
from tuner.check.facts import HOST_NAME, OUTPUT, PlanFacts
from tuner.check.outcome import Finding
from tuner.check.tolerance import Tolerance

KINDS: Final = ("model", "context", "compute", "total")
_OTHERWISE_TOLD: Final = ("model_path", "rules", "layer_bytes", "latent_kv_bytes")
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(.+)", re.ASCII)


def plan_findings(was: PlanFacts, now: PlanFacts, tolerance: Tolerance) -> tuple[Finding, ...]:
    """Placement, rules, settings and memory, in that order."""
    return (
        *_fit_findings(was, now),
        *_device_findings(was, now),
        *_layer_findings(was, now),
        *_tensor_findings(was.moved, now.moved),
        *_rule_findings(was.launch.rules, now.launch.rules),
        *_setting_findings(was.launch, now.launch),
        *_memory_findings(was, now, tolerance),
    )


def _fit_findings(was: PlanFacts, now: PlanFacts) -> list[Finding]:
    if was.feasible == now.feasible:
        return []
    if now.feasible:
        return [Finding(code="fits-now", text="it fits now; the recorded plan did not")]
    return [Finding(code="does-not-fit", text="it does not fit any more; offload plan says why")]


def _device_findings(was: PlanFacts, now: PlanFacts) -> list[Finding]:
    before, after = ([d.name for d in facts.devices[:-1]] for facts in (was, now))
    if before == after:
        return []
    text = f"cards were {', '.join(before) or 'none'} and are {', '.join(after) or 'none'}"
    return [Finding(code="devices-changed", text=text)]


def _layer_findings(was: PlanFacts, now: PlanFacts) -> list[Finding]:
    before, after = was.owners, now.owners
    moves: dict[tuple[str, str], list[int]] = {}
    found = []
    for unit in before.keys() & after.keys():
        if before[unit] != after[unit] and isinstance(unit, int):
            moves.setdefault((before[unit], after[unit]), []).append(unit)
    for (source, target), layers in sorted(moves.items()):
        text = f"{_layers(layers)} moved from {source} to {target}"
        found.append(Finding(code="layers-moved", text=text, device=target))
    if before.get(OUTPUT) != after.get(OUTPUT):
        text = f"the output layer moved from {before.get(OUTPUT)} to {after.get(OUTPUT)}"
        found.append(Finding(code="layers-moved", text=text, device=after.get(OUTPUT)))
    if len(before) != len(after):
        text = f"the model had {len(before) - 1} layers and has {len(after) - 1}"
        found.append(Finding(code="layer-count", text=text))
    return found


def _layers(layers: list[int]) -> str:
    return f"layer{'s' if len(layers) > 1 else ''} {ranges(sorted(layers))}"


def _tensor_findings(was: Mapping[str, str], now: Mapping[str, str]) -> list[Finding]:
    """Tensors that an override sends elsewhere than before, by what they are."""
    moves: dict[tuple[str | None, str | None, str], list[int]] = {}
    for name in was.keys() | now.keys():
        source, target = was.get(name), now.get(name)
        if source == target:
            continue
        match = _BLOCK.fullmatch(name)
        layers = moves.setdefault((source, target, match[2] if match else name), [])
        if match:
            layers.append(int(match[1]))
    home = "its layer's device"
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (source, target, stem), layers in moves.items():
        where = _layers(layers) if layers else ""
        merged.setdefault((source or home, target or home, where), []).append(stem)
    return [
        Finding(
            code="tensors-moved",
            text=f"{', '.join(sorted(stems))}{' of ' + where if where else ''}:"
            f" from {source} to {target}",
            device=None if target == home else target,
        )
        for (source, target, where), stems in sorted(merged.items())
    ]


def _rule_findings(was: tuple[Rule, ...], now: tuple[Rule, ...]) -> list[Finding]:
    if was == now:
        return []
    dropped = [rule for rule in was if rule not in now]
    added = [rule for rule in now if rule not in was]
    if not dropped and not added:
        return [Finding(code="rules-reordered", text="the same rules stand in another order")]
    return [
        Finding(code=f"rule-{what}", text=f"rule {what}: {rule.pattern}={rule.buffer_type}")
        for what, rules in (("dropped", dropped), ("added", added))
        for rule in rules
    ]


def _setting_findings(was: Launch, now: Launch) -> list[Finding]:
    return [
        Finding(
            code="setting-changed",
            text=f"{item.name} was {getattr(was, item.name)!r} and is {getattr(now, item.name)!r}",
        )
        for item in fields(Launch)
        if item.name not in _OTHERWISE_TOLD and getattr(was, item.name) != getattr(now, item.name)
    ]


def _memory_findings(was: PlanFacts, now: PlanFacts, tolerance: Tolerance) -> list[Finding]:
    before = {device.name: device.memory for device in was.devices}
    return [
        finding
        for device in now.devices
        if device.name in before
        for kind in KINDS
        if (
            finding := memory_finding(
                device.name,
                kind,
                getattr(before[device.name], f"{kind}_bytes"),
                getattr(device.memory, f"{kind}_bytes"),
                tolerance,
            )
        )
    ]


def memory_finding(
    device: str, kind: str, was: int, now: int, tolerance: Tolerance, *, slack_bytes: int = 0
) -> Finding | None:
    """`CUDA1: compute was 512.0 MiB and is 1021.0 MiB (+509.0)`; None within the tolerance."""
    if tolerance.allows(was, now, slack_bytes=slack_bytes):
        return None
    name = "host" if device == HOST_NAME else device
    share = f", {(now - was) / was:+.1%}" if was else ""
    return Finding(
        code="memory-more" if now > was else "memory-less",
        text=f"{name}: {kind} was {was / MIB:.1f} MiB and is {now / MIB:.1f} MiB"
        f" ({(now - was) / MIB:+.1f}{share})",
        device=device,
        was=was,
        now=now,
    )
