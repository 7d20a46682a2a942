"""What does llama.cpp know about a model once its metadata is read?

Mirrors `llama_hparams` of src/llama-hparams.h and its getters (b11434), with
its names. What may differ between layers is a tuple of one value per layer,
MTP blocks included.
"""

from __future__ import annotations

from typing import NamedTuple


class HParams(NamedTuple):
    """Resolved hyper-parameters.

    `n_layer_all` counts every block, `n_layer_nextn` the MTP blocks among them.
    `n_loops` is how often the file's blocks run, each time with caches of their own.
    `router_layer` and `n_layer_kv_from_start` are -1 where they do not apply.
    """

    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_embd_out: int
    n_embd_per_layer: int
    n_layer_all: int
    n_layer_nextn: int
    n_loops: int
    n_layer_dense_lead: int
    n_layer_kv_from_start: int
    router_layer: int
    causal_attn: bool

    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    n_embd_head_k_full: int
    n_embd_head_v_full: int
    n_embd_head_k_swa: int
    n_embd_head_v_swa: int
    n_embd_head_k_mla: int
    n_embd_head_v_mla: int
    n_rot_full: int
    n_rot_swa: int
    n_lora_q: int
    n_lora_kv: int

    n_expert: int
    n_expert_used: tuple[int, ...]
    n_ff_exp: tuple[int, ...]
    n_expert_shared: int
    n_ff_shexp: int
    n_ff_chexp: int
    n_expert_groups: int
    n_group_used: int
    n_moe_layer_step: int
    moe_latent_size: int
    n_expert_latent: int

    swa_type: str
    n_swa: int
    is_swa: tuple[bool, ...]
    is_recr: tuple[bool, ...]
    is_indexer_full: tuple[bool, ...]

    ssm_d_conv: int
    ssm_d_inner: int
    ssm_d_state: int
    ssm_dt_rank: int
    ssm_n_group: int
    wkv_head_size: int
    token_shift_count: int
    n_shortconv_l_cache: int
    n_embd_head_kda: int
    n_embd_head_la: int

    indexer_n_head: int
    indexer_head_size: int
    indexer_top_k: int
    indexer_block_size: int
    indexer_kpool: int
    indexer_kpool_row: int
    compress_ratios: tuple[int, ...]
    hc_mult: int
    ple_conv_state: int
    is_ple: tuple[bool, ...]

    n_deepstack_layers: int
    f_max_alibi_bias: float
    f_attn_logit_softcapping: float
    f_final_logit_softcapping: float

    @property
    def n_layer(self) -> int:
        """Blocks of the trunk: all but the MTP ones."""
        return self.n_layer_all - self.n_layer_nextn

    @property
    def is_mla(self) -> bool:
        """True where the cache holds one latent key per token and no values."""
        return self.n_embd_head_k_mla != 0 and self.n_embd_head_v_mla != 0

    def n_embd_head_k(self, il: int) -> int:
        """Size of one key head in layer `il`."""
        return self.n_embd_head_k_swa if self.is_swa[il] else self.n_embd_head_k_full

    def n_embd_head_v(self, il: int) -> int:
        """Size of one value head in layer `il`."""
        return self.n_embd_head_v_swa if self.is_swa[il] else self.n_embd_head_v_full

    def n_embd_k_gqa(self, il: int) -> int:
        """Keys of one token over all KV heads of layer `il`."""
        return self.n_embd_head_k(il) * self.n_head_kv[il]

    def n_embd_v_gqa(self, il: int) -> int:
        """Values of one token over all KV heads of layer `il`."""
        return self.n_embd_head_v(il) * self.n_head_kv[il]

    @property
    def n_embd_v_gqa_max(self) -> int:
        """The widest layer's values, to which all are padded without flash attention."""
        return max(self.n_embd_v_gqa(il) for il in range(self.n_layer_all))

    @property
    def n_embd_r(self) -> int:
        """Elements of one sequence's rolling state (convolution or token shift) in one layer."""
        if self.wkv_head_size:
            return self.token_shift_count * self.n_embd
        if self.n_shortconv_l_cache:
            return self.n_embd * (self.n_shortconv_l_cache - 1)
        d_conv = self.ssm_d_conv
        if self.n_embd_head_kda:
            d_inner = self.n_head[0] * self.n_embd_head_kda
            return 3 * (d_conv - 1 if d_conv else 3) * d_inner
        width = self.ssm_d_inner + 2 * self.ssm_n_group * self.ssm_d_state
        return max(d_conv - 1, 0) * width

    @property
    def n_embd_s(self) -> int:
        """Elements of one sequence's recurrent state in one layer."""
        if self.wkv_head_size:
            return self.n_embd * self.wkv_head_size
        head = self.n_embd_head_kda or self.n_embd_head_la
        if head:
            return head * head * self.n_head[0]
        return self.ssm_d_state * self.ssm_d_inner
