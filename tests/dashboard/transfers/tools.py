"""Files as TRL, verl, TensorBoard and W&B write them, from their sources.

TRL: GRPOTrainer.log. verl: RayPPOTrainer._dump_generations. TensorBoard:
EventFileWriter's records with simple values, and TF 2's with tensors.
"""

import io
import json
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.dashboard.transfers.event_files import crc_by_bits, masked

PROMPTS = ["What is 1 + 1?", "What is 2 + 3?"]


def trl_rows(step: int, *, old: bool = False) -> dict[str, list[Any]]:
    """Two groups of two; a function had no score for one completion."""
    rewards = [1.0, 0.0, 1.0, 1.0]
    table: dict[str, list[Any]] = {
        "step": [str(step)] * 4 if old else [step] * 4,
        "prompt": [p for p in PROMPTS for _ in range(2)],
        "completion": [f"{step}: answer {i}" for i in range(4)],
        "accuracy_reward": rewards,
        "format_reward": [0.5, 0.5, None, 0.5],
    }
    if not old:
        table["advantage"] = [0.7, -0.7, 0.0, 0.0]
    return table


def parquet(table: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


def trl_parquet(step: int, *, old: bool = False) -> bytes:
    return parquet(trl_rows(step, old=old))


def verl_jsonl(step: int, **changes: list[Any]) -> bytes:
    """As `_dump_generations` does; the batch was balanced, so groups are mixed up."""
    base: dict[str, list[Any]] = {
        "input": [PROMPTS[i % 2] for i in range(4)],
        "output": [f"out {step}.{i}" for i in range(4)],
        "gts": ["2", "5", "2", "5"],
        "score": [1.0, -1.0, 0.0, -1.0],
        "step": [step] * 4,
        "acc": [True, False, False, False],
        "pred": ["2", "7", "3", "8"],
        **changes,
    }
    entries = [{k: v[i] for k, v in base.items()} for i in range(4)]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    return ("\n".join(lines) + "\n").encode()


def event_file(points: list[tuple[int, float, dict[str, float]]]) -> bytes:
    """As torch's SummaryWriter: a record for each tag."""
    records = [_record(_double(1, points[0][1]) + _bytes(3, b"brain.Event:2"))]
    for step, time, values in points:
        for tag, value in values.items():
            value_field = _bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
            records.append(_record(_event(step, time, value_field)))
    return b"".join(records)


def tensor_record(step: int, time: float, tag: str, value: float) -> bytes:
    """As TF 2's summary.scalar: a tensor without dimensions."""
    tensor = b"\x08\x01" + _bytes(2, b"") + _bytes(5, struct.pack("<f", value))
    return _record(_event(step, time, _bytes(1, tag.encode()) + _bytes(8, tensor)))


def text_record(step: int, time: float, tag: str) -> bytes:
    tensor = b"\x08\x07" + _bytes(8, b"a text")
    return _record(_event(step, time, _bytes(1, tag.encode()) + _bytes(8, tensor)))


def _event(step: int, time: float, value: bytes) -> bytes:
    return _double(1, time) + b"\x10" + _varint(step) + _bytes(5, _bytes(1, value))


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    checks = [struct.pack("<I", masked(crc_by_bits(d))) for d in (length, message)]
    return length + checks[0] + message + checks[1]


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _bytes(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


WANDB_PANEL = (
    '"Step","qwen - a - train/reward","qwen - a - train/reward__MIN",'
    '"qwen - a - train/reward__MAX","llama - train/reward",'
    '"llama - train/reward__MIN","llama - train/reward__MAX"\n'
    '"1","0.25","0.25","0.25","0.1","0.1","0.1"\n'
    '"2","0.5","0.5","0.5","","",""\n'
)
WANDB_HISTORY = (
    "_step,_timestamp,_runtime,train/global_step,train/loss,train/kl,table\n"
    "0,1772366400.5,1.0,10,0.5,NaN,{'a': 1}\n"
    "1,1772366410.5,11.0,20,-0.25,0.01,\n"
    "2,1772366420.5,21.0,,7,,\n"
)
