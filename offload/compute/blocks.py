"""Which operations do norms, projections and feed-forward blocks add, in which order?

Mirrors `llm_graph_context::build_norm`, `build_lora_mm`, `build_lora_mm_id`, `build_ffn`
and `build_moe_ffn` (src/llama-graph.cpp, b11434). The order of the operations decides what
is alive together; it is that of `ggml_build_forward_expand`, operands first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offload.compute.facts import LayerFacts, ModelFacts
from offload.compute.graph import Graph, Node, Op, Outside, Source, view
from offload.compute.inputs import F32, Inputs
from offload.ggml import GGMLType

_MEAN_NORMS: Final = frozenset(
    "bloom codeshell cohere2 cohere2moe command-r dbrx falcon gpt2 gptneox jais mpt nemotron olmo"
    " orion phi2 stablelm starcoder starcoder2".split()
)
"""Models whose norms subtract the mean (`GGML_OP_NORM`), which does not work in place."""


class Builder:
    """Adds one layer's operations to `graph`; `rows` is the number of tokens just now.

    `owner` is the backend of the layer, `homes` those of the weights that are elsewhere,
    `cache_home` that of its caches, which `--no-kv-offload` keeps on the host.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Inputs,
        facts: ModelFacts,
        layer: LayerFacts,
        owner: int,
        homes: Mapping[str, int],
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        self.hp = facts.hp
        self.arch = facts.arch
        self.layer = layer
        self.owner = owner
        self.cache_home = owner if inputs.options.offload_kqv else graph.host
        self.rows = inputs.n_tokens
        self._homes = homes
        self._weights: dict[str, Outside] = {}

    def has(self, name: str) -> bool:
        """Whether the layer has this weight."""
        return name in self.layer.weights

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight, fastest dimension first."""
        return self.layer.weights[name].shape

    def weight(self, name: str) -> Outside:
        """A weight as an operand; the same object each time, since it is copied once."""
        found = self._weights.get(name)
        if found is None:
            weight = self.layer.weights[name]
            home = self._homes.get(weight.name, self.owner)
            found = self._weights[name] = Outside(weight.n_bytes, home, is_weight=True)
            found.stuck = self.inputs.options.no_host and weight.repacks
        return found

    def input(self, name: str, n_bytes: int) -> Outside:
        """The graph input of this name, made when it is first asked for."""
        found = self.inputs.named.get(name)
        if found is None:
            found = self.inputs.named[name] = self.graph.input(n_bytes)
        return found

    def first(self, *names: str) -> tuple[Outside, ...]:
        """The first of these weights that the layer has, or nothing."""
        return next(((self.weight(name),) for name in names if self.has(name)), ())

    def width(self, source: Source) -> int:
        """Floats per token of a tensor."""
        return source.n_bytes // F32 // self.rows

    def fresh(self, width: int, *operands: Source) -> Node:
        """An operation whose result, `width` floats per token, takes new memory."""
        return self.graph.add(Op.FRESH, width * self.rows * F32, *operands, rows=self.rows)

    def fresh_bytes(self, n_bytes: int, *operands: Source) -> Node:
        """As `fresh`, with the size of the whole result."""
        return self.graph.add(Op.FRESH, n_bytes, *operands, rows=self.rows)

    def rowwise(self, first: Source, *operands: Source) -> Node:
        """An element-wise operation on `first`, in its memory where nobody else needs it."""
        return self.graph.add(Op.ROWWISE, first.n_bytes, first, *operands, rows=self.rows)

    def chain(self, first: Source, n: int) -> Source:
        """`n` element-wise operations in a row."""
        for _ in range(n):
            first = self.rowwise(first)
        return first

    def rope(self, x: Source) -> Node:
        """`ggml_rope_ext`."""
        return self.graph.add(Op.ROPE, x.n_bytes, x, self.inputs.positions, rows=self.rows)

    def cache_bytes(self, *kinds: str) -> tuple[int, ...]:
        """Bytes of each tensor of the layer's first cache of these kinds; zeros without one.

        They count where they are read on another backend.
        """
        for cache in self.layer.caches:
            if cache.kind in kinds:
                return cache.tensor_bytes(self.inputs.options)
        return 0, 0

    def in_f16(self, cache: Source, type_: GGMLType) -> Source:
        """Keys or values for flash attention, which llama.cpp casts from F32 but no other type."""
        if type_.name != "F32" or not isinstance(cache, Outside):
            return cache
        return self.fresh_bytes(cache.n_bytes // 2, view(cache))

    def attend(
        self, width: int, q: Source, k: Source, v: Source, mask: Source, *sinks: Outside
    ) -> Node:
        """`ggml_flash_attn_ext` over a cache; `v` is `k` where values are a part of the keys."""
        n_bytes = width * self.rows * F32
        if self.owner in self.graph.cache_copiers:
            n_bytes += self._cache_copy_bytes(k, self.inputs.options.type_k)
            n_bytes += 0 if v is k else self._cache_copy_bytes(v, self.inputs.options.type_v)
        operands = (view(q), view(k), view(v), mask, *sinks)
        node = self.graph.add(Op.ATTENTION, n_bytes, *operands, rows=self.rows)
        self.graph.attention.append((node, self.owner))
        return node

    @staticmethod
    def _cache_copy_bytes(cache: Source, type_: GGMLType) -> int:
        """What CUDA's kernels add to the result for an F16 copy of a cache of another type.

        Mirrors `ggml_cuda_flash_attn_ext_get_f16_extra_data` (ggml/src/ggml-cuda/
        fattn-common.cuh, b11434) for the kernels of large batches, which all need it.
        """
        if type_.name == "F16" or not isinstance(cache, Outside):
            return 0
        return 128 + cache.n_bytes // type_.block_bytes * type_.block_size * 2

    def store(self, cache: Outside, *operands: Source) -> None:
        """Write into a cache."""
        self.graph.add(Op.STORE, 0, *operands, view(cache), rows=self.rows)
        self.graph.expand()

    def scatter(self, target: Node, *operands: Source) -> Source:
        """Write some rows of `target`, which is no cache; the result is `target` again."""
        self.graph.add(Op.STORE, 0, *operands, view(target), rows=self.rows)
        return view(target)

    def take_outputs(self, x: Source) -> Node:
        """Keep the rows of tokens whose logits are wanted; the caller sets `rows`."""
        n_bytes = self.width(x) * self.inputs.n_outputs * F32
        return self.graph.add(
            Op.GET_ROWS, n_bytes, x, self.inputs.out_ids, rows=self.inputs.n_outputs
        )

    def mul_mat(self, name: str, x: Source) -> Node:
        """`build_lora_mm` and the weight's scale, if it has one."""
        shape = self.shape(name)
        node = self.fresh(shape[1] if len(shape) > 1 else 1, self.weight(name), x)
        if self.has(name + ".scale"):
            return self.rowwise(node, self.weight(name + ".scale"))
        return node

    def linear(self, name: str, x: Source) -> Node:
        """`mul_mat`, then the bias if there is one."""
        node = self.mul_mat(name, x)
        if self.has(name + ".bias"):
            return self.rowwise(node, self.weight(name + ".bias"))
        return node

    def norm(self, x: Source, *names: str) -> Node:
        """`build_norm` with the first of `names` that the layer has."""
        is_mean = self.arch in _MEAN_NORMS
        node = self.fresh_bytes(x.n_bytes, x) if is_mean else self.rowwise(x)
        for name in names:
            if self.has(name):
                node = self.rowwise(node, self.weight(name))
                if self.has(name + ".bias"):
                    node = self.rowwise(node, self.weight(name + ".bias"))
                break
        return node

    def ffn(self, x: Source, suffix: str = "") -> Node:
        """`build_ffn`: gate and up in parallel, the activation, down."""
        down = "ffn_down" + suffix
        if self.arch == "kimi-k3":
            hidden = self._situ("ffn_gate" + suffix, "ffn_up" + suffix, x)
        elif self.has("ffn_gate" + suffix):
            gate = self.linear("ffn_gate" + suffix, x)
            up = self.linear("ffn_up" + suffix, x)
            hidden = self.fresh(self.width(gate), gate, up)
        else:
            up = self.linear("ffn_up" + suffix, x)
            n_ff = self.shape(down)[0]
            is_fused = self.width(up) == 2 * n_ff
            hidden = self.fresh(n_ff, up) if is_fused else self.rowwise(up)
        return self.linear(down, hidden)

    def _situ(self, gate: str, up: str, x: Source, top: Source | None = None) -> Node:
        """Kimi K3's activation, of which each factor is made of several operations."""

        def project(name: str) -> Node:
            return self.mul_mat(name, x) if top is None else self._experts(name, x, top)

        gated = project(gate)
        act = self.rowwise(self.chain(gated, 3), self.rowwise(gated))
        return self.rowwise(act, self.chain(project(up), 3))

    def moe(
        self, x: Source, *, logits: Node | None = None, norm: str = "", weigh_first: bool = False
    ) -> Node:
        """`build_moe_ffn`: route, up and gate, activation, down, the experts' weighted sum.

        `norm` is applied after routing by `logits`; `weigh_first` multiplies the tokens,
        not the results, by the weights.
        """
        n_used = self.layer.n_expert_used
        top, weights = self._route(x, logits)
        tokens: Source = view(self.norm(x, norm)) if norm else view(x)
        for name in ("ffn_routed_down", "ffn_latent_down"):
            if self.has(name):
                tokens = view(self.linear(name, x))
        if weigh_first:
            tokens = self.rowwise(self.fresh(self.hp.n_embd * n_used, tokens), weights)
        if self.has("ffn_gate_up_exps"):
            both = self._experts("ffn_gate_up_exps", tokens, top)
            hidden = self.fresh(self.width(both) // 2, view(both), view(both))
        elif self.arch == "kimi-k3":
            hidden = self._situ("ffn_gate_exps", "ffn_up_exps", tokens, top)
        elif self.has("ffn_gate_exps"):
            gate = self._experts("ffn_gate_exps", tokens, top)
            up = self._experts("ffn_up_exps", tokens, top)
            hidden = self.fresh(self.width(gate), gate, up)
        else:
            hidden = self.rowwise(self._experts("ffn_up_exps", tokens, top))
        out = self._experts("ffn_down_exps", hidden, top)
        if not weigh_first:
            out = self.rowwise(out, weights)
        return self._sum_experts(out)

    def _route(self, x: Source, logits: Node | None) -> tuple[Source, Source]:
        """The chosen experts and their weights."""
        n_used = self.layer.n_expert_used
        if logits is None:
            logits = self.linear("ffn_gate_inp", x)
        n_expert = self.width(logits)
        if self.has("ffn_gate_tid2eid"):
            return self._route_by_token(logits)
        probs = self.rowwise(logits)
        selection: Source = probs
        if self.has("exp_probs_b.bias"):
            selection = self.rowwise(probs, self.weight("exp_probs_b.bias"))
        if self.hp.n_expert_groups > 1:
            selection = self._mask_groups(selection, n_expert)
        order = self.fresh(n_expert, selection)
        top = view(order, (n_expert * (self.rows - 1) + n_used) * F32)
        weights = self.fresh(n_used, view(probs), top)
        total = self.rowwise(self.fresh(1, view(weights)))
        return top, view(self.rowwise(view(weights), total))

    def _route_by_token(self, logits: Node) -> tuple[Source, Source]:
        """Experts by a table of tokens (the first layers of DeepSeek V4)."""
        n_used, weight = self.layer.n_expert_used, self.weight("ffn_gate_tid2eid")
        n_bytes = n_used * self.rows * F32
        top = view(self.graph.add(Op.GET_ROWS, n_bytes, weight, rows=self.rows))
        weights = self.fresh(n_used, view(self.rowwise(logits)), top)
        total = self.rowwise(self.fresh(1, view(weights)))
        return top, view(self.rowwise(view(weights), total))

    def _mask_groups(self, selection: Source, n_expert: int) -> Source:
        """Only the best groups of experts may be chosen from."""
        n_groups, n_group_used = self.hp.n_expert_groups, self.hp.n_group_used
        order = self.fresh(n_expert, view(selection))
        best = self.fresh(2 * n_groups, view(selection), view(order))
        scores = self.fresh(n_groups, view(best))
        groups = view(self.fresh(n_groups, view(scores)))
        chosen = self.fresh(n_expert // n_groups * n_group_used, view(selection), groups)
        masked = self.fresh(n_expert, view(selection))
        return self.scatter(masked, chosen, groups)

    def _experts(self, name: str, x: Source, top: Source) -> Node:
        """`build_lora_mm_id`, its scale and its bias."""
        node = self.fresh(self.shape(name)[1] * self.layer.n_expert_used, self.weight(name), x, top)
        scale = name + ".scale" if self.has(name + ".scale") else ""
        if name == "ffn_gate_up_exps" and self.has("ffn_up_exps.scale"):
            scale = "ffn_up_exps.scale"
        if scale:
            repeated = self.fresh(self.shape(scale)[0], view(self.weight(scale)))
            chosen = self.fresh(self.layer.n_expert_used, repeated, top)
            node = self.rowwise(node, chosen)
        if self.has(name + ".bias"):
            node = self.rowwise(node, self.weight(name + ".bias"), top)
        return node

    def _sum_experts(self, out: Node) -> Node:
        n_used, width = self.layer.n_expert_used, self.shape("ffn_down_exps")[1]
        n_slice = out.n_bytes - (n_used - 1) * width * F32
        parts = [view(out, n_slice) for _ in range(n_used)]
        if n_used == 1:
            return self.fresh(width, parts[0])
        total = self.fresh(width, parts[0], parts[1])
        for part in parts[2:]:
            total = self.rowwise(total, part)
        self.graph.expand()
        return total
