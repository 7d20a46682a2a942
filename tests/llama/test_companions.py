"""llama-server's log says how much a draft model and a projector take of each card."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from offload.companions import draft_memory, mmproj_memory
from offload.device import check_devices, device_by_name
from offload.engine.virtual_cards import BINARY, virtual_cards
from offload.ggml import TYPES_BY_NAME
from offload.model import make_model
from offload.options import PlanOptions
from offload.plan import resolve_context
from offload.source import read_header
from offload.units import GIB, MIB
from tests.llama.server import load_for_real
from tuner.synth import write_random
from tuner.synth.blocks import RandomData
from tuner.synth.container import FileTensor, write_gguf

SIZE = re.compile(r"RPC0\[(\S+)\] (model|KV|compute) buffer size = +([\d.]+) MiB")


def card_sizes(log: Path, endpoint: str | None) -> list[tuple[str, float]]:
    """What the log says that this card holds: kind and MiB, in the order it was allocated."""
    found = SIZE.findall(log.read_text(errors="replace"))
    return [(kind, float(mib)) for server, kind, mib in found if server == endpoint]


def write_mmproj(path: Path, n_embd_text: int, *, n_embd: int = 256, n_ff: int = 1024) -> Path:
    """A projector like Gemma 3's with two blocks, of random weights."""
    f16, f32 = TYPES_BY_NAME["F16"], TYPES_BY_NAME["F32"]
    patch, size, heads = 14, 448, 4
    tensors = [
        FileTensor(name="v.patch_embd.weight", type=f16, shape=(patch, patch, 3, n_embd)),
        FileTensor(name="v.patch_embd.bias", type=f32, shape=(n_embd,)),
        FileTensor(name="v.position_embd.weight", type=f32, shape=(n_embd, (size // patch) ** 2)),
        FileTensor(name="v.post_ln.weight", type=f32, shape=(n_embd,)),
        FileTensor(name="v.post_ln.bias", type=f32, shape=(n_embd,)),
        FileTensor(name="mm.input_projection.weight", type=f16, shape=(n_embd_text, n_embd)),
        FileTensor(name="mm.soft_emb_norm.weight", type=f32, shape=(n_embd,)),
    ]
    for il in range(2):
        block = f"v.blk.{il}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors.append(
                FileTensor(name=f"{block}.{name}.weight", type=f16, shape=(n_embd, n_embd))
            )
            tensors.append(FileTensor(name=f"{block}.{name}.bias", type=f32, shape=(n_embd,)))
        for name in ("ln1", "ln2"):
            tensors.append(FileTensor(name=f"{block}.{name}.weight", type=f32, shape=(n_embd,)))
            tensors.append(FileTensor(name=f"{block}.{name}.bias", type=f32, shape=(n_embd,)))
        tensors.append(FileTensor(name=f"{block}.ffn_up.weight", type=f16, shape=(n_embd, n_ff)))
        tensors.append(FileTensor(name=f"{block}.ffn_down.weight", type=f16, shape=(n_ff, n_embd)))
    return write_gguf(
        path,
        {
            "general.architecture": "clip",
            "clip.has_vision_encoder": True,
            "clip.projector_type": "gemma3",
            "clip.use_gelu": True,
            "clip.vision.embedding_length": n_embd,
            "clip.vision.feed_forward_length": n_ff,
            "clip.vision.block_count": 2,
            "clip.vision.projection_dim": n_embd_text,
            "clip.vision.attention.head_count": heads,
            "clip.vision.attention.layer_norm_epsilon": 1e-6,
            "clip.vision.image_size": size,
            "clip.vision.patch_size": patch,
            "clip.vision.image_mean": [0.5, 0.5, 0.5],
            "clip.vision.image_std": [0.5, 0.5, 0.5],
        },
        tensors,
        fill=RandomData(0),
    )


@pytest.mark.parametrize(
    ("n_cards", "flags", "asked"),
    [
        (1, (), {}),
        (1, ("-ctkd", "q8_0", "-ctvd", "q8_0"), {"draft_type_k": "Q8_0", "draft_type_v": "Q8_0"}),
        (2, (), {}),
    ],
)
def test_a_draft_takes_what_the_log_says(
    n_cards: int,
    flags: tuple[str, ...],
    asked: dict[str, str],
    llama_server: Path,
    rpc_server: Path,
    tmp_path: Path,
) -> None:
    """Weights and context of each draft card are exact, compute is not below and near."""
    main = write_random(tmp_path / "m.gguf", arch="qwen3moe", n_layer=3)
    small = write_random(tmp_path / "d.gguf", arch="qwen3", n_layer=4)
    names = ("RPC1", "RPC2")[:n_cards]
    with virtual_cards(3, backend=BINARY, program=rpc_server) as served:
        load_for_real(
            llama_server,
            [
                "-m", str(main), "--rpc", ",".join(c.endpoint for c in served), "-fit", "off",
                "-dev", "RPC0", "-ngl", "99", "-c", "2048", "-ub", "256", "-md", str(small),
                "--spec-type", "draft-simple", "-devd", ",".join(names), "-ts", "3,2", *flags,
            ],
            tmp_path,
            os.environ,
        )  # fmt: skip
        cards = check_devices(
            [device_by_name(c.name, GIB, endpoint=c.endpoint) for c in served if c.name in names]
        )
    types = {key: TYPES_BY_NAME[name] for key, name in asked.items()}
    options = PlanOptions(n_ctx=2048, n_ubatch=256, **types)  # type: ignore[arg-type]
    context = resolve_context(make_model(read_header(main)), options)
    draft = make_model(read_header(small))
    planned = draft_memory(draft, cards, options, context, (3.0, 2.0))
    for card in cards:
        said = dict(card_sizes(tmp_path / "server.log", card.endpoint))
        memory = planned.cards[card.name]
        assert memory.model_bytes / MIB == pytest.approx(said["model"], abs=0.011)
        assert memory.context_bytes / MIB == pytest.approx(said["KV"], abs=0.011)
        assert said["compute"] - 0.011 <= memory.compute_bytes / MIB <= 1.1 * said["compute"] + 1


def test_a_projector_takes_no_more_than_planned(
    llama_server: Path, rpc_server: Path, tmp_path: Path
) -> None:
    """Its card holds its weights and its compute buffer within the estimate, which is near."""
    main = write_random(tmp_path / "m.gguf", arch="gemma3", n_layer=2)
    n_embd = make_model(read_header(main)).hparams.n_embd
    projector = write_mmproj(tmp_path / "mm.gguf", n_embd)
    with virtual_cards(2, backend=BINARY, program=rpc_server) as served:
        load_for_real(
            llama_server,
            [
                "-m", str(main), "--rpc", ",".join(c.endpoint for c in served), "-fit", "off",
                "-dev", "RPC0", "-ngl", "99", "-c", "2048", "-mm", str(projector),
                "-mmdev", "RPC1",
            ],
            tmp_path,
            os.environ,
        )  # fmt: skip
        card = device_by_name("RPC1", GIB, endpoint=served[1].endpoint)
    sizes = card_sizes(tmp_path / "server.log", card.endpoint)
    computes = [mib for kind, mib in sizes if kind == "compute"]
    planned = mmproj_memory(read_header(projector), card).cards["RPC1"]
    assert computes and max(computes) <= planned.compute_bytes / MIB <= 3 * max(computes)
