"""The web process: pages over HTTP, run streams over WebSocket."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

import django
from django.conf import settings
from django.core.signals import request_started
from django.db import close_old_connections, reset_queries

from dashboard.observability.tracing import begin_reporting
from dashboard.project.database import limit_sessions
from dashboard.project.environment import ROOT
from dashboard.web.connections import Pages, raise_file_limit
from dashboard.web.downloads import pack_assets
from dashboard.web.middleware import BodyLimit
from trainer.host import bound_arenas

bound_arenas()

# Where it is installed, pyarrow imports it with its first array, and Plotly looks
# whether it is there: of two threads one would find half of it.
with suppress(ImportError):
    import_module("pandas")

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
limit_sessions(settings.DATABASES, statement_seconds=15, pooled=True)
django.setup(set_prefix=False)
begin_reporting()
pack_assets(ROOT / "static")
raise_file_limit()

# Routes import models, so they come after Django's set-up.
from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from dashboard.live.consumer import SameOrigin  # noqa: E402
from dashboard.observability.metrics import CountedSockets  # noqa: E402
from dashboard.observability.requests import RequestIds  # noqa: E402
from dashboard.pages.sockets import websocket_urlpatterns  # noqa: E402
from dashboard.web.budgets import Budgets  # noqa: E402

application = RequestIds(
    ProtocolTypeRouter(
        {
            "http": Budgets(BodyLimit(Pages())),
            "websocket": CountedSockets(
                SameOrigin(
                    AllowedHostsOriginValidator(
                        AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
                    )
                )
            ),
        }
    ),
    trusts_proxy=settings.HAS_PROXY_IDS,
)

# Pages closes old connections in the request's thread, without going there for it
# alone; queries are kept with DEBUG only.
request_started.disconnect(reset_queries)
request_started.disconnect(close_old_connections)

# All modules now, rather than at the first request.
import_module(settings.ROOT_URLCONF)
