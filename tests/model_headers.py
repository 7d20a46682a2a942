"""Headers of made-up models for tests: metadata and tensor infos without a file."""

from __future__ import annotations

from offload.ggml import TYPES_BY_NAME, tensor_bytes
from offload.gguf import GGUFHeader, TensorInfo, Value

F16 = TYPES_BY_NAME["F16"]


def info(name: str, *shape: int, type_name: str = "F16") -> TensorInfo:
    """One tensor info, offset 0."""
    type_ = TYPES_BY_NAME[type_name]
    return TensorInfo(
        name=name, type=type_, shape=shape, offset_bytes=0, n_bytes=tensor_bytes(type_, shape)
    )


def model_header(
    arch: str, tensors: tuple[TensorInfo, ...] | None = None, **keys: Value | None
) -> GGUFHeader:
    """A header of a 4-layer model of width 64; `keys` overrule, `__` standing for a dot.

    A key given as None is left out. Without `tensors` there are embeddings and an output.
    """
    metadata: dict[str, Value] = {
        "general.architecture": arch,
        f"{arch}.block_count": 4,
        f"{arch}.context_length": 8192,
        f"{arch}.embedding_length": 64,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.feed_forward_length": 128,
        f"{arch}.vocab_size": 100,
    }
    for name, value in keys.items():
        key = name.replace("__", ".")
        full = key if key.startswith(("general.", "tokenizer.")) else f"{arch}.{key}"
        if value is None:
            metadata.pop(full, None)
        else:
            metadata[full] = value
    if tensors is None:
        tensors = (info("token_embd.weight", 64, 100), info("output.weight", 64, 100))
    return GGUFHeader(
        version=3,
        metadata=metadata,
        tensors=tensors,
        data_offset_bytes=0,
        file_bytes=0,
        n_files=1,
        path="made-up.gguf",
    )
