"""What are the figures of one model, in our own form?

A `Shape` holds what decides memory: layers, widths, heads, experts. Tensor
names and sizes follow from it (tensors.py), as do the GGUF keys (metadata.py).
Words are llama.cpp's (n_layer, n_ff_exp, n_head_kv).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool | tuple[int, ...] | tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MLA:
    """Multi-head latent attention: the ranks and head parts of DeepSeek's scheme."""

    n_lora_q: int  # 0: queries are not compressed
    n_lora_kv: int
    n_nope: int  # head elements without position
    n_rope: int  # head elements with position
    n_value: int

    @property
    def n_key(self) -> int:
        """Elements of one decompressed key head."""
        return self.n_nope + self.n_rope


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Gated delta net layers (Qwen3-Next, Qwen3.5): all but every `interval`-th layer."""

    interval: int
    d_state: int
    n_group: int  # key heads
    dt_rank: int  # value heads
    d_conv: int = 4

    @property
    def n_key(self) -> int:
        """Width of all key heads together."""
        return self.d_state * self.n_group

    @property
    def n_value(self) -> int:
        """Width of all value heads together (llama.cpp's ssm_d_inner)."""
        return self.d_state * self.dt_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """Window attention in all but every `period`-th layer; that one may have its own heads."""

    n_swa: int
    period: int
    n_head_kv_full: int | None = None
    n_embd_head_full: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The lightning indexer of sparse attention (DeepSeek V3.2, GLM-5)."""

    n_head: int
    n_embd_head: int
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One model: figures, where they come from, and what is publicly known of its size."""

    name: str
    title: str
    arch: str
    source: str
    n_layer: int  # without MTP/nextn blocks, llama.cpp's n_layer()
    n_embd: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_vocab: int
    n_ctx_train: int
    n_ff: int = 0
    n_layer_nextn: int = 0
    nextn_has_head: bool = False  # the MTP blocks carry copies of the embedding and the head
    n_layer_dense_lead: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_expert_shared: int = 0
    n_ff_exp: int = 0
    n_ff_shexp: int = 0
    moe_step: int = 1  # every moe_step-th layer has experts
    n_rot: int | None = None
    mla: MLA | None = None
    delta: DeltaNet | None = None
    swa: SlidingWindow | None = None
    indexer: Indexer | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    output_is_tied: bool = False
    f_norm_rms_eps: float = 1e-6
    tokenizer: str = "gpt2"  # the kind a full vocabulary is written as: "gpt2" or "llama"
    extra: Mapping[str, Value] = field(default_factory=dict)  # further keys, without "<arch>."
    quant: str = "Q4_K_M"
    n_params: float | None = None  # as published, for the tests
    size_gib: Mapping[str, float] = field(default_factory=dict)  # recipe -> published tensor GiB

    @property
    def n_layer_all(self) -> int:
        """llama.cpp's n_layer_all, the file's block_count."""
        return self.n_layer + self.n_layer_nextn

    def is_moe(self, il: int) -> bool:
        """Whether layer `il` has routed experts."""
        return (
            self.n_expert > 0
            and il >= self.n_layer_dense_lead
            and (self.moe_step == 1 or (il + 1) % self.moe_step == 0)
        )

    def is_recurrent(self, il: int) -> bool:
        """Whether layer `il` keeps a recurrent state instead of a KV cache."""
        delta = self.delta
        return delta is not None and il < self.n_layer and (il + 1) % delta.interval != 0

    def is_swa(self, il: int) -> bool:
        """Whether layer `il` attends to a window only."""
        return self.swa is not None and (il + 1) % self.swa.period != 0
