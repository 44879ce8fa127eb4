"""A pytest plugin for `run`: properties try the same examples each time, and end at the first that fails.

Nobody reads these failures: to make an example small takes a minute, and tells nothing here.
"""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "quickly", deadline=None, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
