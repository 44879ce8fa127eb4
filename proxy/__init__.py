"""Weirgate: an OpenAI-compatible gateway that keeps every conversation inside its model's context window.

The map of the house; imports run one way, from left to right:

    __main__ > commands > app > server > (passing | explaining | conversing) > turn > gateway > snapshots
        > (summarising | playing | layering) > (attempt | calibration | retries | tally) > showing
        > (leases | health | metering | refusals)
        > (tools | upstream | check) > (dialects | store | policies | metrics | settings | tracing) > agents
        > (catalogue | configfile | naming | logs | counted) > core

    __main__   the command line                    commands/  the work behind it
    app        composition root: names every fulfilment
    server/    faces clients: endpoints, stream, auth, guard (of connections), places (of requests), conversations that
               we keep, the operator's routes (operated, admin_*)
    gateway    the driver: performs the steps the core asks for
    conversing who may speak in a conversation that we keep                  turn       one turn of it, to its end
    snapshots  what one call may know, gathered once                     layering  the operator's prompts for a call
    playing    whose turn it is: loop, worker, or nobody's behind a client that left
    showing    what one client is shown, however many upstream calls it takes
    attempt    one upstream call                   calibration  what upstreams taught us
    summarising  one call of a summary model       passing    one call without a conversation
    explaining   what a call would send, unsent    retries    the retry budget
    leases     who may compact a branch now       metering  what each key uses of its limits
    refusals   what a provider's status means to our client             health  how each upstream does
    upstream/  faces providers: compatible (OpenAI-shaped) over our own HTTP/1.1 (http1, pool, dial), counter (tokens),
               decoded (the message cache), beginnings (known histories)
    tools/     what a model may call in us: skills (files, folders, the library), load_skill, read_tool_result,
               questions (ask_user, request_approval)
    dialects/  pure; chat, embeddings, sse: wire formats
    store/     faces the database: SQLite, PostgreSQL (postgres_*), migrations; statements, written in composing*;
               conversations that we keep: owned (the contract), conversations (its verbs), owned_work
    settings   file and environment, frozen        policies   the policy folder: load, watch, swap whole
    agents/    virtual models and the operator's prompt: keys, load, watch, swap whole
    check      all of them, judged together        metrics    what is counted (counted: as what), tally: by one call
    tracing    spans of upstream calls, for a collector
    catalogue/ data: windows, prices, token ranks  configfile/  YAML with its line numbers     naming  ids of ours
    logs       its own lines on stderr
    core/      pure: the order of a call (exchange, branch, telling), identity (chain, recognition), groups, measure,
               overflow, relay, policy, usage; own tools (rounds, pauses); memory (pacing, turned, replayed,
               recollection, folding); compacting (compaction, tail, pins, ledger, completing, rules, kept, render), the
               narrative (narrating, summary, quoting, fence, gate, guards, language), the command, redaction; the
               account of a call (explaining, explanation, rehearsal, layout, shares), benefit; a kept conversation,
               block by block (unfolded); what is to be awaited for work that seldom waits (done)
"""

__version__ = "0.1.0"
