"""The pure core: what a call means, decided without touching the world.

No I/O, clock, randomness, environment or logging here; the standard library and msgspec only.
Words stand in `conversation`, `events`, `errors`, `usage`, `policy`, `steps`; rules in the files that use them.
"""
