"""Which facts does llama.cpp hard-code per architecture, and which values can each take?

Mirrors what differs between the `load_arch_hparams` and `load_arch_tensors` of
src/models/*.cpp and the cases of `llama_model::create_memory` in
src/llama-model.cpp (b11434). Everything an architecture shares with the
others is code elsewhere; everything it does not is a value here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Memory(StrEnum):
    """The memory class `llama_model::create_memory` builds for a normal context."""

    NONE = "none"
    """No cache at all: encoders and diffusion models."""

    ATTENTION = "attention"
    """`llama_kv_cache`, or `llama_kv_cache_iswa` where there is a sliding window."""

    RECURRENT = "recurrent"
    """`llama_memory_recurrent`."""

    HYBRID = "hybrid"
    """`llama_memory_hybrid`, `_iswa` where there is a sliding window."""

    HYBRID_INDEXED = "hybrid_indexed"
    """`llama_memory_hybrid_idx`: a hybrid whose attention layers also cache indexer keys."""

    MSA = "msa"
    """`llama_kv_cache_msa`: all layers attend, sparse ones also cache indexer keys and values."""

    DSA = "dsa"
    """`llama_kv_cache_dsa`: latent attention with indexer keys."""

    DSA_WINDOWED = "dsa_windowed"
    """`llama_kv_cache_dsa_iswa`: as DSA, some layers with a window instead of an indexer."""

    DSV4 = "dsv4"
    """`llama_kv_cache_dsv4`: a window, compressed keys and compressor states per sequence."""


class WindowWhen(StrEnum):
    """When an architecture uses its sliding window at all."""

    ALWAYS = "always"
    """The key is required (or has a default)."""

    IF_POSITIVE = "if_positive"
    """Only if the file gives a size above zero."""

    UNLESS_ZERO = "unless_zero"
    """Unless the file says zero."""


class Pattern(StrEnum):
    """How the layers with a window are told from the others."""

    PERIOD = "period"
    """`load_swa_pattern`: the file's array, else the file's period, else the period given here."""

    ARRAY = "array"
    """The file's array, which is required."""

    ALL = "all"
    """Every layer, MTP blocks too."""

    ATTENTION = "attention"
    """Every layer that is not recurrent."""


class Window(NamedTuple):
    """Sliding-window attention of one architecture.

    `n_swa_default` stands in for a missing key (0: it is required where `when` is ALWAYS),
    `n_swa_fixed` overrides the file. `only_n_layer` restricts the window to models of
    that many layers.
    """

    when: WindowWhen = WindowWhen.ALWAYS
    pattern: Pattern = Pattern.PERIOD
    period: int = 0
    dense_first: bool = False
    n_swa_default: int = 0
    n_swa_fixed: int = 0
    only_n_layer: int = 0
    kind: str = "standard"
    """`llama_swa_type`: standard, chunked or symmetric."""

    all_if_hyper: bool = False
    """With hyper-connections every layer has the window, whose size is then required."""


class Recurrence(StrEnum):
    """Which layers carry a recurrent state (`hparams.is_recr_impl`)."""

    NEVER = "never"
    ALWAYS = "always"
    NO_KV_HEADS = "no_kv_heads"
    """`head_count_kv` of the layer is 0."""

    NO_KV_HEADS_NO_FF = "no_kv_heads_no_ff"
    """`head_count_kv` and `feed_forward_length` of the layer are 0."""

    INTERVAL = "interval"
    """All but every n-th layer, unless the file lists `attention.recurrent_layers`."""


class State(StrEnum):
    """Which keys size the recurrent state (`llama_hparams::n_embd_r` and `n_embd_s`)."""

    NONE = "none"
    WKV = "wkv"
    SHORTCONV = "shortconv"
    KDA = "kda"
    LIGHTNING = "lightning"
    SSM = "ssm"
    SSM_UNGROUPED = "ssm_ungrouped"
    """As SSM, but `ssm.group_count` is not read."""


class Attended(StrEnum):
    """Which layers of a hybrid have an attention cache (`filter_attn` of `create_memory`)."""

    NOT_RECURRENT = "not_recurrent"
    TRUNK_NOT_RECURRENT = "trunk_not_recurrent"
    """As above, MTP blocks left out."""

    WITHOUT_FF = "without_ff"
    """Blocks are either attention, recurrent or feed-forward."""

    ALL = "all"
    """Every block attends and carries a state."""


class Indexed(StrEnum):
    """Which attention layers own an indexer with a cache of its own."""

    ALL = "all"
    LISTED = "listed"
    """`attention.indexer.types`, all where it is missing."""

    LISTED_SHORT = "listed_short"
    """`attention.indexer.types`, required, of any length: layers beyond it own none."""

    LISTED_GLM = "listed_glm"
    """As LISTED; long-context models without the key follow GLM 5.2's own pattern."""

    AFTER_DENSE_LEAD = "after_dense_lead"


class RopeCopies(StrEnum):
    """Which layers ask for the file's rope frequency tables (one copy per device)."""

    TRUNK = "trunk"
    ALL = "all"
    FULL_ATTENTION = "full_attention"


class Arch(NamedTuple):
    """Everything llama.cpp knows about an architecture that a file does not say.

    `kv_from_start` is the number of layers that own KV when the rest reuse theirs,
    `reads_shared_kv_layers` the same from the file. `kept_in_nextn` names what is loaded
    of MTP blocks even when no draft is wanted (`nextn_is_loaded`: all of it).
    """

    name: str
    memory: Memory = Memory.ATTENTION
    window: Window | None = None
    recurrence: Recurrence = Recurrence.NEVER
    full_attention_interval: int = 0
    state: State = State.NONE
    attended: Attended = Attended.NOT_RECURRENT
    indexed: Indexed = Indexed.ALL
    indexer_is_optional: bool = False
    """Without `attention.indexer.top_k` all layers attend to everything."""

    is_mla: bool = False
    value_is_latent: bool = False
    kv_from_start: int = -1
    reads_shared_kv_layers: bool = False
    has_router_layer: bool = False
    is_looped: bool = False
    is_causal: bool = True
    is_draft: bool = False
    has_output: bool = True
    """False for encoders, and where the embeddings serve as output without a second copy."""

    output_is_first: bool = False
    """The output matrix is created before the embeddings: tied, it is a second copy even on
    the host, where the same tensor would otherwise serve both."""

    output_is_hyper: bool = False
    """The output has the width of all hyper-connection streams."""

    has_flash_attn: bool = True
    token_norm_is_output: bool = False
    rope_copies: RopeCopies = RopeCopies.TRUNK
    kept_in_nextn: frozenset[str] = frozenset()
    nextn_is_loaded: bool = False
    nextn_needs_tensors: bool = False
    """The key is ignored when the file has no MTP tensors."""

    ignores_lone_expert: bool = False
    lazy_inputs: bool = False
    """Per-layer embedding tables above 4 GiB are read from disk row by row."""
