"""Running a piece of code in a sandbox, for tests that attack it."""

import json
import textwrap
from typing import Any

from trainer.rewards.sandbox.levels import Level
from trainer.rewards.sandbox.limits import Limits
from trainer.rewards.sandbox.slot import Answer, Slot


class Caller:
    def __init__(self, level: Level) -> None:
        self.level = level
        self.slot = Slot(level)

    def call(self, body: str, **limits: Any) -> Answer:
        """Run the body of a reward function."""
        source = "def reward():\n" + textwrap.indent(textwrap.dedent(body), "    ")
        question = {"source": source, "arguments": {}}
        return self.slot.ask("function", [question], Limits(**limits))

    def reply(self, body: str, **limits: Any) -> Any:
        """What came back; None without a reply."""
        replies = self.call(body, **limits).replies
        return json.loads(replies[0]) if replies else None

    def error(self, body: str, **limits: Any) -> str:
        reply = self.reply(body, **limits)
        return str(reply["error"]) if reply and "error" in reply else ""
