"""Recipes as fields and as JSON; patterns, schemas and code of rules."""

import json
from typing import Any

from dashboard.rewards.models import RewardRecipe
from tests.dashboard.rewards.editor import fields
from tests.inputs.cases import Case, Endpoint, Response, World, message_of_page

NEW = "/alpha/rewards/new"


def send_json(world: World, text: str) -> Response:
    return message_of_page(
        world.client.post(NEW, {"action": "read_json", "json": text})
    )


def send_rule(world: World, rule: tuple[str, dict[str, str]]) -> Response:
    data = fields(rule, action="save", name="Bad")
    return message_of_page(world.client.post(NEW, data))


def send_recipe(world: World, changes: dict[str, str]) -> Response:
    data = fields(("numeric_answer", {}), action="save", name="Good")
    return message_of_page(world.client.post(NEW, data | changes))


def recipe(**changes: Any) -> str:
    rule = {"name": "r", "kind": "numeric_answer", "weight": 1.0, "params": {}}
    return json.dumps({"rules": [rule | changes]})


def pattern(text: str, **others: str) -> tuple[str, dict[str, str]]:
    return "regex", {"name": "regex", "params-pattern": text} | others


def schema(text: str) -> tuple[str, dict[str, str]]:
    return "json_schema", {"params-wanted": text}


def code(text: str) -> tuple[str, dict[str, str]]:
    return "python_function", {"params-source": text}


JSONS = [
    Case("nothing", ""),
    Case("no JSON", "{'rules': []}"),
    Case("JSON cut short", '{"rules": [{"name": "r"'),
    Case("a number", "5"),
    Case("a list", "[]"),
    Case("null", "null"),
    Case("lists 5,000 deep", "[" * 5_000 + "]" * 5_000),
    Case("a number of 5,000 digits", '{"rules": ' + "9" * 5_000 + "}"),
    Case("no rules", "{}"),
    Case("rules that are empty", '{"rules": []}'),
    Case("rules that are an object", '{"rules": {"a": 1}}'),
    Case("more rules than a recipe has", json.dumps({"rules": [{"name": f"r{n}", "kind": "length"} for n in range(100)]})),
    Case("two rules of one name", json.dumps({"rules": [{"name": "r", "kind": "length"}] * 2})),
    Case("a key of no meaning", recipe(colour="red")),
    Case("a kind that is unknown", recipe(kind="telepathy")),
    Case("a kind that is a list", recipe(kind=["length"])),
    Case("a name with a NUL", recipe(name="a\0")),
    Case("a name with a space", recipe(name="a b")),
    Case("a name without an end", recipe(name="x" * 500)),
    Case("a weight that is a word", recipe(weight="much")),
    Case("a weight beyond floats", '{"rules": [{"name": "r", "kind": "length", "weight": 1e400}]}'),
    Case("a weight that is no number", '{"rules": [{"name": "r", "kind": "length", "weight": NaN}]}'),
    Case("parameters that are a list", recipe(params=[1])),
    Case("a parameter of no meaning", recipe(params={"colour": "red"})),
    Case("a parameter of another type", recipe(params={"tolerance": "wide"})),
    Case("a combination that is unknown", json.dumps({"rules": [{"name": "r", "kind": "length"}], "combine": "magic"})),
    Case("a key that is there twice", '{"rules": [], "rules": [{"name": "r", "kind": "telepathy"}]}'),
]  # fmt: skip
RULES = [
    # of patterns
    Case("an open bracket", pattern("(a")),
    Case("an open class", pattern("[a")),
    Case("nothing to repeat", pattern("*a")),
    Case("a range turned round", pattern("[z-a]")),
    Case("a look ahead", pattern("(?=a)b")),
    Case("a look behind", pattern("(?<=a)b")),
    Case("a reference back", pattern(r"(a)\1")),
    Case("too many repeats", pattern("a{5000}")),
    Case("repeats of repeats", pattern("((a{100}){100}){100}")),
    Case("an escape of no meaning", pattern(r"\p{Nonsense}")),
    Case("a pattern without an end", pattern("a" * 100_000)),
    Case("a pattern with a NUL", pattern("a\0b")),
    Case("brackets 2,000 deep", pattern("(" * 2_000 + "a" + ")" * 2_000)),
    Case("a backslash alone", pattern("a\\")),
    # of schemas
    Case("a schema that is no JSON", schema("{type: object}")),
    Case("a schema that is a number", schema("5")),
    Case("a schema of an unknown type", schema('{"type": "banana"}')),
    Case("a schema that refers elsewhere", schema('{"$ref": "http://example.org/a.json"}')),
    Case("a schema that refers to itself", schema('{"$ref": "#"}')),
    Case("a schema with a pattern that is none", schema('{"pattern": "("}')),
    Case("a schema 500 deep", schema('{"items":' * 500 + "{}" + "}" * 500)),
    # of code
    Case("code that is none", code("def reward(:\n")),
    Case("code without the function", code("x = 1\n")),
    Case("code that is empty", code("")),
    Case("code with a NUL", code("def reward(completion):\n    return '\0'\n")),
    Case("code indented in two ways", code("def reward(completion):\n\tif 1:\n        return 1\n")),
    Case("code without an end", code("def reward(completion):\n    return 0\n#" + "x" * 300_000)),
    Case("code 200 brackets deep", code("def reward(completion):\n    return " + "(" * 300 + "1" + ")" * 300)),
    # of other fields
    Case("a weight in words", ("length", {"weight": "one"})),
    Case("a weight in Arabic", ("length", {"weight": "١٢٣x"})),
    Case("a count that is half", ("length", {"params-minimum": "0.5"})),
    Case("a count beyond the integers", ("length", {"params-maximum": "9" * 30})),
    Case("phrases that are empty", ("contains", {"params-phrases": ""})),
    Case("a judge at a file", ("llm_judge", {"params-base_url": "file:///etc/passwd"})),
    Case("a judge inside", ("llm_judge", {"params-base_url": "http://169.254.169.254/v1"})),
    Case("a switch of no meaning", ("length", {"params-unit": "miles"})),
]  # fmt: skip
RECIPES = [
    Case("no name", {"name": ""}),
    Case("a name without an end", {"name": "x" * 500}),
    Case("a name with a NUL", {"name": "a\0b"}),
    Case("a name of spaces", {"name": " \t\u00a0\u2003"}),
    Case("a description without an end", {"description": "x" * 100_000}),
    Case("a description with a NUL", {"description": "\0"}),
    Case("a recipe without rules", {"rules-0-kind": "", "rules-0-name": ""}),
]  # fmt: skip
ENDPOINTS = [
    Endpoint(
        "recipes as JSON",
        send_json,
        JSONS,
        status=200,
        leaves=RewardRecipe.objects.count,
    ),
    Endpoint(
        "rules of a recipe",
        send_rule,
        RULES,
        leaves=RewardRecipe.objects.count,
    ),
    Endpoint("recipes", send_recipe, RECIPES, leaves=RewardRecipe.objects.count),
]
