"""What an operator looks at: dashboards as code, recording rules and alerts, and pictures of both.

    panels      the words: a panel, its queries, a row, a board      overview, context, upstreams, store   the boards
    generate    writes dashboards/*.json, or checks that they are what the code gives
    server      a Prometheus of our own, asked over HTTP
    traffic     a scripted provider and clients in front of real gateways, so that every panel has something to show
    pictures    draws every board of a real run, and the answers of docs/observability.md

Nothing here runs in the product. rules/*.yaml are plain Prometheus files, with their unit tests in rules/tests.
"""
