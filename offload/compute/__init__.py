"""The compute buffers llama.cpp will reserve: `estimate_compute`."""

from offload.compute.estimate import ComputeBytes, estimate_compute
from offload.compute.inputs import Build

__all__ = ["Build", "ComputeBytes", "estimate_compute"]
