"""The agents in force, and their replacement while the server runs: everything or nothing.

Belongs here: whether a file looks other than when it was last read. Never: what is read (`proxy.agents`), and no timer:
the app asks when it likes.
"""

from __future__ import annotations

import msgspec

from proxy.agents import FOLDER, Agents, Given, Reading, listing
from proxy.configfile import ConfigError, Problem
from proxy.configfile.folders import print_of


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload did: `current` is in force now. With problems it is the old set, kept whole."""

    current: Agents
    changed: bool
    problems: tuple[Problem, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether nothing was taken."""
        return bool(self.problems)


class AgentWatch:
    """The agents in force, and their replacement. Not a timer: `poll` says whether a file looks other than before.

    Reads files: call `poll` and `reload` outside the event loop. What weirgate.yaml itself says holds until a restart.
    """

    def __init__(self, given: Given) -> None:
        """Reads the files. Raises ConfigError: a server does not start on a broken configuration."""
        self._given = given
        reading = Reading(given)
        self._current = reading.agents()
        self._seen = reading.seen

    @property
    def current(self) -> Agents:
        return self._current

    def poll(self) -> Reload | None:
        """Reload if a file looks other than when last read; None if not. Never raises."""
        listed, prints = self._seen
        same = listing(self._given) == listed and all(print_of(path) == before for path, before in prints.items())
        return None if same else self.reload()

    def reload(self) -> Reload:
        """Read the files again and swap the whole set, or keep the old one and say why. Never raises."""
        reading = Reading(self._given)
        try:
            found = reading.agents()
        except ConfigError as error:
            return Reload(current=self._current, changed=False, problems=error.problems)
        except Exception as error:  # a bug in reading must not end a server that has good agents
            unexpected = Problem(file=FOLDER, message=f"cannot be read: {type(error).__name__}")
            return Reload(current=self._current, changed=False, problems=(unexpected,))
        finally:
            self._seen = reading.seen
        changed = found.hash != self._current.hash
        if changed:
            self._current = found
        return Reload(current=self._current, changed=changed)
