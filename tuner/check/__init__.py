"""Is everything still as it was recorded: a model's header, plan, memory and prediction?

`offload.toml` (`config.py`) names models and a machine, `baseline.py` keeps what was recorded,
`plan_diff.py`, `memory_diff.py` and `prediction_check.py` compare, `run.py` goes through all
models, `text.py` and `junit.py` write the answer.
"""
