"""llama-server with a plan, watched over from its start to its end.

`serve.serve` starts it, `server_run` watches one process, `supervise` decides what follows
its end, `replan` relieves the card that ran out of memory, `canary` and `growth` learn what
a long prompt takes. Values and state machines are apart from what touches processes.
"""
