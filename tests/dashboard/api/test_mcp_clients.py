"""The official client, and `cohort mcp`, against the web process."""

import gzip
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from cohort.__main__ import main
from cohort.http import Server
from cohort.mcp import SKILL, relay
from dashboard.accounts.throttling import redis_client
from dashboard.api.guards import MAX_OF_TOKEN, count_request
from tests.dashboard.api.asking import make_token, token_of
from tests.dashboard.completions.factories import make_group, make_run, make_steps
from tests.dashboard.runs.launching import make_dataset

pytestmark = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).parents[3]
MODES = ["auto", "legacy", "2026-07-28"]


@pytest.fixture
def world(live_app, team, alice):
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.1] * 20 + [0.9] * 20})
    make_group(run)
    return live_app, run.pk, make_token(alice, "write")


def rows_of_tools(run):
    """By tool: arguments, and a field of its answer; None: our world has no such."""
    spec = {"rules": [{"name": "a", "kind": "exact_answer", "weight": 1}]}
    return {
        "find_runs": ({}, "runs"),
        "get_run": ({"run": run}, "verdict"),
        "get_metrics": ({"run": run, "names": ["reward/mean"]}, "series"),
        "search_completions": ({"run": run}, "items"),
        "compare_runs": ({"runs": [run, run]}, "sets"),
        "list_inputs": ({"kind": "setting"}, "items"),
        "try_reward": ({"spec": spec}, None),
        "get_analysis": ({"kind": "audit", "id": run}, "findings"),
        "launch_run": ({"from_run": 10**6}, None),
        "control_run": ({"run": run, "do": "pause"}, None),
        "ask_completions": ({"run": run, "text": "?", "judge": "none"}, None),
        "rescore_run": ({"run": 10**6}, None),
    }


async def check_every_tool(client, run):
    tools = (await client.list_tools()).tools
    rows = rows_of_tools(run)
    assert {tool.name for tool in tools} == rows.keys()
    for name, (arguments, field) in rows.items():
        result = await client.call_tool(name, arguments)
        text = result.content[0].text
        if field is None:
            assert result.is_error, name
        else:
            assert field in json.loads(text), (name, text)
    pages = (await client.list_resources()).resources
    assert (await client.read_resource(str(pages[0].uri))).contents[0].text
    prompts = (await client.list_prompts()).prompts
    prompt = await client.get_prompt(prompts[0].name, {"run": str(run)})
    assert prompt.messages


@pytest.mark.parametrize("mode", MODES)
async def test_official_client_calls_every_tool(world, mode):
    address, run, token = world
    headers = {"Authorization": f"Bearer {token}"}

    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(f"{address}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            await check_every_tool(client, run)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_official_client_calls_every_tool_over_stdio(world, mode):
    address, run, token = world
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "cohort", "mcp"],
        env={"COHORT_URL": address, "COHORT_TOKEN": token, "PYTHONPATH": str(ROOT)},
    )

    async with Client(stdio_client(command), mode=mode) as client:
        await check_every_tool(client, run)


def call(address, token, tool, **arguments):
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    message["params"] = {"name": tool, "arguments": arguments}
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.post(f"{address}/mcp", json=message, headers=headers, timeout=60)


def test_parallel_calls_over_the_budget_get_429(world):
    address, run, token = world
    num_left = 10
    for _ in range(MAX_OF_TOKEN - num_left):
        count_request(f"token:{token_of(token).pk}", MAX_OF_TOKEN)

    with ThreadPoolExecutor(30) as pool:
        asked = [
            pool.submit(call, address, token, "get_run", run=run) for _ in "x" * 30
        ]
        responses = [each.result() for each in asked]

    statuses = Counter(response.status_code for response in responses)
    assert statuses == {200: num_left, 429: 20}
    refused = next(each for each in responses if each.status_code == 429)
    assert 1 <= int(refused.headers["Retry-After"]) <= 60


SLOW = "import time\n\ndef reward(completion):\n    time.sleep(30)\n    return 1.0\n"


def test_a_slow_rule_delays_no_other_team(world, team, charlie):
    address, _, token = world
    version = make_dataset(team, "slow")
    own = {"dataset": version.pk, "row": 2, "texts": ["3"]}
    theirs = own | {"dataset": make_dataset(charlie.memberships.get().team).pk}
    rule = {"name": "a", "kind": "numeric_answer"}
    slow = {"name": "a", "kind": "python_function", "params": {"source": SLOW}}

    with ThreadPoolExecutor(1) as pool:
        spec = {"rules": [slow]}
        first = pool.submit(call, address, token, "try_reward", spec=spec, **own)
        while not redis_client().exists(f"cohort:scoring:{team.pk}"):
            assert not first.done(), first.result().text
        second = call(address, token, "try_reward", spec={"rules": [rule]}, **own)
        other = call(
            address, make_token(charlie), "try_reward", spec={"rules": [rule]}, **theirs
        )

    result = second.json()["result"]
    assert result["isError"]
    assert result["content"][0]["text"].startswith("rewards.scoring: ")
    answer = json.loads(other.json()["result"]["content"][0]["text"])
    assert answer["items"][0]["reward"] == 1.0


RECORDED = [
    json.loads(line)
    for line in Path(__file__).with_name("mcp_messages.jsonl").read_text().splitlines()
]


def send_raw(address, request, token, run):
    """Send a recorded request over a socket; return its status and its answer."""
    place = urlsplit(address).netloc
    body = request["body"].replace("RUN", str(run)).encode()
    headers = {
        "Host": place,
        "Authorization": f"Bearer {token}",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **dict(request["headers"]),
    }
    lines = [request["line"], *(f"{name}: {text}" for name, text in headers.items())]
    host, port = place.split(":")
    with closing(socket.create_connection((host, int(port)), 60)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        with closing(HTTPResponse(connection)) as response:
            response.begin()
            text = response.read()
            if response.headers["Content-Encoding"] == "gzip":
                text = gzip.decompress(text)
    return response.status, json.loads(text) if text else {}


def test_recorded_messages_get_their_answers(world):
    """Of mcp 1.30.0 and 2.3.0, in the order in which they were sent, and odd ones."""
    address, run, token = world
    for request in RECORDED:
        status, answer = send_raw(address, request, token, run)
        if "result" in answer:
            found = sorted(answer["result"])
        else:
            found = answer.get("error", answer).get("code")
        assert (status, found) == (request["status"], request["answer"]), request


SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if message["method"] == "hangs":
            print("asked", flush=True)
            time.sleep(600)
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listens", server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def serving(port):
    command = [sys.executable, "-c", SERVER, str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield process, int(process.stdout.readline().split()[1])
        finally:
            process.kill()


def test_stdio_goes_on_after_the_server_is_killed_in_a_call():
    def message(number, method):
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method}) + "\n"

    source, target = os.pipe(), os.pipe()
    with (
        open(source[0]) as lines,
        open(source[1], "w", buffering=1) as asked,
        open(target[0]) as answers,
        open(target[1], "w") as answered,
        ThreadPoolExecutor(1) as pool,
    ):
        with serving(0) as (first, port):
            server = Server(f"http://127.0.0.1:{port}", "t")
            loop = pool.submit(relay, server, lines, answered)
            asked.write(message(1, "hangs"))
            assert first.stdout.readline() == "asked\n"
        killed = json.loads(answers.readline())
        with serving(port):
            asked.write(message(2, "ping"))
            after = json.loads(answers.readline())
        asked.close()
        loop.result()

    assert (killed["id"], killed["error"]["code"]) == (1, -32603)
    assert after == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_stdio_answers_an_error_while_the_server_is_away(db):
    odd = b'{"jsonrpc": "2.0", "id": 2, "method": "\xff"}'
    lines = ['{"jsonrpc": "2.0", "id": 1, "method": "ping"}', "{", "[]"]
    lines.append(odd.decode("utf-8", "surrogateescape"))
    target = io.StringIO()

    relay(Server("http://127.0.0.1:9", "t"), io.StringIO("\n".join(lines)), target)

    responses = map(json.loads, target.getvalue().splitlines())
    codes = [response["error"]["code"] for response in responses]
    assert sorted(codes) == [-32700, -32700, -32700, -32603]


def commands_of_skill():
    fences = re.findall(r"```sh\n(.*?)```", SKILL.read_text(encoding="utf-8"), re.S)
    return [
        line.strip() for text in fences for line in text.split("\n") if line.strip()
    ]


def test_every_command_of_the_skill_runs(world, tmp_path, monkeypatch, capsys):
    address, run, token = world
    monkeypatch.setenv("COHORT_URL", address)
    monkeypatch.setenv("COHORT_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    # Our world's run has ended, and no worker has its files.
    refused = {"runs launch", "runs stop"}

    for command in commands_of_skill():
        words = {"RUN": str(run), "STEP": "1", "KEY": "once"}
        program, *arguments = [words.get(word, word) for word in shlex.split(command)]
        assert program == "cohort"
        code = main(arguments)
        is_refused = " ".join(arguments[:2]) in refused
        assert code == 0 or is_refused, (command, capsys.readouterr().err)


def test_skill_is_short_and_printed():
    printed = subprocess.run(
        [sys.executable, "-m", "cohort", "skill"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert printed.stdout == SKILL.read_text(encoding="utf-8")
    assert len(printed.stdout.split("\n")) <= 90
