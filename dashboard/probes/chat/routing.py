"""WebSocket addresses."""

from __future__ import annotations

from django.urls import path

from dashboard.probes.chat.consumer import ChatConsumer

websocket_urlpatterns = [
    path("ws/chats/<int:chat_id>/", ChatConsumer.as_asgi()),
]
