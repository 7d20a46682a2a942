"""What does llama.cpp copy into the graph before each batch, and how large is it?

Mirrors the `build_inp_*` and `build_attn_inp_*` functions of src/llama-graph.cpp, and
`build_input_k_idxs`, `build_input_v_idxs` and `build_input_k_rot` of
src/llama-kv-cache.cpp (b11434). Every input is a leaf on the host and is copied to each
device that reads it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from offload.compute.builds import mixes_batches
from offload.compute.facts import ModelFacts
from offload.compute.graph import Graph, Node, Op, Outside, Source, View, view
from offload.context import Cache, ContextOptions
from offload.ggml import row_bytes

I32 = F32 = 4
I64 = 8

_UNMASKED_INDEXER = frozenset(("glm5-next", "minimax-m3", "qwen4exp"))
_INDEXER_ROTATES = frozenset("deepseek32 deepseek4 glm-dsa dots3note".split())


_NO_MIXED_BATCHES: Final = frozenset(
    "cogvlm deepseek4 graniteswitch eagle3 dflash gemma4-assistant".split()
)
"""`llm_arch_supports_mixed_batch` (src/llama-arch.cpp, b11434)."""


class CacheInputs(NamedTuple):
    """What one kind of cache adds to the graph; `n_kv` cells in each of `n_stream` streams."""

    n_kv: int
    n_stream: int
    mask: Outside
    k_idxs: Outside
    v_idxs: Outside
    k_rot: Outside | None = None
    v_rot: Outside | None = None
    is_batch_only: bool = False
    """There is no cache: the tokens of a batch see each other."""


class Inputs(NamedTuple):
    """The graph's inputs and the sizes of the batch; `caches` by kind of cache."""

    n_tokens: int
    n_seqs: int
    n_outputs: int
    options: ContextOptions
    build: int
    positions: Outside
    out_ids: Outside
    state_copy: tuple[View, View]
    """Which states the batch's sequences, and the others, continue from."""
    caches: dict[str, CacheInputs]
    fuses_streams: bool
    """Streams are added to in one operation (`resolve_fused_ops`, src/llama-context.cpp)."""

    named: dict[str, Outside]
    """Inputs that only some models have, made when they are first read."""

    shared: list[Source]
    """What a layer leaves for later ones: the indexer's choice, a mask in floats."""

    @property
    def flash_attn(self) -> bool:
        """Whether attention is one operation."""
        return self.options.flash_attn

    @property
    def v_is_transposed(self) -> bool:
        """Whether values are stored for matrix products, which is decided before `auto` is."""
        return not self.options.flash_attn and not self.options.flash_attn_auto


def add_inputs(
    graph: Graph,
    facts: ModelFacts,
    options: ContextOptions,
    build: int,
    n_tokens: int,
    n_outputs: int,
    *,
    fuses_streams: bool,
) -> Inputs:
    """Add the graph inputs of a batch of `n_tokens`, all but those of the embeddings."""
    n_pos = 4 if facts.arch in _MROPE else 1
    caches: dict[str, CacheInputs] = {}
    for layer in facts.layers:
        for cache in layer.caches:
            if cache.kind not in caches and cache.kind not in _STATELIKE:
                caches[cache.kind] = _cache_inputs(graph, facts, options, cache, n_tokens)
    if not caches:
        mask = graph.input(n_tokens * n_tokens * (2 if options.flash_attn else F32))
        none = Outside(0, graph.host)
        caches["none"] = CacheInputs(
            n_kv=n_tokens, n_stream=1, mask=mask, k_idxs=none, v_idxs=none, is_batch_only=True
        )
    states = graph.input(options.n_seq_max * I32)
    return Inputs(
        n_tokens=n_tokens,
        n_seqs=options.n_seq_max,
        n_outputs=n_outputs,
        options=options,
        build=build,
        positions=graph.input(n_pos * n_tokens * I32),
        out_ids=graph.input(n_outputs * I32),
        state_copy=(view(states), view(states, 0)),
        caches=caches,
        fuses_streams=fuses_streams,
        named={},
        shared=[],
    )


def add_embeddings(graph: Graph, facts: ModelFacts, build: int, n_tokens: int) -> Node:
    """`build_inp_embd`: the graph holds the branches of all kinds of batches.

    The one for mixed batches writes token rows into a copy of the embeddings, on the first
    card; nobody reads the result, so its memory is never free again.
    """
    n_bytes = facts.hp.n_embd * n_tokens * F32
    table = facts.weights.get("token_embd")
    weight = Outside(table.n_bytes if table else 0, graph.host, is_weight=True)
    tokens = graph.input(n_tokens * I32)
    graph.input(n_bytes)
    x = graph.add(Op.GET_ROWS, n_bytes, weight, tokens, rows=n_tokens)
    if mixes_batches(build) and facts.arch not in _NO_MIXED_BATCHES:
        mixed, slots = graph.input(n_tokens * I32), graph.input(n_tokens * I64)
        embeddings = graph.input(n_bytes)
        rows = graph.add(Op.GET_ROWS, n_bytes, weight, mixed, rows=n_tokens)
        merged = graph.add(Op.FRESH, n_bytes, embeddings, rows=n_tokens)
        merged.n_uses += 1
        written = graph.add(Op.STORE, 0, rows, slots, view(merged), rows=n_tokens)
        graph.extras += (mixed, slots, embeddings, rows, merged, written)
    graph.expand()
    return x


def add_ngrams(graph: Graph, facts: ModelFacts, inputs: Inputs) -> None:
    """Qwen4-exp's embedding of the last tokens, which some layers read."""
    table = facts.weights.get("per_layer_token_embd")
    value = next((w for layer in facts.layers if (w := layer.weights.get("ple_value"))), None)
    if table is None or value is None:
        return
    weight = Outside(table.n_bytes, graph.host, is_weight=True)
    n_rows = value.shape[0] // table.shape[0] * inputs.n_tokens
    n_bytes = value.shape[0] * inputs.n_tokens * F32
    index = graph.input(n_rows * I32)
    inputs.shared.append(graph.add(Op.GET_ROWS, n_bytes, weight, index, rows=n_rows))
    graph.expand()


_STATELIKE = frozenset(("recurrent", "compressed", "compressor"))
_MROPE = frozenset(
    "qwen2vl qwen3vl qwen3vlmoe qwen35 qwen35moe qwen4exp paddleocr hunyuan_vl glm4moe"
    " bailingmoe3".split()
)


def _cache_inputs(
    graph: Graph, facts: ModelFacts, options: ContextOptions, cache: Cache, n_tokens: int
) -> CacheInputs:
    hp = facts.hp
    flash = options.flash_attn
    is_ring = facts.arch == "deepseek4"
    n_stream = options.n_seq_max if is_ring else options.n_stream
    width = getattr(cache, "n_embd_k_gqa", 0) or getattr(cache, "n_embd_k", 0)
    n_cells = cache.tensor_bytes(options)[0] // row_bytes(options.type_k, width)
    v_width = 1 if flash or options.flash_attn_auto else hp.n_embd_v_gqa_max
    has_v = cache.kind in ("full", "swa") and not is_ring
    k_rot = v_rot = None
    rotates = options.type_k.is_quantized and hp.n_embd_head_k_full % 64 == 0
    if cache.kind == "indexer":
        rotates = facts.arch in _INDEXER_ROTATES
    elif cache.kind == "mla" and any(layer.is_recr for layer in facts.layers):
        rotates = False  # build_inp_mem_hybrid_k
    if rotates:
        n_rot = 64
        head = width if cache.kind == "indexer" else hp.n_embd_head_k_full
        while head % (2 * n_rot) == 0:
            n_rot *= 2
        k_rot = graph.input(n_rot * n_rot * F32)
    if has_v and options.type_v.is_quantized and hp.n_embd_head_v_full % 64 == 0:
        v_rot = graph.input(64 * 64 * F32)
    return CacheInputs(
        n_kv=n_cells // n_stream,
        n_stream=n_stream,
        mask=graph.input(_mask_bytes(facts, options, cache, n_cells // n_stream * n_tokens)),
        k_idxs=graph.input(n_tokens * I64),
        v_idxs=graph.input(n_tokens * I64 * v_width) if has_v else Outside(0, graph.host),
        k_rot=k_rot,
        v_rot=v_rot,
    )


def _mask_bytes(facts: ModelFacts, options: ContextOptions, cache: Cache, n: int) -> int:
    """A mask of `n` elements: F16 for flash attention, and always for a fused indexer.

    Block-sparse attention scores no single cells and has no mask for its indexer.
    """
    if cache.kind == "indexer":
        return 0 if facts.arch in _UNMASKED_INDEXER else 2 * n
    return (2 if options.flash_attn else F32) * n
