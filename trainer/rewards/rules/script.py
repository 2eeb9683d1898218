"""Is the completion written in the wanted script?"""

from __future__ import annotations

import re
from collections import Counter

from pydantic import Field, field_validator

from trainer.rewards.extraction import last_block
from trainer.rewards.patterns import compile_pattern
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import Sample

_NAME = "[A-Z][A-Za-z_]{2,30}"
# Signs that every script shares, such as accents and the Japanese long vowel's.
_NO_LETTERS = r"[^\pL\pM]+|[\p{Common}\p{Inherited}]+"
# Python's own, which never has to go back here, replaces ten times as fast as RE2.
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")


class ScriptParams(Params):
    scripts: str = Field(
        "Latin",
        pattern=f"^{_NAME}(,{_NAME}){{0,7}}$",
        description="Unicode's names of the wanted scripts, separated by commas: "
        "Latin, Cyrillic, Han; for Japanese Han,Hiragana,Katakana.",
    )
    minimum_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of letters in these scripts that gives the full score; a "
        "smaller one gives its part of it.",
    )
    tag: str = Field(
        "",
        pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?$",
        description="Only what the last pair of these tags encloses is looked at, such "
        "as think; empty: the whole completion.",
    )
    ignore_latex: bool = Field(
        True, description="Names of LaTeX commands, such as \\frac, do not count."
    )

    @field_validator("scripts")
    @classmethod
    def _scripts_are_known(cls, scripts: str) -> str:
        for name in scripts.split(","):
            try:
                compile_pattern(rf"\p{{{name}}}")
            except ValueError:
                name_is_known = False
            else:
                name_is_known = name != "Any"
            if not name_is_known:
                raise ValueError(
                    f'There is no script "{name}". Use Unicode\'s names, such as '
                    "Latin, Greek, Cyrillic, Arabic, Devanagari, Han or Hangul."
                )
        return scripts


def score_script(sample: Sample, params: ScriptParams) -> float:
    """min(1, letters in the wanted scripts / all letters / minimum_share).

    0 for a text without letters. Letters alone tell no two languages of one script
    apart.
    """
    text = sample.completion
    if params.tag:
        text = last_block(text, params.tag) or ""
    if params.ignore_latex:
        text = _LATEX_COMMAND.sub(" ", text)
    counts = Counter(text)
    # Sorted, letters of one script stand together, and few runs are cut out.
    letters = compile_pattern(_NO_LETTERS).sub("", "".join(sorted(counts)))
    classes = "".join(rf"\p{{{name}}}" for name in params.scripts.split(","))
    others = compile_pattern(f"[{classes}]+").sub("", letters)
    num_letters = sum(counts[letter] for letter in letters)
    if num_letters == 0:
        return 0.0
    share = 1 - sum(counts[letter] for letter in others) / num_letters
    return min(1.0, share / params.minimum_share)


RULE = Rule(
    kind="script",
    title="Script",
    summary="The completion's letters are of the wanted scripts, such as Latin or Han.",
    params_model=ScriptParams,
    score=score_script,
    example_pass=Example(sample=Sample("Why?", "Because 2 > 1: it is larger.")),
    example_fail=Example(sample=Sample("Why?", "Because 二 is larger.")),
)
