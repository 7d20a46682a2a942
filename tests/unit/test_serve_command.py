"""The command that serves a launch, and what the user may add to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from offload.emit import Launch
from offload.emit.build import Build
from offload.engine.serving.server_api import Address
from offload.engine.serving.server_command import (
    Program,
    check_extra,
    make_address,
    make_command,
    warnings_of,
)
from offload.errors import UsageError

KNOWN = frozenset("-m -ngl -c -ub -fit --load-mode --host --port -lv".split())
PROGRAM = Program(path=Path("/opt/llama-server"), build=Build(flags=KNOWN), verbosity=("-lv", "4"))
LAUNCH = Launch(model_path="m.gguf", n_gpu_layers=7, n_ctx=512, n_batch=2048, n_ubatch=64)
HERE = Address(host="127.0.0.1", port=8080)


def test_the_plan_then_the_address_then_the_users_own() -> None:
    """llama.cpp takes the last of two flags: the user's stand last, but cannot undo the plan."""
    argv = make_command(LAUNCH, PROGRAM, HERE, ("--alias", "x"))
    assert argv[:3] == ("/opt/llama-server", "-m", "m.gguf")
    tail = ("--host", "127.0.0.1", "--port", "8080", "-lv", "4", "--alias", "x")
    assert argv[-len(tail) :] == tail


@pytest.mark.parametrize("flag", ["-lv", "-v", "--log-verbosity"])
def test_the_users_verbosity_is_kept(flag: str) -> None:
    """We ask for level 4 only where the user says nothing."""
    argv = make_command(LAUNCH, PROGRAM, HERE, (flag, "2"))
    assert argv.count("-lv") == (flag == "-lv")


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("-ngl", "belongs to the plan"),
        ("--override-tensor", "belongs to the plan"),
        ("--ctx_size", "belongs to the plan"),
        ("--gpu_layers=9", "belongs to the plan"),
        ("--n-cpu-ffn", "belongs to the plan"),
        ("--gpt-oss-20b-default", "belongs to the plan"),
        ("--log_disable", "hides what is watched"),
        ("--list-devices", "makes llama-server end"),
        ("--model=x", "belongs to the plan"),
        ("--port", "offload serve's own"),
        ("--log-disable", "hides"),
    ],
)
def test_flags_that_are_not_the_users_to_add(flag: str, says: str) -> None:
    """Placement, where to listen, and silence."""
    with pytest.raises(UsageError, match=says):
        check_extra(("--alias", "x", flag, "1"))


def test_a_build_too_old_is_said_by_flag() -> None:
    """The plan needs -ub, this --help does not list it."""
    old = Program(path=Path("old"), build=Build(flags=KNOWN - {"-ub"}))
    with pytest.raises(UsageError, match="-ub"):
        make_command(LAUNCH, old, HERE)


@pytest.mark.parametrize(
    ("host", "url", "is_loopback"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080", True),
        ("localhost", "http://localhost:8080", True),
        ("::1", "http://[::1]:8080", True),
        ("0.0.0.0", "http://127.0.0.1:8080", False),
        ("::", "http://[::1]:8080", False),
        ("192.168.1.5", "http://192.168.1.5:8080", False),
        ("server.example", "http://server.example:8080", False),
    ],
)
def test_where_it_listens_and_how_it_is_asked(host: str, url: str, is_loopback: bool) -> None:
    """A server that listens everywhere is asked on the loopback interface."""
    address = make_address(host, 8080, (), {})
    assert (address.url, address.is_loopback) == (url, is_loopback)
    assert bool(warnings_of(address, (), {})) != is_loopback


def test_what_must_be_known_to_ask_it(tmp_path: Path) -> None:
    """Prefix, TLS and a key, from flags or llama.cpp's environment; the key is never shown."""
    (tmp_path / "keys").write_text("one\ntwo\n")
    extra = ("--api-prefix", "/v/", "--ssl-key-file", "k.pem", "--api-key", "s3cret,other")
    address = make_address("127.0.0.1", 1, extra, {})
    assert address.url == "https://127.0.0.1:1/v"
    assert address.api_key == "s3cret"
    assert "s3cret" not in repr(address)
    from_file = make_address("h", 1, ("--api-key-file", str(tmp_path / "keys")), {})
    assert from_file.api_key == "one"
    assert make_address("h", 1, (), {"LLAMA_API_KEY": "env"}).api_key == "env"


@pytest.mark.parametrize("host", ["/run/llama.sock", "127.0.0.1,::1"])
def test_addresses_that_cannot_be_watched(host: str) -> None:
    """Sockets of files and lists of addresses are llama-server's, not ours."""
    with pytest.raises(UsageError, match="--host"):
        make_address(host, 1, (), {})


def test_what_the_plan_does_not_count_is_warned_of() -> None:
    """A draft model beside it; settings in the environment, but not a key there."""
    warned = warnings_of(HERE, ("-md", "draft.gguf"), {"LLAMA_ARG_N_GPU_LAYERS": "3"})
    assert any("-md" in text for text in warned)
    assert any("LLAMA_ARG_N_GPU_LAYERS" in text for text in warned)
    harmless = ("API_KEY_FILE", "PORT", "HOST", "THREADS", "CTX_CHECKPOINTS")
    assert not warnings_of(HERE, (), {f"LLAMA_ARG_{name}": "1" for name in harmless})
