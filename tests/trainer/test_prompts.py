"""Rows, prompts and their order."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from cohort.lines import part_text
from tests.trainer.tiny import CHARACTERS
from trainer.config import DataConfig
from trainer.data import DataOrder, PromptRenderer, Row, read_rows, split_rows
from trainer.model.policy import Policy
from trainer.rewards.rule import fill_template

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def row(prompt: Any = "1+1=", index: int = 0, **columns: Any) -> Row:
    return Row(index=index, prompt=prompt, answer=None, columns=columns)


def rendered(policy: Policy, each: Row, **options: Any) -> str:
    config = DataConfig(rows="-", **options)
    prompt = PromptRenderer(policy.tokenizer, config).render(each)
    assert policy.tokenizer.decode(prompt.token_ids) == prompt.text
    return prompt.text


def text_of(policy: Policy, of: Row, **options: Any) -> str:
    """The prompt's text, which may have characters that the tokenizer has not."""
    return (
        PromptRenderer(policy.tokenizer, DataConfig(rows="-", **options))
        .render(of)
        .text
    )


def test_encoding_round_trips(policy):
    ids = policy.tokenizer.encode(CHARACTERS)

    assert policy.tokenizer.decode(ids) == CHARACTERS


def test_text_is_taken_as_it_is(policy):
    assert rendered(policy, row("1 + 1 =\n")) == "1 + 1 =\n"


def test_the_completion_is_made_to_continue_a_prefix(policy):
    assert rendered(policy, row("a"), completion_prefix="<b>") == "a<b>"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('No system role') }}", "No system role"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ '{a}'.format() }}", "'a'"),
        ("{% for %}", "Expected an expression"),
    ],
)
def test_a_chat_template_that_refuses_is_a_sentence(policy, template, reason):
    policy.tokenizer.chat_template = template
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    with pytest.raises(ValueError, match=f"row 3 .*{reason}") as refused:
        renderer.render(row("ab", index=3))

    assert "roles user" in str(refused.value)


def test_a_chat_template_is_used_where_there_is_one(policy):
    policy.tokenizer.chat_template = TEMPLATE
    config = DataConfig(rows="-", chat_template="auto")

    text = PromptRenderer(policy.tokenizer, config).render(row("ab")).text

    assert text == "<u>ab<a>"


def test_options_reach_the_chat_template(policy):
    thinks = "{% if enable_thinking is not defined or enable_thinking %}<t>{% endif %}"
    policy.tokenizer.chat_template = TEMPLATE + thinks

    plain = text_of(policy, row("ab"))
    options = {"enable_thinking": False}
    without = text_of(policy, row("ab"), chat_template_kwargs=options)

    assert plain == "<u>ab<a><t>"
    assert without == "<u>ab<a>"


@pytest.mark.parametrize(
    ("template", "named"),
    [
        (TEMPLATE, "enable_thinking"),
        (TEMPLATE + "{{ enable_thinking_now }}", "enable_thinking"),
        (None, "no chat template"),
    ],
)
def test_an_option_that_the_template_does_not_read_is_refused(policy, template, named):
    policy.tokenizer.chat_template = template
    config = DataConfig(rows="-", chat_template_kwargs={"enable_thinking": False})

    with pytest.raises(ValueError, match=named):
        PromptRenderer(policy.tokenizer, config)

    unused = config.model_copy(update={"chat_template": "none"})
    assert PromptRenderer(policy.tokenizer, unused).render(row("ab")).text == "ab"


@pytest.mark.parametrize("chat_template", [None, TEMPLATE.replace("[0]", "[2]")])
def test_a_text_continues_its_prompt(policy, chat_template):
    policy.tokenizer.chat_template = chat_template
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))
    prompt = renderer.render(row("1+1="))

    ids = renderer.continuation(prompt, "2 b")

    assert policy.tokenizer.decode([*prompt.token_ids, *ids]) == prompt.text + "2 b"
    assert policy.tokenizer.decode(ids) == "2 b"


def test_no_token_crosses_from_a_prompt_into_its_text(policy):
    ids = policy.tokenizer.get_vocab()
    merged = Tokenizer(models.BPE(vocab=ids | {"=2": len(ids)}, merges=[("=", "2")]))
    merged.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=merged, eos_token="<eos>")
    renderer = PromptRenderer(tokenizer, DataConfig(rows="-"))
    prompt = renderer.render(row("1="))
    assert len(tokenizer.encode("1=2")) == 2

    assert renderer.continuation(prompt, "2") == (ids["2"],)


def test_messages_are_kept(policy):
    policy.tokenizer.chat_template = TEMPLATE.replace("['role'][0]", "['role']")
    messages = ({"role": "a", "content": "1"}, {"role": "b", "content": "2"})

    assert rendered(policy, row(messages)) == "<a>1<b>2<a>"


# As Hugging Face's templates for tools: schemas first, and of a call its name and
# arguments.
TOOL_TEMPLATE = (
    "{% for t in tools or [] %}<t>{{ t['function']['name'] }}{% endfor %}"
    "{% for m in messages %}<{{ m['role'] }}>"
    "{% if m.content is string %}{{ m['content'] }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<c>{{ c['function']['name'] }}"
    "{{ c['function']['arguments'] | tojson }}{% endfor %}{% endfor %}"
)
ADD = {"type": "function", "function": {"name": "add"}}
TOOL_CHAT = (
    {"role": "user", "content": "1+2"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "so",
        "tool_calls": [
            {"id": "a", "function": {"name": "add", "arguments": {"a": 1}}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "name": "add", "content": "3"},
)


@pytest.mark.parametrize("tools", [[ADD], json.dumps([ADD])])
def test_the_chat_template_gets_tools_and_their_calls(policy, tools):
    policy.tokenizer.chat_template = TOOL_TEMPLATE
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    prompt = renderer.render(row(TOOL_CHAT, tools=tools))

    assert prompt.text == '<t>add<user>1+2<assistant><c>add{"a": 1}<tool>3'
    assert prompt.messages == TOOL_CHAT


def test_schemas_that_a_database_has_sorted_come_in_their_usual_order(policy):
    policy.tokenizer.chat_template = "{{ tools | tojson }}"
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))
    tools = json.loads(
        '[{"function": {"description": "d", "name": "n", "parameters": {"properties": '
        '{"b": {"enum": [1], "type": "t"}, "a": {}}, "type": "o"}}, "type": "f"}]'
    )

    as_list = renderer.render(row("a", tools=tools)).text
    as_text = renderer.render(row("a", tools=json.dumps(tools))).text

    assert as_text == json.dumps(tools)
    assert as_list == (
        '[{"type": "f", "function": {"name": "n", "description": "d", "parameters": '
        '{"type": "o", "properties": {"b": {"type": "t", "enum": [1]}, "a": {}}}}}]'
    )


@pytest.mark.parametrize("tools", [None, "", "hammer, saw", ["hammer", "saw"], [], 3])
def test_a_column_of_other_tools_is_refused_as_schemas(policy, tools):
    policy.tokenizer.chat_template = TOOL_TEMPLATE
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    assert renderer.render(row("a", tools=tools)).text == "<user>a"


@pytest.mark.parametrize("tools", ['[{"type": "function"', [ADD, "add"]])
def test_a_broken_list_of_tools_is_refused(policy, tools):
    policy.tokenizer.chat_template = TOOL_TEMPLATE
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    with pytest.raises(ValueError, match="tools of row 3 "):
        renderer.render(row("a", index=3, tools=tools))


def test_tool_calls_are_written_without_a_chat_template(policy):
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    assert renderer.render(row(TOOL_CHAT)).text == '1+2\nadd({"a": 1})\n3'


def test_a_chat_template_can_be_switched_off(policy):
    policy.tokenizer.chat_template = TEMPLATE

    text = rendered(policy, row("ab"), system_prompt="c", chat_template="none")

    assert text == "c\nab"


def test_a_template_names_prompt_and_columns():
    text = fill_template(
        '{prompt} of {numbers} {"a": 1}', "x", {"numbers": [1, 2]}, where="row 0"
    )

    assert text == 'x of [1, 2] {"a": 1}'


def test_a_template_that_names_an_unknown_column_is_refused():
    with pytest.raises(ValueError, match=r"\{target\}.* row 0 "):
        fill_template("{target}", "x", {"numbers": [1]}, where="row 0 (line 1)")


def test_a_template_names_values_inside_a_column():
    columns = {"extra": {"level": 2, "of": ["a", "b"]}, "extra.level": 3}

    text = fill_template("{extra.level}{extra.of.1}", "x", columns, where="row 0")

    assert text == "3b"  # a column of the whole name comes before a path
    with pytest.raises(ValueError, match=r"\{extra.of.2\}.* row 0 "):
        fill_template("{extra.of.2}", "x", columns, where="row 0 (line 1)")


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("5", "5"),
        (5, "5"),
        (-0.5, "-0.5"),
        (True, "true"),
        (None, None),
        ([], None),
        (["5"], "5"),
        ([5, "five", False], ["5", "five", "false"]),
    ],
)
def test_an_answer_is_a_text_or_several(tmp_path, answer, read):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a", "answer": answer}))

    (only,) = read_rows(path)

    assert only.answer == read


def test_a_message_that_calls_tools_needs_no_content(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": TOOL_CHAT}))

    (only,) = read_rows(path)

    assert only.prompt == TOOL_CHAT


@pytest.mark.parametrize("prompt", ["12345", ""])
def test_a_prompt_that_does_not_fit_names_row_and_tokens(policy, prompt):
    renderer = PromptRenderer(
        policy.tokenizer, DataConfig(rows="-", max_prompt_tokens=4)
    )

    with pytest.raises(ValueError, match=f"row 7 .* has {len(prompt)} tokens; 1 to 4"):
        renderer.render(row(prompt, index=7))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "has no prompt"),
        ('{"answer": "1"}', "has no prompt"),
        ('{"prompt": 3}', "must be text or a list of messages"),
        ('{"prompt": ""}', "must be text or a list of messages"),
        ('{"prompt": [{"role": "user"}]}', "must be text or a list of messages"),
        (
            '{"prompt": [{"role": "user", "content": null}]}',
            "must be text or a list of messages",
        ),
        (json.dumps({"prompt": part_text({"type": "image"})}), "has an image"),
        ('{"prompt": "a", "answer": {"b": 1}}', "answer must be text"),
        ('{"prompt": "a", "answer": ["b", null]}', "answer must be text"),
        ('{"prompt": "a", "columns": [1]}', "columns must be an object"),
        ("", "is not JSON"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, line, complaint):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + '\n{"prompt": "b"}\n')

    with pytest.raises(ValueError, match=rf"rows.jsonl, line 2.*{complaint}"):
        read_rows(path)


def test_rows_are_numbered_from_zero(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a\u2028b", "answer": None}) + "\n" * 3)

    (only,) = read_rows(path)

    assert (only.index, only.prompt, only.columns) == (0, "a\u2028b", {})


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_an_unreadable_file_is_refused(tmp_path, content):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"rows\.jsonl"):
        read_rows(path)


def test_the_seed_draws_the_held_out_rows():
    rows = [row(index=n) for n in range(50)]

    train, held_out = split_rows(rows, num_eval_rows=10, seed=1)

    assert len(held_out) == 10
    assert sorted(r.index for r in train + held_out) == list(range(50))
    assert split_rows(rows, num_eval_rows=10, seed=1) == (train, held_out)
    assert split_rows(rows, num_eval_rows=10, seed=2)[1] != held_out


def test_each_pass_is_a_permutation_without_its_remainder():
    order = DataOrder(num_rows=11, prompts_per_step=3, seed=5)

    passes = [
        [index for step in range(first, first + 3) for index in order.places(step)]
        for first in (1, 4, 7)
    ]

    for each in passes:
        assert len(set(each)) == 9
        assert set(each) <= set(range(11))
    assert len({tuple(each) for each in passes}) == 3


def test_more_prompts_a_step_than_rows_are_refused():
    with pytest.raises(ValueError, match=r"5 distinct .* 4"):
        DataOrder(num_rows=4, prompts_per_step=5, seed=0)


# As Llama's: it trims each message.
TRIMMING = (
    "{% for m in messages %}[{{ m.role }}]\n{{ m.content | trim }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
# As Qwen3's: thinking is a block of its own, and the last answer always has one.
THINKING = (
    "{% for m in messages %}[{{ m.role }}]\n"
    "{% set parts = m.content.split('</think>') %}"
    "{% if m.role == 'assistant' %}<think>\n"
    "{{ parts[0].split('<think>')[-1].strip('\n') if parts[1:] }}\n</think>\n\n"
    "{% endif %}{{ parts[-1].lstrip('\n') }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)
NO_THINKING = "<think>\n\n</think>\n\n"


def prefilled(content: str) -> Row:
    chat = ({"role": "user", "content": "Q"}, {"role": "assistant", "content": content})
    return row(chat)


@pytest.mark.parametrize(
    ("template", "content", "between"),
    [
        (TRIMMING, "\n It is \n", ""),
        (TRIMMING, "<think>\n", ""),
        (THINKING, "It is ", NO_THINKING),
        (THINKING, "<think>\nSo ", ""),
        (THINKING, "<think>So</think>It", ""),
        (THINKING, "\n<think>\n", ""),
    ],
)
def test_a_last_message_of_the_assistant_is_continued(
    policy, template, content, between
):
    policy.tokenizer.chat_template = template
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    prompt = renderer.render(prefilled(content))

    assert prompt.text == f"[user]\nQ[end][assistant]\n{between}{content}"
    assert prompt.begun == content
    assert prompt.messages == ({"role": "user", "content": "Q"},)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "[user]\nQ[end][assistant]\nIt <b>"),
        ({"system_prompt": "S"}, "[system]\nS[end][user]\nQ[end][assistant]\nIt <b>"),
        ({"chat_template": "none"}, "Q\nIt <b>"),
    ],
)
def test_a_prefix_follows_what_is_begun(policy, options, expected):
    policy.tokenizer.chat_template = TRIMMING
    config = DataConfig(rows="-", completion_prefix="<b>", **options)

    prompt = PromptRenderer(policy.tokenizer, config).render(prefilled("It "))

    assert prompt.text == expected
    assert prompt.begun == "It <b>"


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ({"role": "assistant", "content": " "}, ""),
        ({"role": "assistant", "content": "f", "tool_calls": [{"name": "f"}]}, "f"),
        ({"role": "user", "content": "f"}, "f"),
    ],
)
def test_a_message_that_begins_no_answer_is_followed_by_one(policy, last, shown):
    policy.tokenizer.chat_template = TRIMMING
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    prompt = renderer.render(row((last,)))

    assert prompt.text == f"[{last['role']}]\n{shown}[end][assistant]\n"
    assert prompt.begun == ""
    assert prompt.messages == (last,)


def test_a_template_that_leaves_the_begun_answer_out_is_refused(policy):
    policy.tokenizer.chat_template = "{{ messages[0].content }}"
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))

    with pytest.raises(ValueError, match=r"row 0 \(line 1\).*user, assistant"):
        renderer.render(prefilled("It"))


def test_a_text_continues_what_is_begun(policy):
    policy.tokenizer.chat_template = TEMPLATE
    renderer = PromptRenderer(policy.tokenizer, DataConfig(rows="-"))
    prompt = renderer.render(prefilled("1 "))

    ids = renderer.continuation(prompt, "2 b")

    assert policy.tokenizer.decode(ids) == "2 b"
