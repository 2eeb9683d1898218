"""Rules for the language or script of a completion."""

from __future__ import annotations

import re
from collections import Counter

from pydantic import Field, field_validator

from trainer.rewards.extraction import last_block
from trainer.rewards.judge import JudgeFailed, ask
from trainer.rewards.rule import (
    Example,
    NotApplicable,
    Params,
    Rule,
    Sample,
    Unscorable,
    compile_pattern,
)

# Those that py3langid's model knows; a test compares them with the installed one.
LANGUAGES = frozenset(
    """
    ace af am an ar ary arz as az ba bcl be bg bn br bs ca crh cs cy da de dz el
    en eo es et eu ext fa fi fo fr fuv fy ga gcf gcr gd gl gom grc gu gug guw ha
    hbo he hi hr ht hu hy id ig is it ja jv ka kab kik kk km kn ko ku ky la lb
    lg lij ln lo lt ltg lv mg mk ml mn mr ms mt my ne nl nn no nso oc om or pa
    pcm pl ps pt qu ro ru rw sa sdh se si sk sl sn so sq sr st sv sw ta te tg th
    tk tl tr tt ug uk ur uz uzs vec vi vo wa wuu xh yo yue zh zu
    """.split()  # noqa: SIM905 - a list of 139 strings would take a page
)
# Shorter texts are detected badly. In bytes of UTF-8, of which a Chinese character,
# that says more than a letter, has three.
_FEWEST_BYTES = 40
_MAX_CHARACTERS = 100_000
# What is written alike in every language: commands, tags, numbers and signs.
_NO_WORDS = re.compile(r"\\[A-Za-z]*|</?[A-Za-z][^<>]{0,100}>|[\d_=+*/^${}\[\]()|~#`]+")
# Two letters; one where each is a syllable or word.
_WORD = re.compile(r"[^\W\d_]{2}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_ENDS = re.compile(r"(?<=[.!?。！？\n])")


class LanguageParams(Params):
    language: str = Field(
        "en",
        min_length=2,
        max_length=3,
        description="ISO 639 code of the language: en, fr, zh.",
    )
    minimum_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the text in this language for the full score. A smaller "
        "share gives a proportional score.",
    )
    tag: str = Field(
        "",
        pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?$",
        description="Only check the text in the last pair of these tags, such as "
        "think. Empty: the whole completion.",
    )
    timeout_seconds: float = Field(
        5.0,
        ge=0.1,
        le=60,
        description="A completion that takes longer to check gets no score.",
        json_schema_extra={"unit": "seconds"},
    )

    @field_validator("language")
    @classmethod
    def _language_is_known(cls, language: str) -> str:
        if language not in LANGUAGES:
            raise ValueError(
                f'The language "{language}" is not supported. Use a code such as en, '
                "de, fr, es, ru, ar, hi, ja, ko or zh."
            )
        return language


def score_language(sample: Sample, params: LanguageParams) -> float:
    """min(1, letters of pieces in the language / all letters / minimum_share).

    A piece is some sentences, of at least 40 bytes of letters together. A text without
    words is in no language and has no score. 0 without the tags.
    """
    text = sample.text[-_MAX_CHARACTERS:]
    if params.tag:
        block = last_block(text, params.tag)
        if block is None:
            return 0.0
        text = block
    pieces = _pieces(text)
    counts = [sum(map(str.isalpha, piece)) for piece in pieces]
    if not _WORD.search(" ".join(pieces)):
        raise NotApplicable(
            "The text has no words, only numbers, signs or single letters, so it has "
            "no language. It gets a score when it has a word."
        )
    try:
        languages = ask(
            "py3langid", {"texts": pieces}, timeout_seconds=params.timeout_seconds
        )
    except JudgeFailed as error:
        raise Unscorable(str(error)) from error
    wanted = sum(
        count
        for count, language in zip(counts, languages["languages"], strict=True)
        if language == params.language
    )
    return min(1.0, wanted / sum(counts) / params.minimum_share)


def _pieces(text: str) -> list[str]:
    """Sentences, joined until there are letters enough; the last may have fewer."""
    pieces, piece, num_bytes = [], "", 0
    for sentence in _ENDS.split(_NO_WORDS.sub(" ", text)):
        piece += sentence
        num_bytes += len("".join(filter(str.isalpha, sentence)).encode())
        if num_bytes >= _FEWEST_BYTES:
            pieces.append(piece)
            piece, num_bytes = "", 0
    if not pieces or num_bytes >= _FEWEST_BYTES / 2:
        return [*pieces, piece]
    # Too few to tell: they are as what stands before them.
    return [*pieces[:-1], pieces[-1] + piece]


LANGUAGE = Rule(
    kind="language",
    title="Language",
    summary="The completion is written in the given language, such as English.",
    params_model=LanguageParams,
    score=score_language,
    example_pass=Example(
        sample=Sample("Why?", "Because the sky scatters the blue light of the sun.")
    ),
    example_fail=Example(
        sample=Sample("Why?", "Parce que le ciel diffuse la lumière bleue du soleil.")
    ),
)


_NAME = "[A-Z][A-Za-z_]{2,30}"
# Signs that every script shares, such as accents and the Japanese long vowel's.
_NO_LETTERS = r"[^\pL\pM]+|[\p{Common}\p{Inherited}]+"
# Python's own, which never has to go back here, replaces ten times as fast as RE2.
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")


class ScriptParams(Params):
    scripts: str = Field(
        "Latin",
        pattern=f"^{_NAME}(,{_NAME}){{0,7}}$",
        description="Unicode script names, separated by commas: Latin, Cyrillic, Han; "
        "for Japanese Han,Hiragana,Katakana.",
    )
    minimum_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of letters in these scripts for the full score. A smaller "
        "share gives a proportional score.",
    )
    tag: str = Field(
        "",
        pattern=r"^([A-Za-z][A-Za-z0-9_-]{0,31})?$",
        description="Only check the text in the last pair of these tags, such as "
        "think. Empty: the whole completion.",
    )
    ignore_latex: bool = Field(
        True, description="Ignore names of LaTeX commands, such as \\frac."
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
                    f'Unknown script "{name}". Use Unicode script names, such as '
                    "Latin, Greek, Cyrillic, Arabic, Devanagari, Han or Hangul."
                )
        return scripts


def score_script(sample: Sample, params: ScriptParams) -> float:
    """min(1, letters in the wanted scripts / all letters / minimum_share).

    0 for a text without letters. Letters alone tell no two languages of one script
    apart.
    """
    text = sample.text
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


SCRIPT = Rule(
    kind="script",
    title="Script",
    summary="The completion's letters are in the given scripts, such as Latin or Han.",
    params_model=ScriptParams,
    score=score_script,
    example_pass=Example(sample=Sample("Why?", "Because 2 > 1: it is larger.")),
    example_fail=Example(sample=Sample("Why?", "Because 二 is larger.")),
)
