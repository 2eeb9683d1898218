"""Reward models, in a process of their own: rules import no torch, but may ask one.

One process has all the models of a run's process, however many score beside it, so each
is in memory once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from trainer.rewards.child import Child, NoReply

# Reading torch takes some seconds, a large model's weights minutes, more from a hub.
_LOAD_SECONDS = 1_800.0
_ANSWER_SECONDS = 600.0
# Where the hub's files lie, and which GPU is ours. The token is for private models.
_KEPT = (
    "HOME", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN",
    "HF_TOKEN_PATH", "XDG_CACHE_HOME", "HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "LOCAL_RANK",
)  # fmt: skip


class NoScores(Exception):
    """The model could not be asked; the text says why."""


class Classifiers:
    """The process, which starts with the first question. Any thread may ask."""

    def __init__(self, module: str = "trainer.model.classifier_process") -> None:
        self._module = module
        self._child: Child | None = None
        self._loaded: set[str] = set()
        self._lock = Lock()

    def scores(
        self,
        settings: Mapping[str, Any],
        conversations: Sequence[Sequence[Mapping[str, str]]],
    ) -> list[float]:
        """A number for each conversation; without any, the model is loaded.

        Raises:
            NoScores: the model cannot be loaded, or its process was lost twice.
        """
        question = {"settings": settings, "conversations": conversations}
        with self._lock:
            try:
                reply = self._ask(question)
            except NoReply:
                try:
                    reply = self._ask(question)
                except NoReply as loss:
                    raise NoScores(
                        f"The process of the reward model {settings['path']} was lost "
                        f"twice: {loss}. Is there memory left? Set its device to cpu, "
                        "or lower batch_tokens."
                    ) from None
        if "problem" in reply:
            raise NoScores(reply["problem"])
        scores: list[float] = reply["scores"]
        return scores

    def close(self) -> None:
        child = self._child
        if child is not None:
            child.kill()  # a thread that waits for it learns of that
        with self._lock:
            self._let_go()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        key = repr(question["settings"])
        try:
            child = self._running()
            child.write(question)
            seconds = _ANSWER_SECONDS if key in self._loaded else _LOAD_SECONDS
            reply = child.read(timeout_seconds=seconds)
        except NoReply:
            self._let_go()
            raise
        self._loaded.add(key)
        return reply

    def _running(self) -> Child:
        if self._child is None:
            kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
            self._child = Child(self._module, environment=kept)
            self._child.read(timeout_seconds=_LOAD_SECONDS)
        return self._child

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.end()
        self._child = None
        self._loaded.clear()
