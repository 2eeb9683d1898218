"""WebSocket addresses."""

from __future__ import annotations

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from dashboard.runs.stream.consumers import RunConsumer

websocket_urlpatterns = [
    path("ws/runs/<int:run_id>/", RunConsumer.as_asgi()),
    re_path("", WebsocketDenier.as_asgi()),  # else Channels raises: a 500
]
