"""Recipes as fields, as JSON and as a formula; patterns, schemas and code of rules."""

from __future__ import annotations

import json
from typing import Any

from dashboard.rewards.models import RewardRecipe
from tests.dashboard.rewards.editor import fields
from tests.inputs.cases import Answer, Case, Door, World, told_by_page

NEW = "/alpha/rewards/new"


def send_json(world: World, text: str) -> Answer:
    return told_by_page(world.client.post(NEW, {"action": "read_json", "json": text}))


def send_formula(world: World, text: str) -> Answer:
    both = ("numeric_answer", {"name": "right"}), ("length", {"name": "short"})
    data = fields(*both, action="read_formula", formula=text)
    return told_by_page(world.client.post(NEW, data))


def send_rule(world: World, rule: tuple[str, dict[str, str]]) -> Answer:
    data = fields(rule, action="save", name="Bad")
    return told_by_page(world.client.post(NEW, data))


def send_recipe(world: World, changes: dict[str, str]) -> Answer:
    data = fields(("numeric_answer", {}), action="save", name="Good")
    return told_by_page(world.client.post(NEW, data | changes))


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
    Case("nothing", "", says=("This is not JSON: Expecting value at line 1, column 1.",)),
    Case("no JSON", "{'rules': []}", says=("This is not JSON: Expecting property name enclosed in double quotes",)),
    Case("JSON cut short", '{"rules": [{"name": "r"', says=("This is not JSON: Expecting ',' delimiter at line 1, column 24.",)),
    Case("a number", "5", says=("Input should be a valid dictionary or instance of Recipe;", "got 5.")),
    Case("a list", "[]", says=("Input should be a valid dictionary or instance of Recipe;", "got [].")),
    Case("null", "null", says=("Input should be a valid dictionary or instance of Recipe;", "got None.")),
    Case("lists 5,000 deep", "[" * 5_000 + "]" * 5_000, says=("This JSON nests too deep or holds a number that is too long.", "Shorten it.")),
    Case("a number of 5,000 digits", '{"rules": ' + "9" * 5_000 + "}", says=("This JSON nests too deep or holds a number that is too long.", "Shorten it.")),
    Case("no rules", "{}", says=("rules: Field required;", "got {}.")),
    Case("rules that are empty", '{"rules": []}', says=("A recipe needs at least one rule;", "got none.", "Add a rule.")),
    Case("rules that are an object", '{"rules": {"a": 1}}', says=("rules: Input should be a valid tuple;", "got {'a': 1}.")),
    Case("more rules than a recipe has", json.dumps({"rules": [{"name": f"r{n}", "kind": "length"} for n in range(100)]}), says=("rules: Tuple should have at most 40 items after validation, not 100;", "got [{'name': 'r0', 'kind': 'length'}, {'name': 'r1', 'kind': '….")),
    Case("two rules of one name", json.dumps({"rules": [{"name": "r", "kind": "length"}] * 2}), says=("Two rules are named \"r\".", "Give each rule its own name.")),
    Case("a key of no meaning", recipe(colour="red"), says=("rules.0.colour: Extra inputs are not permitted;", "got 'red'.")),
    Case("a kind that is unknown", recipe(kind="telepathy"), says=("rules.0.kind: There is no rule of kind \"telepathy\".", "Choose one of: numeric_answer, exact_answer, marker_answer,")),
    Case("a kind that is a list", recipe(kind=["length"]), says=("rules.0.kind: Input should be a valid string;", "got ['length'].")),
    Case("a name with a NUL", recipe(name="a\0"), says=("rules.0.name: Must match ^[a-z][a-z0-9_]{0,39}$;", "got 'a\\x00'.")),
    Case("a name with a space", recipe(name="a b"), says=("rules.0.name: Must match ^[a-z][a-z0-9_]{0,39}$;", "got 'a b'.")),
    Case("a name without an end", recipe(name="x" * 500), says=("rules.0.name: Must match ^[a-z][a-z0-9_]{0,39}$;", "got 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx….")),
    Case("a weight that is a word", recipe(weight="much"), says=("rules.0.weight: Input should be a valid number, unable to parse", "got 'much'.")),
    Case("a weight beyond floats", '{"rules": [{"name": "r", "kind": "length", "weight": 1e400}]}', says=("rules.0.weight: Input should be a finite number;", "got inf.")),
    Case("a weight that is no number", '{"rules": [{"name": "r", "kind": "length", "weight": NaN}]}', says=("rules.0.weight: Input should be a finite number;", "got nan.")),
    Case("parameters that are a list", recipe(params=[1]), says=("rules.0.params: Input should be a valid dictionary;", "got [1].")),
    Case("a parameter of no meaning", recipe(params={"colour": "red"}), says=("rules.0: Rule \"r\", parameter colour: numeric_answer has no such", "It has: source, tag, marker, tolerance, relative_tolerance, percent,")),
    Case("a parameter of another type", recipe(params={"tolerance": "wide"}), says=("rules.0: Rule \"r\", parameter tolerance: got 'wide'.", "Input should be a valid number, unable to parse string as a number.")),
    Case("a combination that is unknown", json.dumps({"rules": [{"name": "r", "kind": "length"}], "combine": "magic"}), says=("combine: Input should be 'sum', 'normalize_then_sum', 'product' or", "got 'magic'.")),
    Case("a key that is there twice", '{"rules": [], "rules": [{"name": "r", "kind": "telepathy"}]}', says=("The key 'rules' is in one object twice.", "Keep one of the two.")),
]  # fmt: skip
FORMULAS = [
    Case("nothing", "", says=("Character 1, at the end: expected a number.",)),
    Case("a name that is unknown", "right + wrong", says=('Character 1, at "right + wrong": expected a weight, such as 1·,',)),
    Case("an open bracket", "2 * (right + short", says=('Character 5, at "(right + short": expected the name of a rule.',)),
    Case("a bracket too many", "right)", says=('Character 1, at "right)": expected a weight, such as 1·, before the',)),
    Case("two operators", "right + * short", says=('Character 1, at "right + * short": expected a weight, such as 1·,',)),
    Case("a number alone", "5", says=("Character 2, at the end: expected ·",)),
    Case("a rule twice", "right + right", says=('Character 1, at "right + right": expected a weight, such as 1·,',)),
    Case("a rule times a rule", "right * short + right", says=('Character 1, at "right * short + righ": expected a weight, such as',)),
    Case("a division by nothing", "right / 0", says=('Character 7, at "/ 0": nothing here begins like this.',)),
    Case("a number beyond floats", "1e400 * right", says=('Character 1, at "1e400 * right": this number is too large.',)),
    Case("5,000 digits", "9" * 5_000 + " * right", says=('Character 1, at "99999999999999999999": this number is too large.',)),
    Case("brackets 5,000 deep", "(" * 5_000 + "right" + ")" * 5_000, says=('Character 10001, at ")))))": the formula is too long.',)),
    Case("a call", "__import__('os').system('true')", says=("Character 12, at \"'os').system('true')\": nothing here begins like",)),
    Case("a NUL", "right\0", says=('Character 6, at "\u0000": nothing here begins like this.',)),
    Case("an emoji", "right + 😀", says=('Character 9, at "😀": nothing here begins like this.',)),
    Case("an assignment", "x = right", says=('Character 3, at "= right": nothing here begins like this.',)),
]  # fmt: skip
RULES = [
    # of patterns
    Case("an open bracket", pattern("(a"), says=("regex.", "The pattern \"(a\" is not valid: missing ): (a.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("an open class", pattern("[a"), says=("regex.", "The pattern \"[a\" is not valid: missing ]: [a.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("nothing to repeat", pattern("*a"), says=("regex.", "The pattern \"*a\" is not valid: no argument for repetition operator: *.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("a range turned round", pattern("[z-a]"), says=("regex.", "The pattern \"[z-a]\" is not valid: invalid character class range: z-a.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("a look ahead", pattern("(?=a)b"), says=("regex.", "The pattern \"(?=a)b\" is not valid: invalid perl operator: (?=.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("a look behind", pattern("(?<=a)b"), says=("regex.", "The pattern \"(?<=a)b\" is not valid: invalid perl operator: (?<=.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("a reference back", pattern(r"(a)\1"), says=("regex.", "The pattern \"(a)\\1\" is not valid: invalid escape sequence: \\1.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("too many repeats", pattern("a{5000}"), says=("regex.", "The pattern \"a{5000}\" is not valid: invalid repetition size: {5000}.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("repeats of repeats", pattern("((a{100}){100}){100}"), says=("regex.", "The pattern \"((a{100}){100}){100}\" is not valid: invalid repetition", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("an escape of no meaning", pattern(r"\p{Nonsense}"), says=("regex.", "The pattern \"\\p{Nonsense}\" is not valid: invalid character class", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("a pattern without an end", pattern("a" * 100_000), says=("regex.", "String should have at most 1000 characters;", "got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa….")),
    Case("a pattern with a NUL", pattern("a\0b"), says=("regex.", "Rule \"regex\", parameter pattern: it holds a NUL character, which", "Remove it.")),
    Case("brackets 2,000 deep", pattern("(" * 2_000 + "a" + ")" * 2_000), says=("regex.", "String should have at most 1000 characters;", "got '((((((((((((((((((((((((((((((((((((((((((((((((((((((((((….")),
    Case("a backslash alone", pattern("a\\"), says=("regex.", "The pattern \"a\\\" is not valid: trailing \\.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    # of schemas
    Case("a schema that is no JSON", schema("{type: object}"), says=("json_schema.", "The schema is not JSON: Expecting property name enclosed in double")),
    Case("a schema that is a number", schema("5"), says=("json_schema.", "String should have at least 2 characters;", "got '5'.")),
    Case("a schema of an unknown type", schema('{"type": "banana"}'), says=("json_schema.", "This is no JSON Schema of draft 2020-12, at type: 'banana' is not")),
    Case("a schema that refers elsewhere", schema('{"$ref": "http://example.org/a.json"}'), says=("json_schema.", "The schema refers to \"http://example.org/a.json\", which is no part of", "Other documents are not fetched: write the part into $defs, and refer")),
    Case("a schema that refers to itself", schema('{"$ref": "#"}'), says=("json_schema.", "The schema refers to itself without end, or is too large to check.", "Let every circle of references pass through properties or items.")),
    Case("a schema with a pattern that is none", schema('{"pattern": "("}'), says=("json_schema.", "The pattern \"(\" is not valid: missing ): (.", "Patterns follow RE2: no look-around, no back-references, repeats of")),
    Case("a schema 500 deep", schema('{"items":' * 500 + "{}" + "}" * 500), says=("json_schema.", "The schema is not JSON: It is nested deeper than 32 levels..")),
    # of code
    Case("code that is none", code("def reward(:\n"), says=("python_function.", "Line 1 is no Python: invalid syntax;", "got 'def reward(:'.", "Mend it.")),
    Case("code without the function", code("x = 1\n"), says=("python_function.", "The source defines no function named reward.", "Begin with def reward(completion, answer):")),
    Case("code that is empty", code(""), says=("python_function.", "This is empty.", "Fill it in.")),
    Case("code with a NUL", code("def reward(completion):\n    return '\0'\n"), says=("python_function.", "Rule \"python_function\", parameter source: it holds a NUL character,", "Remove it.")),
    Case("code indented in two ways", code("def reward(completion):\n\tif 1:\n        return 1\n"), says=("python_function.", "Line 3 is no Python: inconsistent use of tabs and spaces in", "got 'return 1'.", "Mend it.")),
    Case("code without an end", code("def reward(completion):\n    return 0\n#" + "x" * 300_000), says=("python_function.", "String should have at most 20000 characters;", "got 'def reward(completion):\\n return 0\\n#xxxxxxxxxxxxxxxxxx….")),
    Case("code 200 brackets deep", code("def reward(completion):\n    return " + "(" * 300 + "1" + ")" * 300), says=("python_function.", "Line 2 is no Python: too many nested parentheses;", "got 'return ((((((((((((((((((((((((((((((((((((((((((((((((((((('.", "Mend it.")),
    # of other fields
    Case("a weight in words", ("length", {"weight": "one"}), says=("length.", "Input should be a valid number, unable to parse string as a number;", "got 'one'.")),
    Case("a weight in Arabic", ("length", {"weight": "١٢٣x"}), says=("length.", "Input should be a valid number, unable to parse string as a number;", "got '١٢٣x'.")),
    Case("a count that is half", ("length", {"params-minimum": "0.5"}), says=("length.", "Input should be a valid integer, unable to parse string as an integer;", "got '0.5'.")),
    Case("a count beyond the integers", ("length", {"params-maximum": "9" * 30}), says=("length.", "Input should be less than or equal to 10000000;", "got '999999999999999999999999999999'.")),
    Case("phrases that are empty", ("contains", {"params-phrases": ""}), says=("contains.", "Tuple should have at least 1 item after validation, not 0;", "got [].")),
    Case("a judge at a file", ("llm_judge", {"params-base_url": "file:///etc/passwd"}), says=("llm_judge.", "The address 'file:///etc/passwd' must begin with https:// and the", "This is empty.", "Fill it in.")),
    Case("a judge inside", ("llm_judge", {"params-base_url": "http://169.254.169.254/v1"}), says=("llm_judge.", "This is empty.", "Fill it in.")),
    Case("a switch of no meaning", ("length", {"params-unit": "miles"}), says=("length.", "Choose one of the list;", "got 'miles'.")),
]  # fmt: skip
RECIPES = [
    Case("no name", {"name": ""}, says=("This field is required.",)),
    Case("a name without an end", {"name": "x" * 500}, says=("Ensure this value has at most 80 characters (it has 500).",)),
    Case("a name with a NUL", {"name": "a\0b"}, says=("Null characters are not allowed.",)),
    Case("a name of spaces", {"name": " \t\u00a0\u2003"}, says=("This field is required.",)),
    Case("a description without an end", {"description": "x" * 100_000}, says=("Ensure this value has at most 2000 characters (it has 100000).",)),
    Case("a description with a NUL", {"description": "\0"}, says=("Null characters are not allowed.",)),
    Case("a recipe without rules", {"rules-0-kind": "", "rules-0-name": ""}, says=("A recipe needs at least one rule; got none. Add a rule.",)),
]  # fmt: skip
DOORS = [
    Door(
        "recipes as JSON",
        send_json,
        JSONS,
        status=200,
        leaves=RewardRecipe.objects.count,
    ),
    Door("reward formulas", send_formula, FORMULAS, status=200),
    Door(
        "rules of a recipe",
        send_rule,
        RULES,
        leaves=RewardRecipe.objects.count,
        is_slow=True,
    ),
    Door("recipes", send_recipe, RECIPES, leaves=RewardRecipe.objects.count),
]
