"""What does a unit of work cost on a machine, and how sure is a sum of such costs?

`Coefficients` come from a fit of measured runs (tuner/fit.py) or from built-in priors
(offload/priors). A prediction is their product with a `Work`; where a feature has no
coefficient the nearest one is borrowed and the interval widened.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from math import exp, log1p, sqrt
from typing import Final, NamedTuple

from offload.cost.waiting import add_waiting
from offload.cost.work import CPU, REPACKED, Work
from offload.ggml import TYPES_BY_NAME, GGMLType

MEASURED: Final = "measured"
PRIOR: Final = "prior"

INTERVAL_Z: Final = 1.6448536269514722
"""Standard deviations either side that hold 90 % of a normal distribution."""

BORROWED_SD: Final = 0.35
"""Relative doubt about a coefficient taken from another tensor type of the same device."""


class Coefficient(NamedTuple):
    """Seconds for one unit of a feature; `source` is `measured` or `prior`.

    `n_samples` counts the runs that bear on it.
    """

    name: str
    value: float
    unit: str
    standard_error: float
    n_samples: int = 0
    source: str = MEASURED


class Coefficients(NamedTuple):
    """All coefficients of one machine with what their errors have in common.

    `covariance` holds the covariance of two coefficients by their names in order; pairs that
    are missing are independent (the squares are the standard errors'). `residual_sds` is the
    relative scatter of a run around the model, by phase (`decode`, `prefill`).
    """

    table: Mapping[str, Coefficient]
    covariance: Mapping[tuple[str, str], float]
    residual_sds: Mapping[str, float]
    source: str

    def covariance_of(self, a: str, b: str) -> float:
        """Covariance of two coefficients, in either order."""
        if a == b:
            return self.table[a].standard_error ** 2
        return self.covariance.get((a, b), self.covariance.get((b, a), 0.0))


class Prediction(NamedTuple):
    """Seconds with a 90 % interval.

    `borrowed` maps features without a coefficient to the one used instead; `unknown` features
    had none at all and count as nothing, so that the true time is longer.
    """

    seconds: float
    low_s: float
    high_s: float
    borrowed: Mapping[str, str]
    unknown: tuple[str, ...]


class Term(NamedTuple):
    """One feature's amount and the coefficient that counts for it: its own, or one borrowed."""

    feature: str
    source: Coefficient
    amount: float

    @property
    def seconds(self) -> float:
        """What this part of the work takes."""
        return self.source.value * self.amount

    @property
    def phase(self) -> str:
        """`decode` or `prefill`."""
        return self.source.name.partition(".")[0]

    @property
    def is_borrowed(self) -> bool:
        """Whether the feature was never measured itself."""
        return self.source.name != self.feature


def predict(work: Work, coefficients: Coefficients) -> Prediction | None:
    """Seconds for this work; None where not a single feature has a coefficient.

    The interval joins the doubt about the coefficients (their covariance), about those
    borrowed, and the scatter of single runs. Seconds are taken as log-normal, so the
    low end stays above zero.
    """
    terms, unknown = terms_of(work, coefficients)
    seconds = sum(term.seconds for term in terms)
    if not seconds > 0:
        return None
    spread = _interval_factor(terms, seconds, coefficients)
    return Prediction(
        seconds=seconds,
        low_s=seconds / spread,
        high_s=seconds * spread,
        borrowed={term.feature: term.source.name for term in terms if term.is_borrowed},
        unknown=unknown,
    )


def seconds_of(work: Work, coefficients: Coefficients) -> float:
    """The seconds of `predict` without their interval, which takes longer to work out."""
    return sum(term.seconds for term in terms_of(work, coefficients)[0])


def terms_of(work: Work, coefficients: Coefficients) -> tuple[list[Term], tuple[str, ...]]:
    """What each feature takes, cards that wait included, and which features nothing speaks for."""
    table = coefficients.table
    sources = {name: name if name in table else nearest(name, table) for name in work.amounts}
    known = {name: source for name, source in sources.items() if source is not None}
    if any(".wait." in name for name in table):
        work = add_waiting(work, {name: table[source].value for name, source in known.items()})
        known |= {name: name for name in work.amounts if ".wait." in name and name in table}
    terms = [
        Term(feature=name, source=table[known[name]], amount=amount)
        for name, amount in work.amounts.items()
        if name in known
    ]
    return terms, tuple(name for name, source in sources.items() if source is None)


def _interval_factor(terms: list[Term], seconds: float, coefficients: Coefficients) -> float:
    variance = 0.0
    by_phase: dict[str, float] = {}
    amounts: dict[str, float] = {}
    for term in terms:
        name, phase = term.source.name, term.phase
        by_phase[phase] = by_phase.get(phase, 0.0) + term.seconds
        amounts[name] = amounts.get(name, 0.0) + term.amount
        if term.is_borrowed:
            variance += (BORROWED_SD * term.seconds) ** 2
    for phase, part_s in by_phase.items():
        variance += (coefficients.residual_sds.get(phase, 0.0) * part_s) ** 2
    variance += variance_of(amounts, coefficients)
    relative = max(variance, 0.0) ** 0.5 / seconds
    # log-normal with this relative deviation: sd of the logarithm is sqrt(log(1 + r²))
    return exp(INTERVAL_Z * sqrt(log1p(relative**2)))


def variance_of(amounts: Mapping[str, float], coefficients: Coefficients) -> float:
    """Square seconds of doubt about a sum of so many units of each coefficient."""
    variance, names = 0.0, tuple(amounts)
    for i, a in enumerate(names):
        for b in names[i:]:
            weight = 1.0 if a == b else 2.0
            variance += weight * amounts[a] * amounts[b] * coefficients.covariance_of(a, b)
    return variance


def unit_of(name: str) -> str:
    """The unit of a feature's coefficient, by the feature's name."""
    kind = name.split(".")[1] if "." in name else name
    if kind in ("read", "stream", "stream_mmap", "context", "carry"):
        return "s/byte"
    if kind == "wait":
        return "s/s"
    return "s/flop" if kind in ("flops", "attention") else "s"


def nearest(name: str, table: Container[str]) -> str | None:
    """The feature in `table` most like one that was never measured; None where none is alike.

    For a tensor type: the type of the same device that is closest in bits and family, then
    the host's other layout. For mapped weights: pinned ones.
    """
    return next((other for other in _neighbours(name) if other in table), None)


def _neighbours(name: str) -> Iterator[str]:
    stem, _, last = name.rpartition(".")
    if last in TYPES_BY_NAME:
        for place in _layouts(stem):
            yield from (f"{place}.{other}" for other in _types_like(last))
    elif ".stream_mmap." in name:
        yield name.replace(".stream_mmap.", ".stream.")
    elif ".stream." in name:
        yield name.replace(".stream.", ".stream_mmap.")
    else:
        yield from _layouts(name)[1:]


def _layouts(stem: str) -> tuple[str, ...]:
    head, _, place = stem.rpartition(".")
    other = {CPU: REPACKED, REPACKED: CPU}.get(place)
    return (stem,) if other is None else (stem, f"{head}.{other}")


def _types_like(name: str) -> list[str]:
    """All tensor types, those nearest to `name` first."""

    def distance(other: GGMLType) -> float:
        ratio = _bits(other) / _bits(TYPES_BY_NAME[name])
        same = _family(other.name) == _family(name)
        return max(ratio, 1 / ratio) + (0.0 if same else 0.5)

    known = (other for other in TYPES_BY_NAME.values() if other.is_known)
    return [other.name for other in sorted(known, key=distance)]


def _bits(type_: GGMLType) -> float:
    return 8 * type_.block_bytes / type_.block_size


def _family(name: str) -> str:
    """Types that are unpacked alike: code books, K-quants, plain blocks, floats."""
    if name.startswith("IQ") and name != "IQ4_NL":
        return "IQ"
    if name.endswith("_K"):
        return "K"
    return "float" if name in ("F32", "F16", "BF16") else "block"
