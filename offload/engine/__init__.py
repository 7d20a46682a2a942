"""llama.cpp, really running: as the judge of a plan and as the one who carries it out.

Everything here is an edge: it starts processes. llama.cpp always runs in a child,
so that its aborts, exits and out-of-memory reach the caller as `LlamaCppError`.
Nothing is re-exported, because the children import this package and must start fast:

- `virtual_cards.virtual_cards(n)`: n cards played by loopback RPC servers
- `dry_run.dry_run(options, ...)`: what llama.cpp would allocate where, no weights loaded
- `generate.generate(options, ...)`: a real run of a few tokens, with what it allocated
- `binaries`: the user's own llama.cpp programs; `log`: what llama.cpp says
"""
