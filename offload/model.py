from __future__ import annotations
import enum, re
from dataclasses import dataclass
from functools import cached_property
from offload.context import KV
class Role(enum.StrEnum):
    EXPERT="expert"; SHARED_EXPERT="shared_expert"; ROUTER="router"; ATTENTION="attention"; FFN="ffn"; NORM="norm"; INPUT="input"; OUTPUT="output"; OTHER="other"
@dataclass(frozen=True)
class Tensor:
    name:str; type:object; shape:tuple; n_bytes:int; role:Role; il:object; part:str; home:str; loaded:bool=True; duplicated:bool=False
@dataclass(frozen=True)
class Layer:
    il:int; kind:str; caches:tuple; is_nextn:bool=False
@dataclass(frozen=True)
class Model:
    path:str; arch:str; name:str; n_layer:int; n_layer_nextn:int; n_embd:int; n_vocab:int; n_ctx_train:int; n_expert:int; n_expert_used:int; size_bytes:int; expert_bytes:int; n_files:int; hparams:dict; layers:tuple; tensors:tuple; output_is_tied:bool; warnings:tuple=()
    @cached_property
    def expert_tensors(self): return tuple(t for t in self.tensors if t.role is Role.EXPERT)
    @cached_property
    def tensor_names(self): return tuple(t.name for t in self.tensors)
    @cached_property
    def expert_layers(self): return frozenset(t.il for t in self.expert_tensors)
    @property
    def token_embedding(self): return next(t for t in self.tensors if t.name=="token_embd.weight")
def make_model(h):
    m=h.metadata; a=m["general.architecture"]; g=lambda k,d=0: m.get(f"{a}.{k}",d)
    L=g("block_count"); nn=g("nextn_predict_layers",0)
    ts=[]
    for t in h.tensors:
        mm=re.match(r"blk\.(\d+)\.(.*)",t.name); il=int(mm[1]) if mm else None
        role=Role.OTHER; home="layer" if mm else "output"
        if mm and re.match(r"ffn_(up|down|gate|gate_up)_(ch)?exps",mm[2]): role=Role.EXPERT
        if t.name.startswith("token_embd"): home="input"
        ts.append(Tensor(t.name,t.type,t.shape,t.n_bytes,role,il,"weight",home,loaded=il is None or il<L-nn))
    kl=g("attention.kv_lora_rank",0)
    if kl: kv=KV(k=kl+g("rope.dimension_count"),v=0)
    else: kv=KV(k=g("attention.key_length",128)*g("attention.head_count_kv",8), v=g("attention.value_length",128)*g("attention.head_count_kv",8))
    layers=tuple(Layer(i,"full",(kv,) if i<L-nn else (),i>=L-nn) for i in range(L))
    return Model(h.path,a,m.get("general.name",""),L,nn,g("embedding_length"),g("vocab_size"),g("context_length"),g("expert_count"),g("expert_used_count"),sum(t.n_bytes for t in h.tensors),sum(t.n_bytes for t in ts if t.role is Role.EXPERT),h.n_files,{},layers,tuple(ts),not any(t.name=="output.weight" for t in ts))
