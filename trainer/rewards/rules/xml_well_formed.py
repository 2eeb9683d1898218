"""Is the completion, or a part of it, well-formed XML?"""

from __future__ import annotations

from typing import Literal, NoReturn
from xml.parsers import expat

from pydantic import Field

from trainer.rewards.extraction import last_block, last_fence
from trainer.rewards.rule import Example, Params, Rule
from trainer.rewards.sample import Sample

_NAME = "[A-Za-z_][A-Za-z0-9_.:-]{0,63}"


class XmlWellFormedParams(Params):
    source: Literal["whole", "fence", "tags"] = Field(
        "whole",
        title="XML stands in",
        description="The whole completion, the last fenced block (```), or the last "
        "pair of tags.",
    )
    tag: str = Field(
        "answer",
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$",
        description="Name of the tags, without brackets.",
    )
    shape: Literal["document", "fragment"] = Field(
        "document",
        description="document: one element holds all others. fragment: any number of "
        "elements, with text between them.",
    )
    elements: str = Field(
        "",
        pattern=f"^({_NAME}(,{_NAME}){{0,31}})?$",
        description="Names of elements that must occur, separated by commas; the score "
        "is the share of them that do.",
    )


class _Refused(Exception):
    """A declaration of a document type, which entities could hide in."""


def score_xml(sample: Sample, params: XmlWellFormedParams) -> float:
    """0 for what is not well-formed XML, else the share of the elements that occur.

    Document types are refused, so there are no entities to expand and no files or
    addresses to read; a fragment must hold an element. Namespaces are not looked up.
    """
    text = _place(sample.completion, params)
    names = None if text is None else _read_names(text, params)
    if not names:
        return 0.0
    wanted = set(params.elements.split(",")) - {""}
    return len(wanted & names) / len(wanted) if wanted else 1.0


def _place(completion: str, params: XmlWellFormedParams) -> str | None:
    if params.source == "tags":
        return last_block(completion, params.tag)
    if params.source == "fence":
        return last_fence(completion)
    return completion.strip()


def _read_names(text: str, params: XmlWellFormedParams) -> set[str] | None:
    """The names of the elements; None when the text is not well-formed."""
    names: list[str] = []

    def refuse(*_: object) -> NoReturn:
        raise _Refused

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = lambda name, _: names.append(name)
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    if params.shape == "fragment":
        text = f"<fragment>{text}</fragment>"
    try:
        # At once: fed in pieces, a long token would be read anew with each.
        parser.Parse(text.encode("utf-8", "replace"), True)
    except (expat.ExpatError, _Refused):
        return None
    return set(names[1:] if params.shape == "fragment" else names)


RULE = Rule(
    kind="xml_well_formed",
    title="Well-formed XML",
    summary="The completion, or a part of it, is well-formed XML and has the wanted "
    "elements.",
    params_model=XmlWellFormedParams,
    score=score_xml,
    example_pass=Example(
        sample=Sample("A book?", "<book><title>Emma</title></book>"),
        params={"elements": "title"},
    ),
    example_fail=Example(
        sample=Sample("A book?", "<book><title>Emma</book>"),
        params={"elements": "title"},
    ),
)
