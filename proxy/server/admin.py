"""The operator's routes under /v1/weirgate/, all of them; those for calibrations and reload stand here. The command
line speaks to them, since one process owns the database file. Who may use them: `operated`.
"""

from __future__ import annotations

from proxy.server.admin_keys import key_routes
from proxy.server.admin_state import Configuration, ConversationList, ConversationState, UpstreamList
from proxy.server.admin_usage import Usage
from proxy.server.desk import Desk
from proxy.server.endpoints import Endpoint, Scope, send_json
from proxy.server.operated import Admin, Operated
from proxy.server.stream import Answering, Receive


class CalibrationList(Operated):
    """GET /v1/weirgate/calibrations: the windows and ratios learned from upstreams."""

    route = "/v1/weirgate/calibrations"

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        await send_json(answering, {"object": "list", "data": list(self.desk.gateway.calibrations.known)})
        return 200


class Reload(Operated):
    """POST /v1/weirgate/reload: read the policies again; what is wrong with them, if anything."""

    route = "/v1/weirgate/reload"
    methods = ("POST",)

    async def work(self, scope: Scope, receive: Receive, answering: Answering) -> int:
        self.authorise(scope["headers"])
        problems = await self.admin.reload()
        await send_json(answering, {"taken": not problems, "problems": list(problems)})
        return 200


def admin_routes(desk: Desk, admin: Admin) -> tuple[Endpoint, ...]:
    """All of them; each is known by its `route`."""
    looking = (Usage, ConversationList, ConversationState, UpstreamList, Configuration)
    kinds = (*looking, CalibrationList, Reload)
    return (*(kind(desk, admin) for kind in kinds), *key_routes(desk, admin))
