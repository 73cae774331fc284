"""The command group `allocator`. It prints the errors of all commands in the same form."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from allocator import __version__
from allocator.core.text import limit_reached, plain
from allocator.errors import AllocatorError, ConfigError

# name -> place and one line of help. Commands are imported on first use, so that `allocator --help` stays fast.
LAZY = {
    "archive": ("allocator.cli.pipelines:archive", "Append topics to tables, each record exactly once."),
    "audit": ("allocator.cli.pipelines:audit", "Compare two topics, or a topic and an archive."),
    "skew": ("allocator.cli.pipelines:skew", "Show how evenly records are distributed over partitions and keys."),
    "cluster": ("allocator.cli.cluster:cluster", "Run real Kafka and ZooKeeper on this machine, for experiments."),
    "deadletters": ("allocator.cli.deadletters:deadletters", "List, redrive or discard dead letters."),
    "doctor": ("allocator.cli.doctor:doctor", "Diagnose a cluster and a group: findings, consequences, remedies."),
    "group": ("allocator.cli.operator_commands:group", "Show consumer groups (members, owners, lag), and steer them."),
    "mirror": ("allocator.cli.mirror:mirror", "Copy topics to a new cluster as they grow, with a map of offsets."),
    "records": ("allocator.cli.records:records", "Show records of a topic by offset, time or key, decoded and masked."),
    "cutover": ("allocator.cli.cutover:cutover", "Move groups to a new cluster, following a plan, while services run."),
    "offsets": ("allocator.cli.offsets:offsets", "Copy the offsets of a group to another group or cluster."),
    "topics": ("allocator.cli.topics:topics", "Carry settings and ACLs of topics over to another cluster."),
    "traffic": ("allocator.cli.traffic:traffic", "Record the content of topics, for tests."),
    "top": ("allocator.cli.top:top", "Show groups, members, lag and rates, live in this terminal."),
    "web": ("allocator.cli.web:web", "Serve a status page for groups, with metrics for Prometheus."),
}
# task -> all its commands, in the order of `--help`
TASKS = {
    "Consume": ("run", "deadletters"),
    "Inspect groups": ("group", "top", "web", "doctor", "skew", "records"),
    "Move to another cluster": ("topics", "offsets", "mirror", "audit", "cutover", "archive"),
    "Experiment": ("cluster", "traffic"),
}

ERROR, USAGE, INTERRUPTED, PIPE_CLOSED = 1, 2, 128 + signal.SIGINT, 128 + signal.SIGPIPE
_JSON = "allocator.cli.json"

_FIRST_STEPS = (
    ("allocator cluster up", "run servers for experiments, until Ctrl-C"),
    ("allocator run orders.toml --check", "list all wrong settings"),
    ("allocator run orders.toml", "call your function for each record"),
    ("allocator group describe billing", "show owners, offsets, lag and problems"),
    ("allocator group offsets billing --json", "print offsets and lag for a program"),
    ("allocator doctor billing", "show findings, consequences and remedies"),
)
_EXIT_CODES = (
    ("0", "done, or stopped cleanly by a signal"),
    ("1", "failed: a server cannot be reached or refused a request; or the output is incomplete"),
    ("2", "wrong usage or settings; nothing was changed"),
    (
        "3",
        "`run`: a record could not be processed, and there is no dead-letter topic; `doctor`: there are warnings or "
        "critical findings; `audit`: the two sides differ",
    ),
    (
        "128 + n",
        "stopped at once by signal n; 130 if a signal stops `cluster up` before its servers have started; 141 if the "
        "reader of the output has ended",
    ),
)
_EPILOG = (
    "Environment variables may name the servers: ALLOCATOR_KAFKA_BROKERS=b1:9092,b2:9092 and "
    "ALLOCATOR_ZOOKEEPER_HOSTS=z1:2181,z2:2181/chroot."
)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in LAZY:
            return super().get_command(ctx, name)
        module, _, attribute = LAZY[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **given: Any) -> click.Context:
        with _reported():  # --help prints here
            return super().make_context(*args, **given)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            # click suggests only commands that are already imported
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        found = super().resolve_command(ctx, args)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            # `allocator.cli` set SIG_DFL for the imports; a command may have to clean up, so Ctrl-C raises again
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. If it fails, prints the error and exits with the code for its kind."""
        with _reported(ctx):
            try:
                return super().invoke(ctx)
            except AllocatorError as error:
                _fail(ctx, error, USAGE if isinstance(error, ConfigError) else ERROR)
            except click.ClickException as error:
                if not ctx.meta[_JSON]:
                    raise
                _fail(ctx, error.__cause__ or error, error.exit_code, error.format_message())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click's completion reads the help of each command, which would import all of them at each Tab
        names = dict(pair for _, pairs in self._by_task() for pair in pairs)
        found = [CompletionItem(name, help=names[name]) for name in sorted(names) if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("First steps"):
            formatter.write_dl(_FIRST_STEPS, col_max=40)
        for task, commands in self._by_task():
            with formatter.section(task):
                formatter.write_dl(commands)
        with formatter.section("Exit codes"):
            formatter.write_dl(_EXIT_CODES)

    def _by_task(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        texts = {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        texts.update({name: text for name, (_, text) in LAZY.items()})
        for task, names in TASKS.items():
            yield task, [(name, texts[name]) for name in names]


@contextlib.contextmanager
def _reported(ctx: click.Context | None = None) -> Iterator[None]:
    """Ends the process without a traceback on Ctrl-C, on a closed pipe, or at a limit of the system."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        sys.exit(PIPE_CLOSED)
    except (OSError, MemoryError, ImportError, RuntimeError, SystemError) as error:
        limit = limit_reached(error)
        if limit is None:
            raise
        _fail(ctx, error, ERROR, limit)


def _drop_output() -> None:
    """Discards unwritten output, because Python would flush it at exit and fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(ctx: click.Context | None, error: BaseException, code: int, message: str | None = None) -> NoReturn:
    in_json = ctx is not None and ctx.meta[_JSON]
    try:
        if in_json:
            kind, retriable = type(error).__name__, bool(getattr(error, "retriable", False))
            what = {"type": kind, "message": message or str(error), "retriable": retriable}
            click.echo(json.dumps({"error": what}, indent=2))
        sys.stdout.flush()
    except OSError:
        _drop_output()
        in_json = False
    if not in_json:
        with contextlib.suppress(OSError):  # standard error may be the same full device
            click.echo(f"error: {plain(message or str(error), lines=True)}", err=True)
    sys.exit(code)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from allocator.core.fetch import accelerated

        click.echo(f"allocator, version {__version__}, decoder: {'compiled' if accelerated else 'plain'}")
        ctx.exit()


@click.group(cls=_LazyGroup, epilog=_EPILOG, context_settings={"show_default": True})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the decoder of records, and exit.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Exclusive partition ownership for Kafka consumers through ZooKeeper.

    Assigns the partitions of topics to the members of a group, which consume them, on Kafka 0.8 to 4.x. Every command
    has --help. With --json, commands print results and errors as JSON.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may have characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    # only `run` shows logs; other commands report an unreachable server in their error
    if ctx.invoked_subcommand != "run":
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)


@main.command()
@click.argument("config", type=click.Path(dir_okay=False))
@click.option("--check", is_flag=True, help="Only check the settings, the handler and the allocator functions.")
@click.option("--connect", is_flag=True, help="With --check: also check servers, topics, group and ports.")
@click.option("--create", is_flag=True, help="Create the chroot in zookeeper.hosts if it does not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print the result of --check as JSON.")
@click.pass_context
def run(ctx: click.Context, config: str, check: bool, connect: bool, create: bool, as_json: bool) -> None:
    """Run a consumer with the settings in CONFIG (TOML), until a signal or a failure.

    The command refuses a chroot that does not exist: with a mistyped chroot, this member would start a second group and
    own all partitions.

    At SIGTERM or SIGINT, it finishes the records in progress, commits, and leaves the group. A second signal stops it
    at once.

    \b
    Exit codes:
      0        stopped by a signal, all records finished and committed
      1        a cluster cannot be reached or refused a request, the last commit failed, or a check of --connect failed
      2        wrong usage, settings, handler or allocator function
      3        a record could not be processed, and there is no dead-letter topic
      128 + n  a second signal n stopped it at once
    """
    from allocator import daemon

    if connect and not check:
        raise click.UsageError("--connect needs --check")
    try:
        settings = daemon.load_with_code(config) if check else daemon.load(config)
        beside = None
        if settings.web.port is not None:  # only this setting needs the package
            from allocator.cli.web import beside as serving

            beside = serving(settings)
    except AllocatorError as error:
        _fail(ctx, error, USAGE)
    if not check:
        sys.exit(daemon.run(settings, beside, create=create))
    if not as_json:
        click.echo(_as_toml(settings.shown()))
        click.echo(f"\n{config} is fine", err=True)
    checks = daemon.try_servers(settings, None if as_json else click.echo) if connect else []
    ok = all(each.ok is not False for each in checks)
    if as_json:
        found = {"checks": [vars(each) for each in checks]} if connect else {}
        click.echo(json.dumps({"ok": ok, "settings": settings.shown(), **found}, indent=2))
    sys.exit(0 if ok else ERROR)


def _as_toml(settings: dict[str, dict[str, Any]]) -> str:
    return "\n\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())])
        for name, values in settings.items()
    )
