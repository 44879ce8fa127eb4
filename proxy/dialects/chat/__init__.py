"""OpenAI's chat completions, both ways: `request` (a call in, a prompt out), `messages`, `reply` (answers and frames).

Rules are taken from OpenAI's API reference for chat completions unless a comment names another source.
"""
