"""The commands of `cohort`."""

from __future__ import annotations

import getpass
import json
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cohort.api import Client
from cohort.api.records import (
    Checkpoint,
    FoundCompletion,
    Group,
    GroupDetail,
    Point,
)
from cohort.api.run import FILTERS, POLL_SECONDS, Run, file_name, follow
from cohort.delivery import Delivery
from cohort.http import Refused, Server, find_server, query_of, save_login
from cohort.output import (
    BY_STATE,
    Bar,
    CommandEnded,
    number,
    print_error,
    print_json,
    print_table,
    print_text,
    short,
    show,
)
from cohort.spool import Spool


def sync(args: Namespace) -> None:
    """Send all events of a folder that the server does not have."""
    spool = Spool(args.folder)
    if not spool.exists:
        raise ValueError(
            f"{args.folder} is not a reporter folder: run.json is missing. Pass the "
            "folder that the reporter printed."
        )
    delivery = Delivery(spool, find_server())
    delivery.deliver()
    if delivery.over:
        raise ValueError(f"Some events were not sent. {delivery.over}")
    data = {"folder": str(args.folder), "address": delivery.address}
    show(args, data, f"Sent all events of {args.folder}: {delivery.address}")


def log_in(args: Namespace) -> None:
    """Reads the token from a prompt or a pipe; other users can see arguments."""
    if sys.stdin.isatty():
        token = getpass.getpass("Token (from the page API tokens): ")
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise ValueError(
            "Missing token. Create one on the page API tokens, then paste it or "
            "pipe it in."
        )
    server = Server(args.url.rstrip("/"), token.strip())
    me = Client(server.url, server.token).me
    path = save_login(server)
    show(
        args,
        {"url": server.url, "me": me},
        f"Logged in to {me.team.name} as {me.person.name} with scopes "
        f"{', '.join(me.scopes)}. Token saved in {path}.",
    )


def push(args: Namespace) -> None:
    name = args.file.name
    try:
        with (
            Bar(f"Uploading {name}") as uploading,
            Bar(f"Importing {name}") as importing,
        ):
            version = Client().datasets.push(
                args.file,
                name=args.name,
                dataset=args.to,
                prompt=args.prompt,
                template=args.template,
                answer=args.answer,
                columns=args.columns,
                system=args.system,
                last_reply=args.last_reply,
                leave_out=args.leave_out,
                key=args.key,
                on_upload=uploading,
                on_import=importing,
            )
    except Refused as error:
        raise error.reworded(_OPTIONS) from None
    num_left_out = version.num_left_out
    less = f" ({num_left_out:,} with errors left out)" if num_left_out else ""
    rows = "row" if version.num_rows == 1 else "rows"
    prompt, answer = (version.mapping.get(role) for role in ("prompt", "answer"))
    show(
        args,
        version,
        f"{version.dataset}@{version.number} has {version.num_rows:,} {rows}{less}; "
        f"prompt: {prompt or 'template'}, answer: {answer or 'none'}.",
    )


def list_named(args: Namespace) -> None:
    """Datasets or recipes."""
    items = Client().iterate(f"/{args.kind}", limit=_fetch_limit(args))
    titles = ("ID", "NAME", "CREATED", "DESCRIPTION")
    _show_list(args, list(items), titles, _named_row, right="ID")


def _named_row(item: Any) -> tuple[Any, ...]:
    return item["id"], item["name"], item["created_at"][:10], item["description"]


def list_presets(args: Namespace) -> None:
    items = Client().get("/presets")["presets"]
    _show_list(args, items, ("KEY", "TITLE"), lambda item: (item["key"], item["title"]))


def _fetch_limit(args: Namespace) -> int | None:
    """Return one more than is listed, to know whether there are more."""
    return args.limit + 1 if args.limit else None


def _show_list(
    args: Namespace,
    items: Sequence[Any],
    titles: Sequence[str],
    row_of: Callable[[Any], Sequence[Any]],
    *,
    right: str = "",
) -> None:
    limit = getattr(args, "limit", 0) or len(items)
    if args.json:
        for item in items[:limit]:
            print_json(item)
        return
    print_table(titles, map(row_of, items[:limit]), right=right)
    if len(items) > limit:
        print_text(f"Showing the first {limit:,}. Use --limit 0 to list all.")


COLUMNS = ("ID", "NAME", "STATE", "STEP", "OF", "REWARD", "BEST", "OWNER", "CREATED")
PROMPT_CHARS = 60
EXCERPT_BEFORE = 16  # characters before a match
MAX_TOML_BYTES = 2**20  # a hundred times the longest preset


def run_number(text: str) -> int:
    """Read a run's number, or the URL of its page.

    >>> run_number("7"), run_number("https://cohort.example.org/lab/runs/7/groups")
    (7, 7)
    """
    match = re.fullmatch(r"\d{1,18}", text) or re.search(
        r"/runs/(\d{1,18})(?!\d)", text
    )
    if match is None:
        raise ArgumentTypeError(
            f"must be a run number or the URL of a run's page; got {text!r}"
        )
    return int(match[match.lastindex or 0])


def list_runs(args: Namespace) -> None:
    items = Client().runs.list(args.query, sort=args.sort, limit=_fetch_limit(args))
    _show_list(args, items, COLUMNS, _run_row, right="ID STEP OF REWARD BEST")


def _run_row(run: Run) -> tuple[Any, ...]:
    return (
        run.id,
        run.name,
        run.state,
        run.last_step,
        run.num_steps,
        number(run.last_reward),
        number(run.best_reward),
        run.owner.username if run.owner else "–",
        f"{run.created_at:%Y-%m-%d %H:%M}",
    )


def show_run(args: Namespace) -> None:
    run = Client().runs.get(args.run)
    _show_run(args, run)
    if run.reason and not args.json:
        print_text(run.reason)


def launch(args: Namespace) -> None:
    toml = None
    if args.toml is not None:
        toml = sys.stdin.read() if str(args.toml) == "-" else _text_of(args.toml)
    client = Client()
    try:
        run = client.runs.launch(
            args.start,
            name=args.name,
            is_scaled=args.scaled,
            model=args.model,
            dataset=args.dataset,
            recipe=args.recipe,
            held_out=dict(args.held_out) if args.held_out else None,
            settings=dict(args.set),
            toml=toml,
            confirm=args.yes,
            key=args.key,
        )
    except Refused as error:
        raise error.reworded(_OPTIONS) from None
    if not (args.json and args.watch):
        _show_run(args, run)
    if args.watch:
        show_until_it_ends(client, run.id, as_json=args.json)


# API fields and client arguments in error messages, as command-line options.
_OPTIONS = {
    "send leave_out: ": "pass --leave-out ",
    "pass dataset=": "pass --to ",
    "Pass recipe=": "Pass --recipe ",
    "Pass dataset=": "Pass --dataset ",
    "Send confirm: true to launch": "Pass --yes to launch",
}


def watch(args: Namespace) -> None:
    show_until_it_ends(
        Client(),
        args.run,
        as_json=args.json,
        from_step=args.from_step,
        every_seconds=args.every,
    )


def act(args: Namespace) -> None:
    """Stop, cancel, pause or resume."""
    run = Client().runs.get(args.run)
    getattr(run, args.verb)()
    _show_run(args, run.refresh())


def extend(args: Namespace) -> None:
    run = Client().runs.get(args.run)
    run.extend(args.last_step)
    _show_run(args, run.refresh())


def export(args: Namespace) -> None:
    client, target = Client(), args.file
    steps = {"first_step": args.first_step, "last_step": args.last_step}
    if str(target) == "-":  # not retried: printed bytes cannot be taken back
        name = quote(file_name(target, args.what), safe="")
        path = f"/runs/{args.run}/files/{name}{query_of(**steps)}"
        for chunk in client.server.chunks(path):
            sys.stdout.buffer.write(chunk)
        return
    run = client.runs.get(args.run)
    with Bar(f"Downloading {target.name}") as bar:
        run.export(
            target, what=args.what, **steps, overwrite=args.force, on_progress=bar
        )
    num_bytes = target.stat().st_size
    data = {"run": run.id, "file": str(target), "num_bytes": num_bytes}
    show(args, data, f"Saved {target} ({num_bytes:,} bytes).")


def list_checkpoints(args: Namespace) -> None:
    items = Client().runs.get(args.run).checkpoints()
    titles = ("NAME", "STEP", "SCORE", "MARGIN", "BYTES", "STATE")
    right = "STEP SCORE MARGIN BYTES"
    _show_list(args, items, titles, _checkpoint_row, right=right)


def _checkpoint_row(item: Checkpoint) -> tuple[Any, ...]:
    marks = {"best": item.is_best, "pinned": item.is_pinned}
    state = ", ".join(mark for mark, is_so in marks.items() if is_so) or "kept"
    return (
        item.name,
        item.step,
        number(item.score),
        number(item.margin),
        item.num_bytes,
        state if item.is_there else "deleted",
    )


def get_checkpoint(args: Namespace) -> None:
    """Download a model as a tar file."""
    run = Client().runs.get(args.run)
    checkpoint = run.find_checkpoint(args.which)
    with Bar(f"Downloading {checkpoint.name}") as bar:
        saved = run.download_checkpoint(
            checkpoint.name, args.to, overwrite=args.force, on_progress=bar
        )
    data = {"run": run.id, "checkpoint": checkpoint.name, "file": str(saved)}
    show(args, data, f"Saved {saved}: step {checkpoint.step:,} of {run.name}.")


def show_groups(args: Namespace) -> None:
    run = Client().runs.get(args.run)
    if args.group is not None:
        group = run.group(args.step, args.group)
        print_json(group) if args.json else _print_group(run, group)
        return
    groups = run.groups(args.step)
    if not groups and not args.json:
        raise ValueError(
            f"Run {run.id} has no groups for step {args.step}. It is {run.state} at "
            f"step {run.last_step}."
        )
    titles = ("GROUP", "SIGNAL", "MEAN", "STD", "PROMPT")
    _show_list(args, groups, titles, _group_row, right="GROUP MEAN STD")


def _group_row(group: Group) -> tuple[Any, ...]:
    prompt = short(group.snippet or group.prompt, PROMPT_CHARS)
    mean, std = number(group.reward_mean), number(group.reward_std)
    return group.prompt_index, group.signal, mean, std, prompt


def _print_group(run: Run, group: GroupDetail) -> None:
    print_text(f"{run.address}groups/{group.step}/{group.prompt_index}/")
    answers = group.answer or "none"
    answer = answers if isinstance(answers, str) else " or ".join(answers)
    print_text(
        f"{group.signal}, reward {number(group.reward_mean)} ± "
        f"{number(group.reward_std)}, answer: {answer}"
    )
    print_text(f"\n{group.prompt}")
    for c in group.completions:
        rules = "  ".join(f"{n} {number(v)}" for n, v in c.rule_scores.items())
        print_text(
            f"\nCompletion {c.position + 1}  reward {number(c.reward)}  advantage "
            f"{number(c.advantage)}  {rules}  {c.num_tokens or '–'} tokens, "
            f"{c.end_reason}"
        )
        print_text("\n".join(f"    {line}" for line in c.text.split("\n")))


def list_completions(args: Namespace) -> None:
    run = Client().runs.get(args.run)
    filters = {name: getattr(args, name) for name in FILTERS}
    found = run.completions(limit=_fetch_limit(args), **filters)
    titles = ("STEP", "PROMPT", "POSITION", "REWARD", "TOKENS", "END", "TEXT")

    def row_of(completion: FoundCompletion) -> tuple[Any, ...]:
        return (
            completion.step,
            completion.prompt_index,
            completion.position,
            number(completion.reward),
            completion.num_tokens or "–",
            completion.end_reason,
            _excerpt(completion.text, args.text or ""),
        )

    right = "STEP PROMPT POSITION REWARD TOKENS"
    _show_list(args, list(found), titles, row_of, right=right)


def _excerpt(text: str, found: str) -> str:
    """
    >>> _excerpt(f"{'a' * 90} I think so", "i think")
    '…aaaaaaaaaaaaaaa I think so'
    """
    start = max(text.lower().find(found.lower()) - EXCERPT_BEFORE, 0)
    return short(f"{'…' if start else ''}{text[start:]}", PROMPT_CHARS)


def _show_run(args: Namespace, run: Run) -> None:
    if args.json:
        print_json(run)
        return
    print_text(
        f"Run {run.id} ({run.name}) is {run.state}, step {run.last_step:,} of "
        f"{run.num_steps:,}: {run.address}"
    )


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            read = file.read(MAX_TOML_BYTES + 1)
        if len(read) <= MAX_TOML_BYTES:
            return read.decode()
    except OSError as error:
        raise ValueError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}.") from None
    raise ValueError(
        f"{path} is too large. A settings file has at most {MAX_TOML_BYTES:,} bytes."
    )


def setting(text: str) -> tuple[str, Any]:
    """
    >>> setting("optim.learning_rate=1e-6"), setting("loss.surrogate=cispo")
    (('optim.learning_rate', 1e-06), ('loss.surrogate', 'cispo'))
    """
    name, is_given, value = text.partition("=")
    if not is_given or not name.strip():
        raise ArgumentTypeError(f"must be PATH=VALUE; got {text!r}")
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = value
    is_value = read is None or isinstance(read, str | bool | int | float)
    return name.strip(), read if is_value else value


def held_out(text: str) -> tuple[str, str]:
    """
    >>> held_out("hard=sums@2"), held_out("sums")
    (('hard', 'sums@2'), ('sums', 'sums'))
    """
    name, is_given, reference = text.partition("=")
    return (name, reference) if is_given else (text.rpartition("@")[0] or text, text)


SCORE = re.compile(r"eval/([^/]+)/(mean|pass@\d+|maj@(?!1$)\d+)")
SHOWN = {
    "reward/mean": "reward",
    "kl/mean": "kl",
    "entropy": "entropy",
    "loss": "loss",
    "completion/mean_length": "length",
    "time/step": "seconds",
}


def show_until_it_ends(
    client: Client,
    run_id: int,
    *,
    as_json: bool,
    from_step: int | None = None,
    every_seconds: float = POLL_SECONDS,
) -> None:
    """Raises CommandEnded with the exit code of the run's final state."""
    if from_step is None:  # on a terminal, skip the steps already done
        is_terminal = sys.stdout.isatty()
        from_step = client.runs.get(run_id).last_step if is_terminal else 0
    updates = follow(client, run_id, from_step=from_step, every_seconds=every_seconds)
    state = ""
    try:
        for run, points in updates:
            if run.state != state:
                state = run.state
                if as_json:
                    print_json({"event": "state", "run": run.id, "state": run.state})
                else:
                    print_text(f"run {run.id} {run.state}")
            for point in points:
                if as_json:
                    print_json(
                        {
                            "event": "step",
                            "run": run.id,
                            "num_steps": run.num_steps,
                            "step": point.step,
                            "time": point.time,
                            "values": point.values,
                        }
                    )
                elif values := _values_text(point):
                    print_text(f"step {point.step}/{run.num_steps}  {values}")
    except KeyboardInterrupt:
        print_error(f"Stopped watching; run {run_id} continues.")
        raise
    if not as_json:
        reason = f" {run.reason}" if run.reason else ""
        was = "was " if run.state == "stopped" else ""
        print_text(
            f"Run {run.id} ({run.name}) {was}{run.state} at step "
            f"{run.last_step:,} of {run.num_steps:,}.{reason} {run.address}"
        )
    raise CommandEnded(BY_STATE[run.state])


def _values_text(point: Point) -> str:
    """Metrics and held-out scores, without held-out lengths and intervals."""
    values = point.values
    parts = {title: values[name] for name, title in SHOWN.items() if name in values}
    parts |= {name: value for name, value in values.items() if SCORE.fullmatch(name)}
    return "  ".join(f"{name} {number(value)}" for name, value in parts.items())
