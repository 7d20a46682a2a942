"""Machines written down in one line, and changes of the one that is here."""

from __future__ import annotations

import pytest

from benchmarks.speed_cases import model_of
from offload.cost import Coefficient, Coefficients
from offload.device import Device, parse_device
from offload.errors import UsageError
from offload.machine import Host
from offload.options import PlanOptions, Strategy
from offload.priors.card_memory import memory_bytes
from offload.render.what_if import machines_to_json, render_machines
from offload.speeds import Measured, Speeds
from offload.units import GIB
from offload.what_if import Row, describe_machines, needs_machine, plan_machines

HERE = (
    parse_device("CUDA0:22GiB:616GB/s:12GB/s"),
    parse_device("CUDA1:22GiB:616GB/s:3GB/s"),
)
MODEL = model_of("qwen3-30b-a3b", "Q4_K_M")


def cards(text: str) -> list[tuple[str, int, int | None, int | None]]:
    """Name, GiB, GB/s and link of the cards of the last machine described."""
    devices = describe_machines([text], HERE)[-1].devices
    return [
        (
            d.name,
            d.memory_free_bytes // GIB,
            d.bandwidth_bytes_per_s and d.bandwidth_bytes_per_s // 10**9,
            d.link_bytes_per_s and d.link_bytes_per_s // 10**9,
        )
        for d in devices
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24GiB", [("CUDA0", 24, None, None)]),
        ("2x24GiB:936GB/s,1x12GiB:360GB/s:6GB/s", [
            ("CUDA0", 24, 936, None), ("CUDA1", 24, 936, None), ("CUDA2", 12, 360, 6),
        ]),
        ("2 x RTX 3090", [("CUDA0", 24, None, None), ("CUDA1", 24, None, None)]),
        ("rtx 3090:20GiB::25GB/s", [("CUDA0", 20, None, 25)]),
        ("Vulkan0:16GiB, 8GiB", [("Vulkan0", 16, None, None), ("Vulkan1", 8, None, None)]),
        ("RX 7900 XTX,RTX 4060 Ti:16GiB", [("ROCm0", 24, None, None), ("CUDA0", 16, None, None)]),
        ("M2 Max:64GiB,Arc B580", [("MTL0", 64, None, None), ("SYCL0", 12, None, None)]),
        ("RPC0[127.0.0.1:50052]:8GiB,24GiB", [("RPC0", 8, None, None), ("CUDA0", 24, None, None)]),
        ("here", [("CUDA0", 22, 616, 12), ("CUDA1", 22, 616, 3)]),
        ("CUDA1", [("CUDA1", 22, 616, 3)]),
        ("+24GiB", [("CUDA0", 22, 616, 12), ("CUDA1", 22, 616, 3), ("CUDA2", 24, None, None)]),
        ("+2xRTX 3060,-CUDA0", [
            ("CUDA1", 22, 616, 3), ("CUDA2", 12, None, None), ("CUDA3", 12, None, None),
        ]),
        ("-cuda0,-CUDA1", []),
        ("CUDA1=RTX 4090", [("CUDA0", 22, 616, 12), ("CUDA1", 24, None, 3)]),
        ("CUDA1=24GiB:936GB/s:25GB/s", [("CUDA0", 22, 616, 12), ("CUDA1", 24, 936, 25)]),
    ],
)  # fmt: skip
def test_machines_are_read(
    text: str, expected: list[tuple[str, int, int | None, int | None]]
) -> None:
    """Each form means the cards it says, named as llama.cpp would name them."""
    assert cards(text) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("fish", "no size, no llama.cpp device and no card"),
        ("", "no size"),
        ("24GiB,,", "no size"),
        ("24", "write it like 24GiB"),
        ("RTX 4060 Ti", "more than one size of memory"),
        ("GB10", "more than one size of memory"),
        ("24GiB,+RTX 3090", "mixes"),
        ("-CUDA7", "there is CUDA0, CUDA1"),
        ("CUDA7=24GiB", "there is CUDA0, CUDA1"),
        ("-", "no card ''"),
        ("CUDA0=RX 7900 XTX", "write -CUDA0,+RX 7900 XTX"),
        ("0x24GiB", "takes 1 to 16"),
        ("17x24GiB", "takes 1 to 16"),
        ("9x24GiB,9x12GiB", "18 cards"),
        ("CUDA0:24GiB,CUDA0:12GiB", "twice"),
        ("2xCUDA5:24GiB", "twice"),
        ("CUDA5", "its size is needed"),
        ("24GiB:1:2:3", "too many parts"),
        ("0GiB", "more than zero"),
        ("here,24GiB", "no size"),
    ],
)
def test_what_cannot_be_meant_is_named(text: str, what: str) -> None:
    """One line that quotes the machine and says what to write."""
    with pytest.raises(UsageError) as caught:
        describe_machines([text], HERE)
    assert what in str(caught.value) and repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_changes_are_seen_beside_the_machine_here() -> None:
    """It comes first, once, and only where something is said of it."""
    assert [m.text for m in describe_machines(["+24GiB", "-CUDA0"], HERE)] == [
        "here", "+24GiB", "-CUDA0",
    ]  # fmt: skip
    assert [m.text for m in describe_machines(["24GiB", "here", "-CUDA0"], HERE)] == [
        "24GiB", "here", "-CUDA0",
    ]  # fmt: skip
    assert [m.text for m in describe_machines(["24GiB", "12GiB"], HERE)] == ["24GiB", "12GiB"]
    assert needs_machine(["24GiB", "here"]) and needs_machine(["-CUDA0"])
    assert not needs_machine(["24GiB", "RTX 3090"])


def rows(*texts: str, here: tuple[Device, ...] = HERE, **changed: object) -> tuple[Row, ...]:
    """The 30B planned for these machines."""
    options = PlanOptions(n_ctx=8192, **changed)  # type: ignore[arg-type]
    return plan_machines(
        describe_machines(texts, here), here, MODEL, options, host_free_bytes=90 * GIB,
        speeds=Speeds(host=Host(bandwidth_bytes_per_s=80 * 10**9)),
    )  # fmt: skip


def test_table_and_json_say_the_same() -> None:
    """One line and one object per machine; more memory and bandwidth are no slower."""
    found = rows("8GiB:300GB/s", "2x8GiB:300GB/s", "24GiB:300GB/s")
    data = machines_to_json(found)["machines"]
    lines = render_machines(found).splitlines()
    assert [one["cards"] for one in data] == [line.split()[0] for line in lines[1:4]]
    assert data[0]["experts_on_host_bytes"] > data[1]["experts_on_host_bytes"] > 0
    assert data[2]["experts_on_host_bytes"] == 0
    for one, row in zip(data, found, strict=True):
        first_s = data[0]["turn"]["seconds"]
        assert one["difference"]["seconds"] == pytest.approx(one["turn"]["seconds"] - first_s)
        assert one["turn"]["low_s"] < one["turn"]["seconds"] < one["turn"]["high_s"]
        assert [d["headroom_bytes"] for d in one["devices"]] == [
            row.answer.plan.headroom_bytes(d) for d in range(len(row.machine.devices))
        ]
    assert data[2]["turn"]["seconds"] < data[0]["turn"]["seconds"]
    assert lines[1].endswith("the same")
    markdown = render_machines(found, markdown=True).splitlines()
    assert markdown[1].count("---") == markdown[0].count("|") - 1 == 8


def test_the_first_that_fits_is_what_others_are_beside() -> None:
    """A machine that cannot hold the model has no turn to be compared with."""
    tight = plan_machines(
        describe_machines(["2GiB", "24GiB", "12GiB"], ()), (), MODEL, PlanOptions(n_ctx=8192),
        host_free_bytes=10 * GIB, speeds=Speeds(),
    )  # fmt: skip
    assert [row.answer.plan.feasible for row in tight] == [False, True, True]
    assert tight[0].difference is None
    assert tight[1].difference == (0.0, 0.0, 0.0)
    assert "short by" in render_machines(tight).splitlines()[1]


def test_another_card_is_doubted_by_itself() -> None:
    """A card here with more memory is still that card; one of another kind may be anything."""
    same, other = rows("here", "CUDA1=24GiB:616GB/s", "CUDA1=22GiB:617GB/s")[1:]
    assert same.difference is not None and other.difference is not None
    width = other.difference.high_s - other.difference.low_s
    assert width > 4 * (same.difference.high_s - same.difference.low_s)


def test_margins_card_by_card_stay_with_the_cards_here() -> None:
    """A new card has the default margin, those that stay keep theirs; none is left out here."""
    margins, even = (2 * GIB, 3 * GIB), Strategy.EVEN
    found = rows("here", "-CUDA0,+24GiB", margin_bytes=margins, strategy=even)
    assert found[0].answer.plan.margins_bytes == (2 * GIB, 3 * GIB)
    assert found[1].answer.plan.margins_bytes == (3 * GIB, GIB)


def test_measurements_count_for_the_cards_that_were_measured() -> None:
    """What a profile says of CUDA1 is not said of the card put in its place."""
    names = ("decode.read.CUDA0.Q4_K", "decode.read.CUDA1.Q4_K", "decode.read.CPU.Q4_K")
    table = {name: Coefficient(name, 1e-9, "s/byte", 1e-11) for name in names}
    measured = Measured(
        Coefficients(table, {}, {}, "measured"), {"CUDA0": "CUDA0", "CUDA1": "CUDA1"}
    )
    machines = describe_machines(["here", "CUDA1=RTX 4090"], HERE)
    found = plan_machines(
        machines, HERE, MODEL, PlanOptions(n_ctx=8192), host_free_bytes=90 * GIB,
        speeds=Speeds(measured=measured),
    )  # fmt: skip
    kept = [row.answer.question.speeds.measured for row in found]
    assert [dict(one.device_of) for one in kept if one is not None] == [
        {"CUDA0": "CUDA0", "CUDA1": "CUDA1"}, {"CUDA0": "CUDA0"},
    ]  # fmt: skip


def test_sizes_are_of_the_longest_name() -> None:
    """A 3080 Ti is no 3080, whatever stands before and after its name."""
    assert memory_bytes("NVIDIA GeForce RTX 3080 Ti") == 12 * GIB
    assert memory_bytes("RTX 3080") == 10 * GIB
    assert memory_bytes("RTX 5060 Ti") is None and memory_bytes("") is None
