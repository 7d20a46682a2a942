from __future__ import annotations
from dataclasses import dataclass
from offload.ggml import GGMLType, TYPES_BY_NAME, row_bytes
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    n_ctx:int; n_batch:int=2048; n_ubatch:int=512; n_parallel:int=4; kv_unified:bool=True
    type_k:GGMLType=TYPES_BY_NAME["F16"]; type_v:GGMLType=TYPES_BY_NAME["F16"]; flash_attn:bool=True; swa_full:bool=False; offload_kqv:bool=True
@dataclass(frozen=True, slots=True, kw_only=True)
class KV:
    k:int; v:int; kind="full"
    def tensor_bytes(self,o):
        n=(o.n_ctx+255)//256*256
        r=(row_bytes(o.type_k,self.k)*n,)
        return r+((row_bytes(o.type_v,self.v)*n,) if self.v else ())
