"""Images in messages are placeholders with their size and hash."""

import base64
import hashlib
import io

import pytest

from cohort.lines import IMAGE, Completion, part_text, text_of, turns_of, write_turns

pillow = pytest.importorskip("PIL.Image")
numpy = pytest.importorskip("numpy")


def encoded(form: str, *, width: int = 640, height: int = 480) -> bytes:
    sink = io.BytesIO()
    pillow.new("RGB", (width, height), "red").save(sink, form)
    return sink.getvalue()


def as_url(data: bytes, form: str) -> str:
    return f"data:image/{form.lower()};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_an_image_has_its_size_and_hash(form):
    data = encoded(form)
    url = as_url(data, form)
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "data": data}},
        {"type": "image", "image": {"bytes": data, "path": None}},
    ]

    texts = {part_text(part) for part in parts}

    (text,) = texts
    assert text.startswith(f"{IMAGE} 640 \u00d7 480")
    assert hashlib.sha256(data).hexdigest()[:12] in text


def test_a_truncated_image_has_no_size():
    data = encoded("JPEG")
    sizes = [
        part_text({"type": "image", "image": data[:end]}) for end in range(1, 200, 7)
    ]

    assert {"640" in text for text in sizes} == {True, False}


def test_an_image_of_pillow_has_its_size():
    image = pillow.new("RGB", (3, 2))

    assert "3 \u00d7 2" in part_text({"type": "image", "image": image})


def test_an_image_of_numpy_has_a_hash():
    pixels = numpy.zeros((2, 3, 3), dtype="uint8")

    expected = hashlib.sha256(pixels.tobytes()).hexdigest()[:12]
    assert expected in part_text({"type": "image", "image": pixels})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image"},
        {"type": "image", "image": 7},
        {"type": "image", "image": {"url": {}}},
        {"type": "image_url", "image_url": None},
    ],
)
def test_a_part_without_an_image_says_so(part):
    assert part_text(part) == f"{IMAGE}\u27e7"


@pytest.mark.parametrize("url", ["https://host/a.png", "data:image/png;base64,a"])
def test_an_address_has_a_hash_of_its_own(url):
    text = part_text({"type": "image_url", "image_url": {"url": url}})

    assert hashlib.sha256(url.encode()).hexdigest()[:12] in text


def test_messages_have_images_where_their_parts_stand():
    content = [{"type": "text", "text": "Is "}, {"type": "image"}, " a cat?", 7]
    prompt = [{"role": "user", "content": content}]
    said = [
        {"role": "assistant", "content": "look"},
        {"role": "tool", "name": "camera", "content": [{"type": "image"}]},
    ]

    text, trees = write_turns(Completion(turns=turns_of(said)))

    assert text_of(prompt) == f"Is {IMAGE}\u27e7 a cat?"
    assert text[trees[1]["start"] : trees[1]["end"]] == f"{IMAGE}\u27e7"
