"""Virtual cards come up on the loopback interface, compute, and never outlive their owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from offload.engine.dry_run import BINARY as FIT_PARAMS
from offload.engine.dry_run import dry_run, nearest_for_fit_params
from offload.engine.generate import generate
from offload.engine.load_options import LoadOptions
from offload.engine.ports import is_listening, reserved_ports
from offload.engine.process import child_environment
from offload.engine.virtual_cards import BINARY, IN_PROCESS, virtual_cards
from offload.errors import LlamaCppError, UsageError
from offload.units import GIB

pytestmark = pytest.mark.usefixtures("llama_cpp_python")

OWNER = """
import signal, sys, time
from offload.engine.virtual_cards import virtual_cards
signal.signal(signal.SIGINT, signal.default_int_handler)
with virtual_cards(2, backend=sys.argv[1]) as cards:
    print(*(card.endpoint.rpartition(":")[2] for card in cards), flush=True)
    time.sleep(60)
"""


def wait_until_closed(ports: Iterable[int]) -> bool:
    """Whether nobody listens at any of the ports, within a few seconds."""
    deadline_s = time.monotonic() + 5
    while any(is_listening(port) for port in ports):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def port_of(endpoint: str) -> int:
    """The number behind the colon."""
    return int(endpoint.rpartition(":")[2])


def test_names_and_endpoints() -> None:
    """Cards are called as llama.cpp will call them, each with a port of its own."""
    with virtual_cards(3) as cards:
        assert [card.name for card in cards] == ["RPC0", "RPC1", "RPC2"]
        assert all(card.buffer_type == f"RPC0[{card.endpoint}]" for card in cards)
        ports = [port_of(card.endpoint) for card in cards]
        assert len(set(ports)) == 3
        assert all(is_listening(port) for port in ports)
    assert wait_until_closed(ports)


def test_loopback_only() -> None:
    """The protocol has no authentication, so nobody outside may reach a card."""
    with virtual_cards(1) as (card,):
        port = f"{port_of(card.endpoint):04X}"
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(port)]
        assert listening == [f"0100007F:{port}"]


@pytest.mark.parametrize("backend", [IN_PROCESS, BINARY])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_orphans(backend: str, number: signal.Signals, request: pytest.FixtureRequest) -> None:
    """However the owner ends, Ctrl-C and SIGKILL included, its cards end."""
    if backend == BINARY:
        request.getfixturevalue("rpc_server")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
    )
    try:
        assert owner.stdout is not None
        ports = [int(port) for port in owner.stdout.readline().split()]
        assert len(ports) == 2
        owner.send_signal(number)
        owner.wait(10)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()  # type: ignore[union-attr]
    assert wait_until_closed(ports)


def test_no_orphans_of_an_exception() -> None:
    """An error inside the block ends the cards and is not swallowed."""
    ports: list[int] = []

    def fail() -> None:
        with virtual_cards(2) as cards:
            ports.extend(port_of(card.endpoint) for card in cards)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(ports) == 2
    assert wait_until_closed(ports)


def test_cards_by_ggml_rpc_server(rpc_server: Path, small_moe: Path) -> None:
    """llama.cpp's own program plays a card as well, and our child is its client."""
    options = LoadOptions(path=str(small_moe), tensor_split=(3, 4))
    with virtual_cards(2, backend=BINARY, program=rpc_server) as cards:
        theirs = dry_run(options, endpoints=[card.endpoint for card in cards])
    ours = dry_run(options, n_cards=2)
    assert [d.total_bytes for d in theirs.devices] == [d.total_bytes for d in ours.devices]


def test_cards_of_a_size(fit_params: Path, small_moe: Path) -> None:
    """A card may claim any size, which any client believes: here llama.cpp's own program."""
    options = nearest_for_fit_params(LoadOptions(path=str(small_moe)))
    with virtual_cards(2, free_bytes=[24 * GIB, 12 * GIB]) as cards:
        endpoints = [card.endpoint for card in cards]
        report = dry_run(options, endpoints=endpoints, backend=FIT_PARAMS, fit_params=fit_params)
    free = [row.free_mib for row in report.log.table if row.free_mib is not None]
    assert free == [24 * 1024, 12 * 1024]


def test_a_card_that_dies(small_moe: Path) -> None:
    """Losing a card is an error that names llama.cpp's words, not a hang."""
    options = LoadOptions(path=str(small_moe), tensor_split=(3, 4))
    with virtual_cards(2) as cards:
        os.kill(cards[1].pid, signal.SIGKILL)
        assert wait_until_closed([port_of(cards[1].endpoint)])
        with pytest.raises(LlamaCppError, match="Failed to connect"):
            generate(options, [1, 2, 3], endpoints=[card.endpoint for card in cards])


@pytest.mark.parametrize("n", [0, -1, 17])
def test_numbers_of_cards(n: int) -> None:
    """llama.cpp knows 1 to 16 RPC servers."""
    with pytest.raises(UsageError), virtual_cards(n):
        pass


def test_sizes_must_match() -> None:
    """One size for all or one each; a program that cannot play a size says so."""
    with pytest.raises(UsageError, match="2 sizes"), virtual_cards(3, free_bytes=[1, 2]):
        pass
    with (
        pytest.raises(UsageError, match="host's memory"),
        virtual_cards(1, free_bytes=GIB, backend=BINARY, program=Path("/bin/true")),
    ):
        pass


def test_a_card_that_does_not_come_up() -> None:
    """A program that is no RPC server is an error with its exit code."""
    with (
        pytest.raises(LlamaCppError, match="did not come up") as caught,
        virtual_cards(2, backend=BINARY, program=Path("/bin/false")),
    ):
        pass
    assert caught.value.exit_code == 1


def test_reserved_ports() -> None:
    """A reserved port is nobody's, yet a server that reuses addresses can listen on it."""
    with reserved_ports(3) as ports, socket.socket() as server:
        assert len({port.number for port in ports}) == 3
        assert not any(is_listening(port.number) for port in ports)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports[0].number))
        server.listen(1)
        assert is_listening(ports[0].number)
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", ports[1].number))


@pytest.mark.parametrize("text", [True, False])
def test_real_run(small_moe: Path, text: bool) -> None:
    """A small model split over three cards, experts on the host, really generates."""
    options = LoadOptions(
        path=str(small_moe),
        tensor_split=(2, 2, 3),
        overrides=((r"blk\.(1|3|5)\.ffn_(up|down|gate)_exps", "CPU"),),
        n_ctx=512,
    )
    run = generate(options, "Hello" if text else [5, 6, 7], n_predict=6, n_cards=3)
    assert 1 <= len(run.tokens) <= 6
    assert min(run.load_s, run.prompt_s, run.decode_s) >= 0
    assert sorted(run.report.overridden) == sorted(
        f"blk.{il}.ffn_{part}_exps.weight" for il in (1, 3, 5) for part in ("up", "down", "gate")
    )


def test_same_tokens_wherever_they_are_computed(small_moe: Path) -> None:
    """Greedy tokens do not depend on the placement."""
    path, prompt = str(small_moe), list(range(3, 40))
    one = generate(LoadOptions(path=path, n_ctx=512), prompt, n_predict=8)
    placements: list[tuple[tuple[float, ...], tuple[tuple[str, str], ...]]] = [
        ((3, 4), ()),
        ((1, 1), (("exps", "CPU"),)),
        ((7, 0), (("blk.[24].ffn_up_exps", "RPC1"),)),
    ]
    with virtual_cards(2) as cards:
        for split, rules in placements:
            options = LoadOptions(path=path, n_ctx=512, tensor_split=split, overrides=rules)
            run = generate(options, prompt, n_predict=8, endpoints=[c.endpoint for c in cards])
            assert run.tokens == one.tokens


@pytest.mark.parametrize("prompt", [[], [10**6], [-1]])
def test_impossible_prompts(small_moe: Path, prompt: list[int]) -> None:
    """A prompt without tokens, or with tokens the model lacks, is refused."""
    with pytest.raises(UsageError, match="prompt"):
        generate(LoadOptions(path=str(small_moe), n_ctx=512), prompt)
