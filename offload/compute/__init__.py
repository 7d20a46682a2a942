"""The compute buffers llama.cpp will reserve: `estimate_compute`."""

from offload.compute.estimate import ComputeBytes, estimate_compute

__all__ = ["ComputeBytes", "estimate_compute"]
