"""What does a unit of work cost on a machine nobody has measured? Marked as priors."""

from offload.priors.cards import CardSheet, find_card
from offload.priors.guess import link_bytes_per_s, make_priors

__all__ = ["CardSheet", "find_card", "link_bytes_per_s", "make_priors"]
