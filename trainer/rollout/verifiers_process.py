"""The process in which verifiers plays episodes, without any package of the engine.

`python -m trainer.rollout.verifiers_process TASKSET OPTIONS`, in an interpreter that
has verifiers and the taskset, takes and writes lines of JSON. An episode begins with

    {"episode": 1, "task": {…}, "messages": […], "tools": […], "turn": {…}, …}

the prompt, and the turn that the policy has taken already. Then come

    {"episode": 1, "messages": [{"role": "user", "content": "…"}], "seconds": 0.1}

with what stands behind that turn. Each is answered by

    {"episode": 1, "turn": {…}, "finish": "stop", "seconds": 8}

or without a turn where the policy takes no more. The last line of an episode is

    {"episode": 1, "end": "done", "reward": 1.0, "metrics": {}, "seconds": 0.1}

To the library the policy is a client of a model's server. It gives texts and no tokens,
so nothing that was sampled is encoded again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import verifiers.v1 as vf
from openai import AsyncOpenAI, BadRequestError, omit
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.interception import server
from verifiers.v1.utils import loaders

from trainer.rewards.child import questions, send, take_over_stdout

__all__ = ["ChatHarness"]  # the one that the library finds here
HARNESS = "cohort_chat"


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]  # not installed here
    """Talks in this process; those of the library start a program that uv fetches."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        opening = [vf.SystemMessage(content=system)] if system else []
        asked = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
        messages = [message_to_wire(message) for message in (*opening, *asked)]
        servers = {name: {"url": url} for name, url in mcp_urls.items()}
        policy = AsyncOpenAI(
            base_url=endpoint, api_key=secret, max_retries=0, timeout=None
        )
        async with policy, AsyncExitStack() as stack:
            tools, *places = await connect_mcp({"mcpServers": servers}, stack)
            ask = partial(policy.chat.completions.create, model=ctx.model)
            with suppress(BadRequestError):  # the policy, or the task, takes no more
                while messages[-1]["role"] != "assistant":
                    completion = await ask(messages=messages, tools=tools or omit)
                    message = completion.choices[0].message
                    messages.append(message.model_dump(exclude_none=True))
                    for call in message.tool_calls or ():
                        content = await _result(call.function, *places)
                        about = {"tool_call_id": call.id, "name": call.function.name}
                        messages.append({"role": "tool", "content": content} | about)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _result(function: Any, places: Any, servers: Any) -> Any:
    """Return what a tool says, or what the policy reads of a call that is none."""
    try:
        arguments = json.loads(function.arguments)
        if function.name not in places or not isinstance(arguments, dict):
            raise ValueError("no such tool, or its arguments are no JSON object")
    except ValueError as error:
        return f"error: {error}"
    return await call_mcp(servers, places, function.name, arguments)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return what a chat template reads of a message."""
    parts = message.get("content") or ""
    if not isinstance(parts, str):
        if any(part["type"] != "text" for part in parts):
            raise vf.ProviderError("A message is more than text.")
        parts = "".join(part["text"] for part in parts)
    names = ("name", "tool_call_id", "tool_calls")
    kept = {name: message[name] for name in names if message.get(name)}
    return {"role": message["role"], "content": parts, **kept}


class _Episode:
    """A task that is played; without a prompt, only to see what it asks first."""

    def __init__(self, question: dict[str, Any], write: Callable[[Any], Any]) -> None:
        self._number, self._write = question["episode"], write
        self._said, self._tools = question["messages"], question["tools"]
        self.turns: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_rewritten, self._num_turns = False, 0
        self._time = asyncio.get_running_loop().time
        self._begin = self._time()
        self.clock = asyncio.timeout(question["seconds"])

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the policy's next turn.

        Raises:
            ProviderError: of status 400: there is none, so the episode ends. Of
                another: the episode fails.
        """
        messages, tools = [*map(_plain, body["messages"])], body.get("tools") or []
        if self._said is None:
            self._write({"messages": messages, "tools": tools})
            self.clock.reschedule(0)
            raise vf.ProviderError("no more turns", status_code=400)
        tail, is_asking = messages[len(self._said) :], self.clock.when() is None
        is_same = messages == [*self._said, *tail] and tools == self._tools
        if is_asking or not is_same or bool(tail) != bool(self._num_turns):
            self.is_rewritten = True
            raise vf.ProviderError("The conversation is another.")
        if self.turns.empty():
            self.tell(messages=tail)
        self.clock.reschedule(None)  # while the policy writes
        question = await self.turns.get()
        self._begin = self._time()
        self.clock.reschedule(self._begin + question["seconds"])
        if "turn" not in question:
            raise vf.ProviderError("no more turns", status_code=400)
        self._num_turns += 1
        message = question["turn"]
        self._said = [*messages, _plain(message)]
        return {"index": 0, "message": message, "finish_reason": question["finish"]}

    def tell(self, **fields: Any) -> None:
        """Write a line, with the time since the policy's last turn."""
        seconds = self._time() - self._begin
        self._write({"episode": self._number, "seconds": seconds, **fields})


def _end_of(played: Any, *, is_rewritten: bool) -> dict[str, Any]:
    """Return the reward of an episode, or why it has none.

    The library records a reward of 0 for one that failed.
    """
    traces = [trace for trace in played.traces if trace.agent.trainable]
    errors = [*played.errors, *(e for trace in played.traces for e in trace.errors)]
    if played.is_timeout or any(trace.is_timeout for trace in played.traces):
        return {"end": "timeout", "error": "A time limit of the taskset was reached."}
    is_one = len(traces) == 1 and len(traces[0].branches) == 1
    if is_rewritten or (played.ok and not is_one):
        return {"end": "rewritten"}
    if not played.ok:
        reasons = [f"{last.type}: {last.message}" for last in errors[-1:]]
        return {"end": "failed", "error": next(iter(reasons), "No reason.")}
    parts = {name: part.score for name, part in traces[0].rewards.items() if part}
    metrics = {**parts, **traces[0].metrics}
    return {"end": "done", "reward": traces[0].reward, "metrics": metrics}


def config_of(taskset: str, options: dict[str, Any]) -> Any:
    """Return the settings of an environment of this taskset, whatever agents it has.

    By default these run in a box of a hosted service, by a program that uv fetches.

    Args:
        options: settings of the taskset; "runtime": the library's, for tasks in a box.
    """
    own = {**options, "id": taskset}
    seat = {
        "runtime": own.pop("runtime", {"type": "subprocess"}),
        "harness": {"id": HARNESS},
        # The library's clock runs also while the policy writes.
        "timeout": {"rollout": 30 * 86_400.0},
    }
    fields = loaders.env_config_type(taskset).model_fields.items()
    seats = [
        name for name, field in fields if isinstance(field.default, vf.AgentConfig)
    ]
    return loaders.resolve_env_config({"taskset": own, **dict.fromkeys(seats, seat)})


class _Host(vf.Client):  # type: ignore[misc]  # not installed here
    """The environment of a taskset, its episodes, and their policy."""

    def __init__(self, taskset: str, options: str, replies: int) -> None:
        self._config = config_of(taskset, json.loads(options))
        self._env = loaders.load_environment(self._config)
        writer = ThreadPoolExecutor(1)
        # Not to wait for those who are to read a line.
        self._write: Callable[[Any], Any] = lambda line: writer.submit(
            send, replies, line
        )
        self._episodes: dict[Any, _Episode] = {}
        self._by_trace: WeakValueDictionary[str, _Episode] = WeakValueDictionary()
        # The library makes clients itself, of none but its own classes.
        server.resolve_client = lambda _: self
        client = vf.EvalClientConfig(base_url="http://policy/v1", api_key_var="")
        self._context = vf.ModelContext(model=HARNESS, client=client)

    async def serve(self) -> None:
        """Answer lines until no one is left to write them."""
        lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen() -> None:
            for question in questions():
                loop.call_soon_threadsafe(lines.put_nowait, question)

        threading.Thread(target=listen, daemon=True).start()
        async with self._env.serving(), asyncio.TaskGroup() as plays:
            while True:
                await self._answer(await lines.get(), plays)

    async def _answer(self, question: dict[str, Any], plays: asyncio.TaskGroup) -> None:
        number = question.get("episode")
        if "limit" in question:
            await self._list(**question)
        elif "task" in question:
            episode = self._episodes[number] = _Episode(question, self._write)
            plays.create_task(self._play(episode, question["task"], number))
        if number in self._episodes:
            self._episodes[number].turns.put_nowait(question)
        elif "turn" in question:
            error = "The process of its environment was started again."
            end = {"end": "failed", "error": error}
            self._write({"episode": number, "seconds": 0.0, **end})

    async def _list(self, limit: int, seconds: float) -> None:
        """Write the first tasks, each with what it asks first."""
        question = {"episode": None, "messages": None, "tools": None}
        for task in self._env.taskset.take(limit):
            data = task.data.model_dump(mode="json", exclude_defaults=True)
            lines: list[dict[str, Any]] = []
            episode = _Episode({**question, "seconds": seconds}, lines.append)
            await self._play(episode, data, None)
            self._write({"task": data, **lines[0]})
        self._write({"schema": type(self._config.taskset).model_json_schema()})

    async def _play(self, episode: _Episode, data: dict[str, Any], number: Any) -> None:
        kind, config = self._env.taskset.task_type(), self._config.taskset.task
        try:
            task = kind(kind.data_type().model_validate(data), config)
            async with episode.clock:
                played = await self._env.run_episode(
                    task,
                    self._context,
                    on_trace=lambda trace: self._by_trace.update({trace.id: episode}),
                )
            end = _end_of(played, is_rewritten=episode.is_rewritten)
        except TimeoutError:
            end = {"end": "timeout", "error": "The environment took too long."}
        except Exception as error:  # noqa: BLE001 - as a taskset has it
            end = {
                "end": "failed",
                "error": f"The row's task cannot be played: {error}",
            }
        self._episodes.pop(number, None)
        episode.tell(**end)

    async def get_response(
        self, dialect: Any, body: Any, *_: Any, session_id: str, **__: Any
    ) -> Any:
        """Return the next turn to the library, whose session is a trace."""
        choice = await self._by_trace[session_id].complete(body)
        about = {"id": "", "object": "chat.completion", "created": 0, "model": HARNESS}
        completion = {**about, "choices": [choice]}
        response = dialect.parse_response(dialect.validate_response(completion))
        response.raw = completion
        return response


def main() -> None:
    """Serve, or write in one line why that failed."""
    try:
        asyncio.run(_Host(sys.argv[1], sys.argv[2], take_over_stdout()).serve())
    except BaseException as error:  # noqa: BLE001 - as a taskset has it
        cause = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        words = " ".join(str(cause).split())
        sys.stderr.write(f"{type(cause).__name__}: {words}\n")
        # Python's own exit aborts: the thread that reads stdin holds its lock.
        os._exit(1)


if __name__ == "__main__":
    sys.modules[HARNESS] = sys.modules[__name__]
    main()
