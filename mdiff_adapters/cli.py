"""The command ``mdiff-adapters``: the only module that prints.

Documents go to standard output or to files, everything else to standard error. Exit codes: 0 all
read; 1 a document, or a page of one, could not be read or written; 2 wrong usage: a setting that no
document could be read with, or an engine that cannot be opened.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mdiff_adapters.commands_train import (
    add_characters_command,
    average_command,
    eval_command,
    label_command,
    mine_command,
    train_command,
)
from mdiff_adapters.document import ParsedDocument, ParsedPage
from mdiff_adapters.engines.base import DecodeConfig
from mdiff_adapters.engines.record import record_command
from mdiff_adapters.engines.registry import open_engine
from mdiff_adapters.engines.spec import EngineSpec
from mdiff_adapters.errors import (
    ConfigError,
    DocumentError,
    MDiffError,
    PasswordRequiredError,
)
from mdiff_adapters.exits import FAILED, WRONG_USAGE, exit_code
from mdiff_adapters.sources import safe_stem

if TYPE_CHECKING:
    from mdiff_adapters.parser import DocumentParser, DocumentStream

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Read documents by block diffusion.",
)
app.command("train")(train_command)
app.command("average")(average_command)
app.command("add-characters")(add_characters_command)
app.command("mine")(mine_command)
app.command("label")(label_command)
app.command("eval")(eval_command)

_DISTRIBUTIONS = (
    "mdiff-adapters", "mdiff-core", "langchain-mdiff", "llama-index-readers-mdiff",
    "docling-mdiff", "torch", "langchain-core", "llama-index-core", "docling-slim", "docling",
)  # fmt: skip


class Format(str, Enum):
    """Output formats."""

    MD = "md"
    JSON = "json"
    HTML = "html"
    DOCLING = "docling"
    TEXT = "text"


class OnErrorChoice(str, Enum):
    """What happens to failed pages."""

    RECORD = "record"
    SKIP = "skip"
    RAISE = "raise"


_SUFFIXES = {
    Format.MD: ".md",
    Format.JSON: ".json",
    Format.HTML: ".html",
    Format.DOCLING: ".docling.json",
    Format.TEXT: ".txt",
}


def _console(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is: names and reasons hold brackets and colons."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def _render(document: ParsedDocument, kind: Format) -> str:
    writers: dict[Format, Callable[[], str]] = {
        Format.MD: document.to_markdown,
        Format.JSON: lambda: document.to_json(indent=1),
        Format.HTML: document.to_html,
        Format.DOCLING: lambda: json.dumps(document.to_docling().export_to_dict(), indent=1),
        Format.TEXT: document.to_text,
    }
    text = writers[kind]()
    return text if text.endswith("\n") or not text else text + "\n"


@app.command()
def parse(
    files: Annotated[list[str], typer.Argument(help="PDFs or images.", show_default=False)],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="File; a folder for several documents, or NAME/."
        ),
    ] = None,
    kind: Annotated[Format, typer.Option("--format", "-f", help="Output format.")] = Format.MD,
    engine: Annotated[str, typer.Option(help="tiny, a folder, org/name, http://…, replay:…")] = (
        "tiny"
    ),
    segmenter: Annotated[str, typer.Option(help="auto, lines, model, or a plugin's.")] = "auto",
    pages: Annotated[str | None, typer.Option(help='Pages from 1, for example "1-3,7".')] = None,
    threshold: Annotated[
        float, typer.Option(help="Confidence that confirms a token, in [0, 1].")
    ] = 0.95,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, bf16, fp16, fp32.")] = "auto",
    password: Annotated[str | None, typer.Option(help="Password of an encrypted PDF.")] = None,
    dpi: Annotated[float, typer.Option(help="Resolution of rendered PDF pages.")] = 200.0,
    on_error: Annotated[
        OnErrorChoice, typer.Option(help="Failed pages: kept as records, left out, or raised.")
    ] = OnErrorChoice.RECORD,
    layout_image: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Draw boxes, types, order and confidence on the page; a picture a page, named "
            "after PATH, or after the document in a folder.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary, no progress.")] = False,
) -> None:
    """Read documents and write markdown, JSON, HTML, DoclingDocument JSON or plain text."""
    console = _console(stderr=True)
    stems = _stems(files)
    code = 0
    with _errors(console, wrong_usage=True):
        targets = _targets(stems, output, kind)
        drawings = _drawings(stems, layout_image)
        for path in filter(None, (*targets, *drawings)):
            _check_writable(path, files)
        _check_format(kind)
        _check_engine_kind(engine)
        # Skipped pages are left out after they have been reported.
        raises = on_error is OnErrorChoice.RAISE
        parser = _parser(
            engine, segmenter, threshold, device, dtype, password, pages, dpi,
            "raise" if raises else "record",
        )  # fmt: skip
    for file, target, drawing in zip(files, targets, drawings, strict=True):
        with _errors(console, stop=False) as outcome:
            start = time.perf_counter()
            source = _source(file)
            with parser.open(source) as stream:
                # What is wrong here is wrong for all documents.
                with _errors(console, wrong_usage=not _is_remote(engine)):
                    _ = parser.engine, parser.segmenter
                document = ParsedDocument(
                    source=stream.source,
                    pages=tuple(_with_progress(stream, console, quiet)),
                    num_pages=stream.num_pages,
                    metadata=stream.metadata,
                )
            seconds = time.perf_counter() - start
            summary = _summary(document, seconds, parser)
            code = max(code, _report(document, console))
            if on_error is OnErrorChoice.SKIP:
                read = tuple(page for page in document.pages if page.status != "failed")
                document = dataclasses.replace(document, pages=read)
            _write(_render(document, kind), target)
            if drawing is not None:
                _draw(parser, source, password, document, drawing, files)
            if not quiet:
                console.print(summary, style="dim", soft_wrap=True)
        code = max(code, outcome.code)
    if code:
        raise typer.Exit(code)


@app.command("record")
@functools.wraps(record_command)
def _record(**arguments: Any) -> None:
    console = _console(stderr=True)
    engine = arguments["engine"]
    with _errors(console, wrong_usage=True):
        _check_engine_kind(engine)
        DecodeConfig(threshold=arguments["threshold"])
    with _errors(console, wrong_usage=not _is_remote(engine)):
        open_engine(engine)
    with _errors(console):
        arguments["source"] = _source(arguments["source"])
        record_command(**arguments)


def _parser(
    engine: str,
    segmenter: str,
    threshold: float,
    device: str,
    dtype: str,
    password: str | None,
    pages: str | None,
    dpi: float,
    on_error: str,
) -> DocumentParser:
    from mdiff_adapters.parser import DocumentParser

    options: dict[str, Any] = _engine_options(device, dtype)
    return DocumentParser(
        engine,
        segmenter=segmenter,
        threshold=threshold,
        pages=pages,
        password=password,
        dpi=dpi,
        on_error=on_error,  # type: ignore[arg-type]  # a value of OnErrorChoice
        **options,
    )


def _engine_options(device: str, dtype: str) -> dict[str, str]:
    """Return what was asked for: an engine that has no such option is not asked for a default."""
    return {k: v for k, v in (("device", device), ("dtype", dtype)) if v != "auto"}


def _check_engine_kind(engine: str) -> None:
    """Refuse an engine of a kind that nothing provides, before a document is opened."""
    from mdiff_adapters.host import engine_factory

    engine_factory(EngineSpec.parse(engine).kind)


def _is_remote(engine: str) -> bool:
    """Whether a server answers: that it does not is no fault of the command."""
    return EngineSpec.parse(engine).kind == "http"


def _source(file: str) -> Any:
    """Return what to open: standard input for ``-``."""
    if not file:
        raise ConfigError(
            "the name of the document is empty", hint="give a path, or - for standard input"
        )
    return sys.stdin.buffer.read() if file == "-" else file


def _stems(files: list[str]) -> list[str]:
    """Return a name for what is written of each document. Names never collide."""
    taken: dict[str, None] = {}
    for file in files:
        stem = "document" if file == "-" else safe_stem(file)
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken[name] = None
    return list(taken)


def _targets(stems: list[str], output: str | None, kind: Format) -> list[Path | None]:
    """Return a path for each document; None is standard output."""
    if output is None:
        return [None] * len(stems)
    if len(stems) == 1 and not _is_folder(output):
        return [Path(output)]
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file", hint="the output of several documents is a folder")
    return [folder / (stem + _SUFFIXES[kind]) for stem in stems]


def _drawings(stems: list[str], target: str | None) -> list[Path | None]:
    """Return the path after which the pictures of each document are named."""
    if target is None:
        return [None] * len(stems)
    if _is_folder(target):
        return [Path(target) / f"{stem}.png" for stem in stems]
    from PIL import Image

    path = Path(target)
    suffix = path.suffix or ".png"
    if Image.registered_extensions().get(suffix.lower()) not in Image.SAVE:
        raise ConfigError(
            f"--layout-image {target}: no picture can be written as {suffix!r}",
            hint="for example .png or .jpg",
        )
    if len(stems) == 1:
        return [path.with_name(path.stem + suffix)]
    return [path.with_name(f"{path.stem}-{stem}{suffix}") for stem in stems]


def _check_writable(path: Path, files: list[str]) -> None:
    """Refuse a file that cannot be written, before any work: there may be hours of it.

    Args:
        path: The file.
        files: The documents, none of which is written over.
    """
    _check_no_document(path, files)
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():  # else a device or a pipe, which opening would change
            # What may be written is known for sure only by writing.
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = f"{folder} is a file" if folder.is_file() else error.strerror or error
        raise ConfigError(
            f"{path} cannot be written: {reason}", hint="give another file or folder"
        ) from error


def _check_no_document(path: Path, files: list[str]) -> None:
    for file in files:
        if path.exists() and os.path.exists(file) and os.path.samefile(path, file):
            raise ConfigError(
                f"{path} is one of the documents and would be written over",
                hint="write to another file or folder",
            )


def _check_format(kind: Format) -> None:
    """Refuse a format whose package is not installed."""
    if kind is Format.DOCLING:
        ParsedDocument(source="", pages=(), num_pages=0).to_docling()


def _report(document: ParsedDocument, console: Console) -> int:
    """Show what failed, is missing or was cut short, and return the exit code for it."""
    for page in document.pages:
        for record in page.problems:
            text, colour = record.message, "red" if record.severity == "error" else "yellow"
            if document.source not in text:
                text = f"{document.source}, page {page.index + 1}: {text}"
            console.print(f"{record.severity}: {text}", style=colour, soft_wrap=True)
    return FAILED if document.errors else 0


def _is_folder(path: str) -> bool:
    """Whether a folder is meant: one that is there, or a name that ends like one."""
    return path.endswith(("/", os.sep)) or Path(path).is_dir()


def _write(text: str, target: Path | None) -> None:
    # Metadata may hold half of a surrogate pair, which no UTF-8 encoder takes.
    data = text.encode("utf-8", "replace")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return
    # A terminal of another encoding must not lose the document.
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _with_progress(stream: DocumentStream, console: Console, quiet: bool) -> Iterator[ParsedPage]:
    if quiet or not console.is_terminal:
        yield from stream
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(Path(stream.source).name, total=len(stream.page_indices))
        for page in stream:
            progress.advance(task)
            yield page


def _draw(
    parser: DocumentParser,
    opened_from: Any,
    password: str | None,
    document: ParsedDocument,
    target: Path,
    files: list[str],
) -> None:
    """Draw the layout of each page; its number goes into the name where there are more."""
    from mdiff_adapters.export import draw_layout
    from mdiff_adapters.sources import open_source

    target.parent.mkdir(parents=True, exist_ok=True)
    with open_source(opened_from, password=password, limits=parser.limits) as source:
        for page in document.pages:
            if page.status == "failed":
                continue
            image = draw_layout(source.load(page.index).image, page)
            path = target
            if len(document.pages) > 1:
                path = target.with_name(f"{target.stem}-p{page.index + 1:04d}{target.suffix}")
            _check_no_document(path, files)
            try:
                image.save(path)
            except ValueError as error:  # more pixels than the format holds
                raise DocumentError(f"{path} cannot be written: {error}") from error


def _summary(document: ParsedDocument, seconds: float, parser: DocumentParser) -> str:
    tokens = sum(page.num_tokens for page in document.pages)
    forwards = sum(page.num_forwards for page in document.pages)
    count = len(document.pages)
    parts = [
        f"{count} page{'s' if count != 1 else ''}",
        f"{seconds:.1f} s",
        f"{tokens} tokens",
    ]
    if forwards:
        parts.append(f"{tokens / forwards:.1f} tokens per forward")
    if all(page.status == "failed" for page in document.pages):
        return ", ".join(parts)  # the engine may never have been opened
    info = getattr(getattr(parser.engine, "core", None), "info", None)
    where = f" on {info.device}, {info.dtype}" if info is not None else ""
    return f"{', '.join(parts)} (engine {parser.engine.name}{where})"


class _Outcome:
    code = 0


@contextmanager
def _errors(
    console: Console, *, wrong_usage: bool = False, stop: bool = True
) -> Iterator[_Outcome]:
    """Turn an expected error into one line; anything else is a defect and keeps its traceback.

    Args:
        console: Standard error.
        wrong_usage: Whether any error here is one of the command, not of a document.
        stop: Whether to end the program; else the exit code is left in the outcome.

    Yields:
        The outcome.
    """
    outcome = _Outcome()
    try:
        yield outcome
    except BrokenPipeError:
        # The reader of a pipe went away, which is its right.
        outcome.code = FAILED
    except (MDiffError, ImportError, OSError) as error:
        if isinstance(error, PasswordRequiredError):
            error.hint = "give its password with --password"
        console.print(f"error: {error}", style="red", soft_wrap=True)
        outcome.code = WRONG_USAGE if wrong_usage else exit_code(error)
    if outcome.code and stop:
        raise typer.Exit(outcome.code)


@app.command()
def plugins(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List plugins with their status and, for those that failed, the reason."""
    from mdiff_adapters.host import list_plugins

    records = [record.to_dict() for record in list_plugins()]
    if as_json:
        typer.echo(json.dumps(records, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("plugin", "status", "distribution", "provides", "reason"):
        table.add_column(column, overflow="fold")
    for record in records:
        provides = ", ".join(
            item["name"] for kind in ("adapters", "engines", "segmenters") for item in record[kind]
        )
        table.add_row(
            record["name"],
            record["status"],
            f"{record['distribution']} {record['version']}".strip(),
            provides,
            record["reason"],
        )
    _console().print(table)


@app.command()
def doctor(
    engine: Annotated[str, typer.Option(help="Engine to look at.")] = "tiny",
    device: Annotated[str, typer.Option(help="As for parse.")] = "auto",
    dtype: Annotated[str, typer.Option(help="As for parse.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Report versions, device, checkpoint and plugins, and what would run."""
    report: dict[str, Any] = {
        "python": f"{platform.python_version()} on {platform.platform()}",
        "versions": _versions(),
        "torch": _attempt(_torch_report),
        "engine": _attempt(lambda: _engine_report(engine, device, dtype)),
        "detector": _attempt(_detector_report),
        "plugins": _attempt(_plugin_report),
    }
    healthy = not any(isinstance(value, dict) and "error" in value for value in report.values())
    if as_json:
        typer.echo(json.dumps(report, indent=1, default=str))
    else:
        console = _console()
        for name, value in report.items():
            console.print(name, style="bold")
            for line in _lines(value):
                console.print(f"  {line}")
    if not healthy:
        raise typer.Exit(1)


def _attempt(look: Callable[[], Any]) -> Any:
    """Return what ``look`` finds, or its error: doctor must work when things are broken."""
    try:
        return look()
    except Exception as error:  # noqa: BLE001  the report is what this command is for
        return {"error": f"{type(error).__name__}: {error}"}


def _versions() -> dict[str, str]:
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _torch_report() -> dict[str, Any]:
    import torch

    from mdiff_core.engine import choose_device, choose_dtype
    from mdiff_core.packing import bf16_is_fast_on_cpu

    device = choose_device("auto")
    return {
        "device": str(device),
        "dtype": str(choose_dtype("auto", device)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "bf16 on this CPU": "native" if bf16_is_fast_on_cpu() else "emulated, so fp32 is used",
    }


def _engine_report(name: str, device: str, dtype: str) -> dict[str, Any]:
    from mdiff_adapters.engines import open_engine
    from mdiff_adapters.segmenters import choose_segmenter

    engine = open_engine(name, **_engine_options(device, dtype))
    capabilities = dataclasses.asdict(engine.capabilities)
    report = {"name": engine.name, **capabilities}
    report["segmenter"] = choose_segmenter(engine.capabilities)
    info = getattr(getattr(engine, "core", None), "info", None)
    return report if info is None else {**report, **dataclasses.asdict(info)}


def _detector_report() -> dict[str, Any]:
    return {name: importlib.metadata.version(name) for name in ("rapidocr", "onnxruntime")}


def _plugin_report() -> dict[str, str]:
    from mdiff_adapters.host import list_plugins

    return {
        record.name: record.status + (f": {record.reason}" if record.reason else "")
        for record in list_plugins()
    }


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{key}: {item}" for key, item in value.items())
    else:
        yield str(value)


def main() -> None:
    """Run the command."""
    app()


if __name__ == "__main__":
    main()
