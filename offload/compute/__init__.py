"""The compute buffers llama.cpp will reserve: `estimate_compute`."""

from offload.compute.builds import NEWEST_BUILD, OLDEST_BUILD
from offload.compute.estimate import ComputeBytes, estimate_compute

__all__ = ["NEWEST_BUILD", "OLDEST_BUILD", "ComputeBytes", "estimate_compute"]
