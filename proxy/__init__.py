"""Weirgate: an OpenAI-compatible gateway that keeps every conversation inside its model's context window.

The map of the house; imports run one way, from left to right:

    __main__ > commands > app > server > (passing | explaining) > gateway > (summarising | playing)
        > (attempt | calibration | retries) > (leases | refusals) > (tools | upstream | check)
        > (dialects | store | policies | metrics | settings) > agents > (catalogue | configfile | naming | logs) > core

    __main__   the command line                    commands/  the work behind it
    app        composition root: names every fulfilment
    server/    faces clients: endpoints, stream, auth, guard, the operator's routes
    gateway    the driver: performs the steps the core asks for
    playing    whose turn it is: loop, worker, or nobody's behind a client that left
    attempt    one upstream call                   calibration  what upstreams taught us
    summarising  one call of a summary model       passing    one call without a conversation
    explaining   what a call would send, unsent    retries    the retry budget
    leases     who may compact a branch now
    refusals   what a provider's status means to our client
    upstream/  faces providers: compatible (OpenAI-shaped) over our own HTTP/1.1 (http1, pool, dial), counter (tokens),
               decoded (the message cache), beginnings (known histories)
    tools/     what a model may call in us: skills (files, folders, the library), load_skill, read_tool_result
    dialects/  pure; chat, embeddings, sse: wire formats
    store/     faces the database: SQLite, migrations
    settings   file and environment, frozen        policies   the policy folder: load, watch, swap whole
    agents/    virtual models and the operator's prompt: keys, load, watch, swap whole
    check      all of them, judged together        metrics    what is counted
    catalogue/ data: windows, prices, token ranks  configfile/  YAML with its line numbers     naming  ids of ours
    logs       its own lines on stderr
    core/      pure: the order of a call (exchange, branch, telling), identity (chain, recognition), groups, measure,
               overflow, relay, policy, usage; memory (pacing, turned, replayed, recollection, folding); compacting
               (compaction, tail, pins, ledger, completing, rules, kept, render), the narrative (narrating, summary,
               quoting, fence, gate, guards, language), the command, redaction; the account of a call (explaining,
               explanation, rehearsal, layout, shares)
"""

__version__ = "0.1.0"
