"""Plan, prove and run mixture-of-experts models over several cards and a lot of RAM."""

__version__ = "0.1.0"
