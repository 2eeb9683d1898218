"""Where rows come from: a file, pasted text, a link."""

from __future__ import annotations

from django import forms

from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.datasets.limits import MAX_PASTED_CHARS, MAX_UPLOAD_BYTES, PART_BYTES
from dashboard.datasets.parsing.detection import CHOICES, PACKED_SUFFIXES, SUFFIXES


class UploadForm(forms.Form):
    file = forms.FileField(
        label="File",
        help_text=f"{CHOICES}, as it is or packed (.gz, .zst), up to "
        f"{num_bytes(MAX_UPLOAD_BYTES)}. You see its columns before anything is "
        "imported. If the connection breaks, the upload resumes where it stopped.",
        widget=forms.FileInput(
            attrs={
                "class": "form-control",
                "accept": ",".join([*SUFFIXES, *PACKED_SUFFIXES]),
                "data-max-bytes": MAX_UPLOAD_BYTES,
                "data-part-bytes": PART_BYTES,
            }
        ),
        error_messages={
            "required": "No file was sent. Choose one.",
            "empty": "The file is empty. Choose one that holds rows.",
        },
    )


class PasteForm(forms.Form):
    rows = forms.CharField(
        label="Rows",
        strip=False,
        max_length=MAX_PASTED_CHARS,
        help_text="JSON lines, one JSON list, or a table as a spreadsheet copies it: "
        "CSV or TSV with a header line and two columns or more.",
        widget=forms.Textarea(
            attrs={
                "class": "form-control pasted-rows",
                "rows": 6,
                "spellcheck": "false",
            }
        ),
        error_messages={"required": "Nothing was pasted. Paste some rows."},
    )


class LinkForm(forms.Form):
    """Where a worker fetches a file from."""

    link = forms.CharField(
        label="URL of a file, or id of a hub dataset",
        max_length=4_000,
        help_text="https://… of a JSONL, JSON, CSV, TSV or Parquet file, packed or "
        "not; or owner/name of the Hugging Face hub, such as openai/gsm8k.",
        widget=forms.TextInput(
            attrs={"class": "form-control", "spellcheck": "false", "inputmode": "url"}
        ),
        error_messages={"required": "No link was given. Paste one."},
    )
    revision = forms.CharField(
        label="Revision",
        required=False,
        max_length=200,
        help_text="Of a hub dataset: branch, tag or commit; empty: main.",
        widget=forms.TextInput(attrs={"class": "form-control", "spellcheck": "false"}),
    )
    part = forms.CharField(
        label="Split or file",
        required=False,
        max_length=500,
        help_text="Of a hub dataset: such as train, main/train or data/train.jsonl; "
        "empty: choose from what there is.",
        widget=forms.TextInput(attrs={"class": "form-control", "spellcheck": "false"}),
    )


class TransferForm(forms.Form):
    """A file that is about to arrive in parts."""

    filename = forms.CharField(max_length=1_000, strip=False)
    num_bytes = forms.IntegerField(min_value=0, max_value=2**60)
    fingerprint = forms.CharField(max_length=64)
