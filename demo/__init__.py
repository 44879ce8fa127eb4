"""The demo: a real model, a conversation that outgrows its window, directly and through the gateway.

    run           the order of things                  model_server  the model itself, in an environment of its own
    conversation  what the person says                 model         installs and starts it
    talk          one conversation over the SDK        gateway       starts weirgate and asks it for its rows
    screen        everything that is printed           children      programs, started and stopped by their ids
    prices        what the same tokens would cost
    picture       docs/picture.svg from saved data    tool_calls    a chat template with which the model calls tools

No part of the package `proxy` rests on it.
"""
