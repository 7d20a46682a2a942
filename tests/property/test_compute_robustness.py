"""Whatever a damaged model looks like, its compute buffers are priced or it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from offload.backend import BACKENDS
from offload.context import ContextOptions
from offload.errors import OffloadError
from offload.model import make_model
from offload.placement import Placement, price_compute
from offload.split import split_layers
from tests.unit.test_compute_recorded import RECORDED, header_of

small = st.integers(0, 9)


@settings(max_examples=400)
@given(
    name=st.sampled_from(sorted(RECORDED)),
    lost=st.sets(st.integers(0, 120), max_size=6),
    bent=st.dictionaries(st.integers(0, 120), st.tuples(small, small), max_size=2),
    numbers=st.dictionaries(st.integers(0, 60), st.integers(0, 1 << 20), max_size=3),
    n_parallel=st.integers(1, 8),
    flash_attn=st.booleans(),
    build=st.sampled_from((None, 11312, 11434)),
)
def test_damaged_models_are_priced_or_refused(
    name: str,
    lost: set[int],
    bent: dict[int, tuple[int, int]],
    numbers: dict[int, int],
    n_parallel: int,
    flash_attn: bool,
    build: int | None,
) -> None:
    """Lost tensors, bent shapes and odd numbers: bytes that are no fewer than 0, or our error."""
    header = header_of(RECORDED[name])
    tensors = [t for i, t in enumerate(header.tensors) if i not in lost]
    for i, sizes in bent.items():
        if i < len(tensors):
            tensors[i] = tensors[i]._replace(shape=sizes)
    metadata: dict[str, Any] = dict(header.metadata)
    keys = sorted(key for key, value in metadata.items() if type(value) is int)
    for i, number in numbers.items():
        metadata[keys[i % len(keys)]] = number
    try:
        model = make_model(replace(header, tensors=tuple(tensors), metadata=metadata))
        context = ContextOptions(
            n_ctx=4096,
            n_parallel=n_parallel,
            flash_attn=flash_attn and model.has_flash_attn,
            llama_build=build,
        )
        moved = dict.fromkeys((t.name for t in model.expert_tensors), -1)
        found = price_compute(
            model,
            context,
            (BACKENDS["CUDA"],) * 2,
            Placement(
                split=split_layers(model.n_layer, -1, (1.0, 1.0)), placed=moved, has_rules=True
            ),
            op_offload=True,
        )
    except OffloadError as error:
        assert "\n" not in str(error)
    else:
        assert min(*found.devices, found.host) >= 0
