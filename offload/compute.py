from dataclasses import dataclass
@dataclass(frozen=True)
class ComputeBytes:
    devices:tuple; host:int
def estimate_compute(model, options, split, host_tensors, backends, *, op_offload, n_outputs, has_overrides):
    return ComputeBytes(tuple(300<<20 for _ in backends), 100<<20)
