"""A taskset for tests: a user asks for a word, and again, until it is right.

What else its tasks do is in their data: `trouble`.
"""

import asyncio
import os
import time
from typing import Literal

import verifiers.v1 as vf

__all__ = ["Words", "WordsEnv"]
TROUBLES = Literal[
    "", "raises", "raises at the start", "hangs", "blocks", "dies", "two", "rewrites"
]


class WordData(vf.TaskData):
    word: str
    trouble: TROUBLES = ""


class Calculator(vf.Toolset[vf.SharedToolsetConfig]):
    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class WordTask(vf.Task[WordData]):
    async def setup(self, trace, runtime):
        if self.data.trouble == "raises at the start":
            raise RuntimeError("no such word")

    @vf.reward(weight=0.5)
    async def says_word(self, trace) -> float:
        return float(self.data.word in (trace.last_message.content or ""))

    @vf.reward(weight=2.0)
    async def length(self, trace) -> float:
        return 0.25

    @vf.metric
    async def num_said(self, trace) -> float:
        return float(trace.num_turns)


class WordsConfig(vf.TasksetConfig):
    words: tuple[str, ...] = ("a", "b", "c")
    trouble: TROUBLES = ""
    has_tools: bool = False


class Words(vf.Taskset[WordTask, WordsConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Calculator(vf.SharedToolsetConfig())] if config.has_tools else []

    def load(self):
        for word in self.config.words:
            data = WordData(prompt=f"{word}?", word=word, trouble=self.config.trouble)
            yield WordTask(data, self.config.task)


class WordsEnvConfig(vf.EnvConfig):
    speaker: vf.AgentConfig = vf.AgentConfig()
    other: vf.AgentConfig = vf.AgentConfig()


class WordsEnv(vf.Env[WordsEnvConfig]):
    async def setup(self, agents):
        agents.other.trainable = False

    async def run(self, task, agents):
        trouble = task.data.trouble
        async with agents.speaker.interaction(task) as speaker:
            said = await speaker.turn()
            while not said.terminated and task.data.word not in said.last_reply:
                match trouble:
                    case "raises":
                        raise RuntimeError("no more words")
                    case "hangs":
                        await asyncio.sleep(3_600)
                    case "blocks":
                        time.sleep(3_600)  # noqa: ASYNC251 - as a careless author does
                    case "dies":
                        os._exit(3)
                    case "two":
                        await agents.other.run(task)
                    case "rewrites":
                        shorter = task.with_data(prompt="2?")
                        await agents.speaker.run(shorter)
                said = await speaker.turn("1?")


if __name__ == "__main__":  # so the library starts the tools
    Calculator.run()
