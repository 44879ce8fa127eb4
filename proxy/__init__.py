"""Weirgate: an OpenAI-compatible gateway that keeps every conversation inside its model's context window.

The map of the house; imports run one way, from left to right:

    __main__ > commands > app > server > gateway > upstream > (dialects | store | policies | metrics | settings) > core

    __main__   the command line                    commands/  the work behind it
    app        composition root: names every fulfilment
    settings   file and environment, frozen        policies   the policy folder: load, watch, swap whole
    metrics    what is counted                     gateway    the driver: performs the steps the core asks for
    server/    faces clients: endpoints, stream, auth, guard
    dialects/  pure; chat, sse: wire formats
    upstream/  faces providers: compatible (OpenAI-shaped), counter (tokens), decoded (the message cache)
    store/     faces the database: SQLite, migrations
    core/      pure: the order of a call (exchange), identity (chain), groups, measure, compaction, ledger, overflow,
               relay, policy, usage
    catalogue/ data: windows, prices, token ranks
"""

__version__ = "0.1.0"
