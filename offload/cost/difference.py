"""By how much do two placements differ in seconds, and can the prediction tell them apart?

What is not known of a machine is mostly wrong for both alike: a card that is slower than its
data sheet is slower in both. So the doubt is about the work that differs, counted once for
each coefficient; the scatter of runs around the model counts on the seconds that one of
them has and the other has not.
"""

from __future__ import annotations

from collections.abc import Container
from math import exp, sqrt
from typing import Final, NamedTuple

from offload.cost.coefficients import BORROWED_SD, INTERVAL_Z, Coefficients, Term, terms_of
from offload.cost.work import Work


class Difference(NamedTuple):
    """Seconds more (or less) of the second, with a 90 % interval."""

    seconds: float
    low_s: float
    high_s: float

    @property
    def is_told(self) -> bool:
        """Whether the sign is beyond the doubt."""
        return self.low_s > 0 or self.high_s < 0


class Side(NamedTuple):
    """Work, and what is known of the machine that does it."""

    work: Work
    known: Coefficients


class _Part(NamedTuple):
    """Seconds more that one feature takes, by the coefficient of one side."""

    phase: str
    source: str
    is_foreign: bool
    is_borrowed: bool
    amount: float
    """Units of the coefficient, as `before` has it where the part is not foreign."""

    seconds: float


def difference(before: Side, after: Side, strangers: Container[str] = ()) -> Difference:
    """`after` less `before`; `strangers` are devices of `after` that `before` does not have.

    Coefficients of devices that both have are wrong by the same factor, even where one is
    another multiple of the data sheet's figure (a link twice as wide); those of strangers
    are doubted apart, also where a device of that name is on both sides.

    The ends are the sums with every coefficient moved to where it most likely is if the
    difference is that small or large. Coefficients are moved by factors and stay above zero,
    so that work that is only added never saves time.
    """
    parts = _parts(before, after, strangers)
    doubts = _doubts(parts, before.known, after.known)
    sd = sqrt(max(sum(doubt.shared for doubt in doubts), 0.0))
    low_s, high_s = (
        sum(
            _moved(part, doubt, z / sd if sd else 0.0)
            for part, doubt in zip(parts, doubts, strict=True)
        )
        for z in (-INTERVAL_Z, INTERVAL_Z)
    )
    return Difference(seconds=sum(part.seconds for part in parts), low_s=low_s, high_s=high_s)


def _parts(before: Side, after: Side, strangers: Container[str]) -> list[_Part]:
    """Features that differ, each with what both sides have of it taken together."""
    found: dict[tuple[str, bool], _Part] = {}
    for sign, side in ((-1.0, before), (1.0, after)):
        for term in terms_of(side.work, side.known)[0]:
            name = term.source.name
            is_foreign = sign > 0 and (_place(term) in strangers or name not in before.known.table)
            amount = sign * term.amount * (1.0 if is_foreign else _factor(term, before.known))
            part = _Part(
                phase=term.phase,
                source=name,
                is_foreign=is_foreign,
                is_borrowed=term.is_borrowed,
                amount=amount,
                seconds=sign * term.seconds,
            )
            key = term.feature, is_foreign
            old = found.get(key)
            if old is not None:
                part = part._replace(amount=old.amount + amount, seconds=old.seconds + part.seconds)
            found[key] = part
    return [part for part in found.values() if part.amount or part.seconds]


def _place(term: Term) -> str:
    """The device in a feature's name, or nothing."""
    return (*term.feature.split("."), "", "")[2]


def _factor(term: Term, known: Coefficients) -> float:
    """Units of the coefficient in `known` that one unit of this one is worth."""
    base = known.table[term.source.name].value
    return term.source.value / base if base else 1.0


class _Doubt(NamedTuple):
    """Square seconds: a part's own variance, and its covariance with the whole difference."""

    own: float
    shared: float


def _doubts(parts: list[_Part], before: Coefficients, after: Coefficients) -> list[_Doubt]:
    scatter = {
        phase: max(known.residual_sds.get(phase, 0.0) for known in (before, after))
        for phase in ("decode", "prefill")
    }
    doubts = []
    for one in parts:
        own = shared = 0.0
        known = after if one.is_foreign else before
        for other in parts:
            joint = 0.0
            if one.is_foreign == other.is_foreign:
                joint = one.amount * other.amount * known.covariance_of(one.source, other.source)
            if one.phase == other.phase and (one.seconds > 0) == (other.seconds > 0):
                joint += one.seconds * other.seconds * scatter[one.phase] ** 2
            if one is other and one.is_borrowed:
                joint += (BORROWED_SD * one.seconds) ** 2
            shared += joint
            own += joint if one is other else 0.0
        doubts.append(_Doubt(own, shared))
    return doubts


def _moved(part: _Part, doubt: _Doubt, step: float) -> float:
    """Seconds of a part if the whole is `step` of its variance away; never of another sign.

    By a factor where its doubt is one, by seconds where it could as well be nothing.
    """
    if not doubt.shared:
        return part.seconds
    if doubt.own <= (_FACTOR_SD_MAX * part.seconds) ** 2:
        return part.seconds * exp(step * doubt.shared / part.seconds)
    moved = part.seconds + step * doubt.shared
    return max(moved, 0.0) if part.amount > 0 else min(moved, 0.0)


_FACTOR_SD_MAX: Final = 1.5
"""Relative deviation up to which a doubt is taken as a factor."""
