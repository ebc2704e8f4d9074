"""The commands of `redis-replay`: each parses, calls public names, and prints."""

import contextlib
import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any, TypeVar

import click
from redis.exceptions import RedisError

from redis_replay import ReplayBuffer, checkpoint, embedded
from redis_replay import doctor as doctors
from redis_replay.exceptions import BufferDamagedError, BufferNotFoundError, FormatError, ReplayError

_Command = TypeVar("_Command", bound=Callable[..., Any])
SHOWN = 10  # findings of a key
_INVARIANTS = {
    "I1": "storage_size is the length of the stream",
    "I2": "write_count is live + hidden + leased + consumed + evicted + removed + stale",
    "I3": "every entry of a side key names a stored record",
    "I4": "no index is above the last one given",
    "I5": "live + hidden + leased are within capacity",
}


class _OneLine(click.Group):
    """A group whose commands' own errors are one line on stderr and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # who reads has had enough
            raise
        except (ReplayError, RedisError, OSError) as error:
            raise click.ClickException(_line(error)) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _url(command: _Command) -> _Command:
    return click.option(
        "--url",
        envvar="REDIS_URL",
        default="redis://localhost:6379/0",
        show_default=True,
        show_envvar=True,
        help="Where the buffer's server is.",
    )(command)


def _open(url: str, name: str, hint: str = "") -> ReplayBuffer:
    try:
        return ReplayBuffer(url, name)
    except BufferNotFoundError as error:
        raise click.ClickException(f"there is no buffer {name!r} on that server{hint}") from error


@click.group(cls=_OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="redis-replay")
def commands() -> None:
    """An experience-replay buffer that lives in Redis or Valkey."""


@commands.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
@_url
def stats(name: str, as_json: bool, url: str) -> None:
    """Every counter of the buffer NAME."""
    with _open(url, name) as buffer:
        figures = buffer.stats()
    if as_json:
        click.echo(json.dumps(figures))
        return
    width = max(map(len, figures))
    for key in sorted(figures):
        click.echo(f"{key:<{width}}  {figures[key]}")


@commands.command()
@click.argument("name")
@click.option("--repair", is_flag=True, help="Mend what can be mended without inventing data; others' calls wait meanwhile.")
@click.option("--yes", is_flag=True, help="With --repair: do not ask where records are lost.")
@click.option(
    "--dump",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --repair: dump it here first. [default: NAME.before-repair.ckpt, or one with a number]",
)
@_url
def doctor(name: str, repair: bool, yes: bool, dump: Path | None, url: str) -> None:
    """Whether the invariants of the buffer NAME hold. Exit code 1 if one is broken and was not mended.

    Changes nothing, unless --repair is given: then what is left is dumped, and put in the buffer's place. It asks first where
    the bytes of records are lost.
    """
    if (dump or yes) and not repair:
        raise click.UsageError("--dump and --yes go with --repair")
    try:
        report = doctors.examine(url, name)
        _tell(report)
        if not repair:
            raise click.exceptions.Exit(0 if report.ok else 1)
        if report.lost and not yes:
            click.confirm(f"The bytes of {report.lost:,} records are lost. Go on without them?", abort=True)
        done = doctors.repair(url, name, dump or _unused(name))
    except BufferNotFoundError as error:
        raise click.ClickException(f"there is no buffer {name!r} on that server") from error
    click.echo("repaired:" if done.path else "nothing to repair")
    for line in done.did:
        click.echo(f"   {line}")
    if done.path:
        click.echo(f"what was left before is in {done.path}")


def _unused(name: str) -> Path:
    """A name for the dump of a repair: never that of an earlier one."""
    stem = f"{name.replace('/', '_').replace(':', '_')}.before-repair"
    names = (Path(f"{stem}{number}.ckpt") for number in chain([""], (f"-{i}" for i in count(2))))
    return next(path for path in names if not path.exists())


def _tell(report: doctors.Report) -> None:
    for invariant, claim in _INVARIANTS.items():
        findings = [finding for finding in report.findings if finding.invariant == invariant]
        verdict = "is broken" if findings else "could not be checked" if invariant in report.unchecked else "holds"
        click.echo(f"{invariant} {verdict}: {claim}")
        for key, of_key in groupby(findings, lambda finding: finding.key):
            several = list(of_key)
            for finding in several[:SHOWN]:
                click.echo(f"   {key}: expected {finding.expected}, found {finding.found}")
            if len(several) > SHOWN:
                click.echo(f"   {key}: and {len(several) - SHOWN:,} more")
    click.echo("looked at: " + ", ".join(f"{n} {what}" for what, n in report.checked.items()))


@commands.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_url
def delete(name: str, yes: bool, url: str) -> None:
    """Delete the buffer NAME for everyone, with all it holds."""
    buffer, what = None, "what is left of it"
    with contextlib.ExitStack() as stack:
        try:
            buffer = stack.enter_context(_open(url, name))
            what = f"its {buffer.storage_size:,} records"
        except (BufferDamagedError, FormatError) as error:
            click.echo(_line(error), err=True)
        if not yes:
            click.confirm(f"Delete buffer {name!r} with {what}?", abort=True)
        buffer = buffer or stack.enter_context(ReplayBuffer(url, name, capacity=1, fresh=True))
        buffer.delete()
    click.echo(f"buffer {name!r} is deleted")


@contextlib.contextmanager
def _bar(words: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, where that is a terminal; gives what is called with (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(words, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@commands.command()
@click.argument("name")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--max-hold-bytes", type=click.IntRange(0), default=2**30, show_default=True, help="That the server may keep.")
@_url
def dump(name: str, path: Path, max_hold_bytes: int, url: str) -> None:
    """Write all that the buffer NAME is, at one moment, to the file PATH, while everybody goes on."""
    with _open(url, name) as buffer, _bar(f"{name} → {path}") as progress:
        done = buffer.dumps(path, max_hold_bytes=max_hold_bytes, progress=progress)
    click.echo(f"{done:,} records written to {path}")


@commands.command()
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--merge", is_flag=True, help="Write its records as new ones, beside those that are there.")
@_url
def load(name: str, path: Path, merge: bool, url: str) -> None:
    """Put what the file PATH holds in the place of all that the buffer NAME holds.

    A buffer that is not there is created with the settings of the one that was dumped.
    """
    saved = checkpoint.open(path)
    undo = contextlib.ExitStack()
    try:
        buffer = ReplayBuffer(url, name)
    except BufferNotFoundError:
        buffer = ReplayBuffer(url, name, **saved.settings)  # type: ignore[arg-type]
        undo.callback(buffer.delete)  # where nothing comes of it
    with buffer, undo, _bar(f"{path} → {name}") as progress:
        done = buffer.loads(path, merge=merge, progress=progress)
        undo.pop_all()
        click.echo(f"{done:,} records loaded into buffer {name!r}, which has {buffer.storage_size:,}")


@commands.command("import")
@click.argument("name")
@click.option("--from", "kind", type=click.Choice(["hdf5", "minari", "npz", "torchrl"]), required=True, help="What it is.")
@click.argument("source")
@click.option("--capacity", type=click.IntRange(1), help="Create the buffer. Without it, it has to be there.")
@_url
def import_(name: str, kind: str, source: str, capacity: int | None, url: str) -> None:
    """Write the records of SOURCE, a path or the id of a Minari data set, to the buffer NAME.

    A buffer that is created for a dump of a prioritized TorchRL buffer has that one's sampler.
    """
    from redis_replay import transfer

    kinds = {"hdf5": "Hdf5Source", "minari": "MinariSource", "npz": "NpzSource", "torchrl": "TorchRLSource"}
    with getattr(transfer, kinds[kind])(source) as opened:
        sampler = {} if opened.sampler is None else {"sampler": opened.sampler}
        hint = f"; --capacity creates one ({source} has {opened.total:,} records at most)"
        made = ReplayBuffer(url, name, capacity=capacity, **sampler) if capacity else _open(url, name, hint)
        with made as buffer:
            if opened.total > buffer.capacity:
                click.echo(f"of {opened.total:,} records the buffer will keep {buffer.capacity:,}", err=True)
            with _bar(f"{source} → {name}") as progress:
                done = _counted(lambda: transfer.fill(buffer, opened, progress=progress))
            click.echo(f"{done:,} records written to buffer {name!r}, which has {buffer.storage_size:,}")


def _counted(write: Callable[[], int]) -> int:
    """Its result; where it fails, how far it came is told beside why."""
    try:
        return write()
    except ReplayError as error:
        raise click.ClickException(f"{_line(error)}; {getattr(error, 'done', 0):,} records were written") from error


@commands.command("export")
@click.argument("name")
@click.option("--to", "kind", type=click.Choice(["minari", "parquet"]), required=True, help="What it shall be.")
@click.argument("target")
@click.option("--env", help="With --to minari: the id of the environment, for its spaces and to be kept with the data set.")
@_url
def export(name: str, kind: str, target: str, env: str | None, url: str) -> None:
    """Write the records of the buffer NAME to TARGET, a new file, or the id or directory of a new Minari data set."""
    from redis_replay import transfer

    if env and kind != "minari":
        raise click.UsageError("--env goes with --to minari")
    with _open(url, name) as buffer, _bar(f"{name} → {target}") as progress:
        if kind == "minari":
            done = transfer.export_minari(buffer, target, env=env, progress=progress)
        else:
            done = transfer.export_parquet(buffer, target, progress=progress)
    click.echo(f"{done:,} records written to {target}")


@commands.command()
@click.option("--port", type=click.IntRange(1, 65535), default=6379, show_default=True, help="TCP port of 127.0.0.1.")
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path), help="Keep the data here.")
def serve(port: int, directory: Path | None) -> None:
    """Run a server in the foreground, until Ctrl-C. Without --dir it keeps nothing."""
    embedded.serve_forever(directory, port, announce=lambda url: click.echo(f"serving {url}"))


@commands.command()
@click.option("--url", help="Use this server. Without it a private one is started.")
@click.option("--name", help="The buffer's name. [default: a new one; `demo` with --role actor or learner]")
@click.option("--actors", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes that play.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of networks, games and draws.")
@click.option("--steps", type=click.IntRange(1), default=100_000, show_default=True, help="Transitions at most.")
@click.option("--headless", is_flag=True, help="Plain lines instead of a live table.")
@click.option("--role", type=click.Choice(["all", "actor", "learner"]), default="all", show_default=True)
@click.option("--actor-id", type=click.IntRange(0), default=0, show_default=True, help="Number of --role actor.")
@click.option("--resume", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Begin with a dump's transitions.")
@click.option("--fresh", is_flag=True, help="Replace a buffer of that name; else the demo refuses to.")
def demo(**options: Any) -> None:
    """Train CartPole through a buffer: actor processes play, a learner process samples.

    Exit code 0 when the last 20 episodes have a mean return of 150 and every invariant holds.

    --role learner and --role actor run the parts on their own, here or on several machines, over one --url.
    """
    if options["role"] != "all" and not options["url"]:
        raise click.UsageError(f"--role {options['role']} needs --url: all parts have to use one server")
    if not (find_spec("torch") and find_spec("gymnasium")):
        raise click.ClickException("the demo needs torch and gymnasium: pip install 'redis-replay[demo]'")
    from redis_replay._demo.run import Options, run

    raise click.exceptions.Exit(run(Options(**options), click.echo))


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of whole numbers") from None
    if min(numbers) < 1:
        raise click.BadParameter("each must be at least 1")
    return numbers


@commands.command()
@click.option("--workload", default="all", show_default=True, help="Some of them, comma-separated.")
@click.option("--sizes", default="100,1024,28224", show_default=True, callback=_numbers, help="Payload bytes of a record.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True, help="Of one round.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="The best of so many is reported.")
@click.option("--reward", is_flag=True, help="Store a second field, reward float32, in each record.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Append each object to this file.")
@click.option("--url", help="Measure this server. Without it a private one is started for each figure.")
@click.option("--capacity", type=click.IntRange(256), help="Records of a full buffer. [default: by size, 100,000 or 10,000]")
@click.option("--waits", type=click.IntRange(20), default=300, show_default=True, help="Of `wake`.")
@click.option("--growth", default="10000,1000000", show_default=True, callback=_numbers, help="Buffer sizes of `growth`.")
@click.option("--writers", default="1,16,64,256", show_default=True, callback=_numbers, help="How many write in `crowd`.")
@click.option("--report", is_flag=True, help="Measure nothing: print the targets and all figures in FILES as Markdown.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="With --report: draw them, too, as an SVG file.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def bench(report: bool, plot: Path | None, files: tuple[Path, ...], **options: Any) -> None:
    """Measure a buffer, one JSON object a line; or put the figures of several FILES side by side."""
    from redis_replay._bench.picture import draw
    from redis_replay._bench.report import read, table, targets
    from redis_replay._bench.run import Options, run

    if report == (not files) or (plot and not report):
        raise click.UsageError("FILES, --report and --plot go together")
    if report:
        figures = read(files)
        click.echo(f"{targets(figures)}\n\n{table(figures)}")
        if plot:
            plot.write_text(draw(figures))
        return
    try:
        raise click.exceptions.Exit(run(Options(**options), click.echo))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
