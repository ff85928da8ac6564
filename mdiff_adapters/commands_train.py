"""Commands that train and judge checkpoints. Loads no torch before one of them runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mdiff_adapters.errors import ConfigError, MDiffError
from mdiff_adapters.exits import WRONG_USAGE, FailedPages, exit_code

if TYPE_CHECKING:
    from mdiff_adapters.engines import DecodeConfig, Engine

__all__ = [
    "add_characters_command",
    "average_command",
    "eval_command",
    "label_command",
    "mine_command",
    "train_command",
]

_DEVICE = typer.Option(help="auto, cpu, cuda, cuda:1, mps.")
_DTYPE = typer.Option(help="auto, bf16, fp16, fp32.")
_TEXT = "prose"
_COUNT = 200


class Layout(str, Enum):
    """Which layout pages are read with."""

    OWN = "own"
    TRUE = "true"


@contextmanager
def _reported() -> Iterator[None]:
    """Show an expected error as one line, and end with its exit code."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of a pipe went away; click ends quietly
    except (MDiffError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(exit_code(error, of_document=False)) from error
    except ImportError as error:
        typer.echo(f'error: {error}; pip install "mdiff-adapters[train]"', err=True)
        raise typer.Exit(WRONG_USAGE) from error


def train_command(
    config: Annotated[Path, typer.Argument(help="TOML file of the run.", show_default=False)],
    fresh: Annotated[bool, typer.Option(help="Start over, even where a state is saved.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Setting that replaces the file's: run.steps=100."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train a checkpoint, or go on with a run that was cut off.

    Under `torchrun --nproc-per-node N -m mdiff_adapters.commands_train CONFIG` on N GPUs.
    """
    with _reported():
        from mdiff_core.training import load_config, train

        outcome = train(
            load_config(config, _overrides(settings or [])),
            fresh=fresh,
            progress=None if quiet else _show_progress,
        )
        if outcome.checkpoint is None:
            return
        if outcome.finished:
            typer.echo(f"{outcome.step} steps done: {outcome.checkpoint}")
        else:
            typer.echo(f"stopped at step {outcome.step}, saved; the same command goes on")


def _overrides(settings: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value``; the value is JSON where it can be, else text."""
    found = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting} has no value", hint="--set run.steps=100")
        try:
            found[name.strip()] = json.loads(text)
        except json.JSONDecodeError:
            found[name.strip()] = text
    return found


def _show_progress(record: Mapping[str, Any]) -> None:
    """Write a record of the log as one line to standard error."""
    kind = record["event"]
    if kind == "start":
        text = (
            f"{record['parameters'] / 1e6:.1f} M parameters, {record['trained'] / 1e6:.1f} M "
            f"trained, {record['dtype']} on {record['processes']} x {record['device']}, "
            f"from step {record['step']}"
        )
    elif kind == "step":
        left = f", {record['minutes_left']:.0f} min left"
        extras = "".join(
            f" {name} {record[name]:.3f}" for name in ("named", "guided") if name in record
        )
        text = (
            f"step {record['step']}: loss {record['loss']:.4f} right {record['accuracy']:.1%}"
            f"{extras} lr {record['lr']:.2e} {record['samples_per_s']:.1f} samples/s{left}"
        )
    elif kind == "validation":
        text = (
            f"validation at {record['step']}: character error {record['character_error']:.2%}, "
            f"{record['exact']:.1%} without error, "
            f"{record['tokens_per_forward']:.2f} tokens a forward"
        )
    else:
        text = f"ended at step {record['step']} after {record['minutes']} min"
    typer.echo(text, err=True)


def average_command(
    parts: Annotated[
        list[str],
        typer.Argument(help="Checkpoints of one shape, each NAME or NAME=WEIGHT (else 1)."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    dtype: Annotated[str, typer.Option(help="Of the weights: bf16, fp16, fp32.")] = "bf16",
) -> None:
    """Average checkpoints that were trained from the same weights."""
    with _reported():
        from mdiff_core.training import average_checkpoints

        average_checkpoints([_weighted(part) for part in parts], output, dtype=dtype)
        typer.echo(f"{len(parts)} checkpoints averaged: {output}")


def add_characters_command(
    base: Annotated[str, typer.Argument(help="Checkpoint: name or folder.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    characters: Annotated[
        str | None,
        typer.Option(help="The characters; else accented, Greek and Cyrillic letters, and signs."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the weights: bf16, fp16, fp32.")] = "bf16",
) -> None:
    """Give characters that take several tokens one of their own, to be trained then."""
    with _reported():
        from mdiff_core.training import add_characters
        from mdiff_core.training.data.texts import CHARACTERS

        wanted = CHARACTERS if characters is None else characters
        typer.echo(f"written: {add_characters(base, wanted, output, dtype=dtype)}")


def _weighted(part: str) -> tuple[str, float]:
    name, equals, weight = part.rpartition("=")
    if not equals:
        return part, 1.0
    try:
        return name, float(weight)
    except ValueError:
        raise ConfigError(f"{part}: {weight!r} is no weight", hint="NAME=0.5") from None


def mine_command(
    config: Annotated[Path, typer.Argument(help="TOML file of the run.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="JSON-lines file to write.", show_default=False)],
    checkpoint: Annotated[
        str | None, typer.Option(help="Checkpoint after stage 1; else the run's own.")
    ] = None,
    unlabelled: Annotated[
        bool,
        typer.Option(help="The texts of the data are no truth: write proposals to be reviewed."),
    ] = False,
    device: Annotated[str, _DEVICE] = "auto",
    dtype: Annotated[str, _DTYPE] = "auto",
) -> None:
    """Find hard samples: those on which several stochastic runs of a checkpoint do not agree."""
    with _reported():
        from mdiff_adapters.evaluation import SIMILARITIES
        from mdiff_core.engine import Engine
        from mdiff_core.training import load_config, mine

        settings = load_config(config)
        folder = checkpoint or str(settings.run.out / "checkpoint")
        count = num_looked_at = 0

        def count_sample() -> None:
            nonlocal num_looked_at
            num_looked_at += 1

        output.parent.mkdir(parents=True, exist_ok=True)
        with (
            Engine.load(folder, device=device, dtype=dtype) as engine,
            output.open("w", encoding="utf-8") as stream,
        ):
            found = mine(
                settings,
                engine,
                similarities=SIMILARITIES,
                labelled=not unlabelled,
                on_looked_at=count_sample,
            )
            for record in found:
                stream.write(record.to_json() + "\n")
                stream.flush()
                count += 1
        typer.echo(f"{count} of {num_looked_at} samples are hard: {output}")
        if unlabelled:
            typer.echo('correct their "text", and set "status" to "reviewed"')


def label_command(
    pages: Annotated[list[Path], typer.Argument(help="PDFs, images, or folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of training data.")],
    engine: Annotated[str, typer.Option(help="Engine that reads the pages.")] = "tiny",
    threshold: Annotated[float, typer.Option(help="Confidence that confirms a token.")] = 0.95,
    dpi: Annotated[float, typer.Option(help="Resolution of rendered PDF pages.")] = 200.0,
) -> None:
    """Read pages and write them as training data, to be corrected by hand."""
    with _reported():
        from mdiff_adapters.evaluation.labels import LABELS, draft_labels
        from mdiff_adapters.parser import DocumentParser

        parser = DocumentParser(engine, threshold=threshold, dpi=dpi)
        count = regions = 0
        failed_pages = FailedPages()

        def report_known(name: str) -> None:
            typer.echo(f"{name} is labelled already, and left as it is", err=True)

        drafts = draft_labels(
            parser,
            _documents(pages),
            output,
            dpi=dpi,
            on_failed=failed_pages,
            on_known=report_known,
        )
        for record in drafts:
            count += 1
            regions += len(record["regions"])
        typer.echo(f"{count} pages, {regions} regions; now correct {output / LABELS}")
        failed_pages.end_command()


_SUFFIXES = frozenset(
    {".pdf", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif", ".jp2"}
)


def _documents(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found.extend(p for p in sorted(path.iterdir()) if p.suffix.lower() in _SUFFIXES)
        else:
            found.append(path)
    if not found:
        raise ConfigError("there are no documents", hint="give PDFs, images, or folders of them")
    return found


def eval_command(
    data: Annotated[
        Path | None,
        typer.Argument(help="Folder with labels.jsonl, lines.json or OmniDocBench's JSON."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Engine; several with --shuffle.", show_default="tiny"),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(help="Confidence threshold; several give a curve.", show_default="0.95"),
    ] = None,
    block_length: Annotated[
        list[int] | None,
        typer.Option(help="Tokens denoised together, for each engine.", show_default="32"),
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="OmniDocBench: pages end to end, or their true regions.")
    ] = Layout.OWN,
    shuffle: Annotated[
        list[float] | None,
        typer.Option(help="Semantic Shuffle: draw text with this share of its words shuffled."),
    ] = None,
    damage: Annotated[bool, typer.Option(help="Draw text at four grades of scan damage.")] = False,
    text: Annotated[
        str, typer.Option(help="Kind of text that is drawn: prose, words, numbers, accents, ...")
    ] = _TEXT,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="Text files or folders that are drawn.", show_default="what Python brings"
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Crops drawn for each value.", min=1)] = _COUNT,
    every: Annotated[int, typer.Option(help="Take every n-th crop or page.", min=1)] = 1,
    predictions: Annotated[
        Path | None, typer.Option(help="OmniDocBench: write each page as markdown here.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot of the curve.")] = None,
    device: Annotated[str, _DEVICE] = "auto",
    dtype: Annotated[str, _DTYPE] = "auto",
) -> None:
    """Measure errors and speed on folders of truth, or on drawn text with shuffled words."""
    with _reported():
        from mdiff_adapters.engines import DecodeConfig, open_engine
        from mdiff_adapters.evaluation import curve

        names = engine or ["tiny"]
        if len(set(names)) < len(names):
            raise ConfigError("an engine is given twice", hint="name each engine once")
        lengths = block_length or [32]
        lengths = lengths * len(names) if len(lengths) == 1 else lengths
        if len(lengths) != len(names):
            raise ConfigError(
                f"{len(names)} engines and {len(lengths)} block lengths",
                hint="give one --block-length for all, or one for each",
            )
        thresholds = sorted(threshold or [0.95])
        _refuse_idle(
            {
                "several --engine": len(names) > 1,
                "several --threshold": len(thresholds) > 1,
                "--layout": layout is not Layout.OWN,
                "--text": text != _TEXT,
                "--corpus": bool(corpus),
                "--count": count != _COUNT,
                "--every": every != 1,
                "--predictions": predictions is not None,
                "--plot": plot is not None,
            },
            _measured(data, layout, bool(shuffle), damage),
        )
        # Found out now, and not after a long run.
        if plot is not None:
            curve.check_plot(plot)
        for path in (output, plot):
            if path is not None:
                _check_file(path)
        opened = {
            name: (
                open_engine(name, device=device, dtype=dtype),
                DecodeConfig(threshold=thresholds[-1], block_length=length),
            )
            for name, length in zip(names, lengths, strict=True)
        }
        report: dict[str, Any] = {}
        if data is None:
            cases: list[dict[str, Any]]
            options = {"texts": {text: 1.0}, "corpus": [str(path) for path in corpus or ()]}
            if shuffle:
                cases = [{"shuffle": share} for share in sorted(shuffle)]
                report["shuffle"] = _eval_drawn(opened, cases, count, options)
            if damage:
                cases = [{"damage": grade} for grade in _GRADES]
                report["damage"] = _eval_drawn(opened, cases, count, options)
        else:
            asked, decode = next(iter(opened.values()))
            report = _eval_folder(data, asked, decode, thresholds, layout, every, predictions)
        # The figures first: a plot that fails does not take them along.
        if output is not None:
            output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if plot is not None and data is None:
            curve.plot_shuffle(report["shuffle"], plot)
        elif plot is not None:
            rows = report["thresholds"]
            metric = next(n for n in _CURVE_METRICS if n in rows[0])
            curve.plot_thresholds(rows, plot, metric=metric, label=names[0])


_GRADES = ("clean", "light", "medium", "heavy")
_CURVE_METRICS = ("character_error", "teds", "formula_match", "page_iou")


# What changes the outcome, by what is measured.
_EFFECTIVE: Mapping[str, tuple[str, ...]] = {
    "shuffled text": ("several --engine", "--text", "--corpus", "--count", "--plot"),
    "damaged text": ("several --engine", "--text", "--corpus", "--count"),
    "labelled crops": ("several --threshold", "--every", "--plot"),
    "pages end to end": ("--every", "--predictions"),
    "true regions": ("several --threshold", "--every", "--plot", "--layout"),
}


def _refuse_idle(options: Mapping[str, bool], measured: str) -> None:
    """Refuse options that change nothing: a long run must not end without what it was for."""
    effective = _EFFECTIVE[measured]
    for name, is_given in options.items():
        if is_given and name not in effective:
            raise ConfigError(
                f"{name} has no effect on {measured}", hint=f"it takes: {', '.join(effective)}"
            )


def _measured(data: Path | None, layout: Layout, shuffle: bool, damage: bool) -> str:
    """Return what is measured, a key of ``_EFFECTIVE``."""
    if data is None:
        if not (shuffle or damage):
            raise ConfigError("nothing to evaluate on", hint="give a folder, --shuffle or --damage")
        return "shuffled text" if shuffle else "damaged text"
    if shuffle or damage:
        raise ConfigError(
            "--shuffle and --damage draw text and read no folder", hint="give one or the other"
        )
    if _is_labelled(data):
        return "labelled crops"
    return "pages end to end" if layout is Layout.OWN else "true regions"


def _is_labelled(data: Path) -> bool:
    return (data / "labels.jsonl").is_file() or (data / "lines.json").is_file()


def _check_file(path: Path) -> None:
    """Make the folder of a file and see that the file can be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written", hint="give the name of a file")


def _eval_drawn(
    opened: Mapping[str, tuple[Engine, DecodeConfig]],
    cases: Sequence[Mapping[str, Any]],
    count: int,
    options: Mapping[str, Any],
) -> dict[str, list[dict[str, Any]]]:
    from mdiff_adapters.evaluation.curve import drawn_crops
    from mdiff_adapters.evaluation.reading import read_crops, score

    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in opened}
    for case in cases:
        for name, (asked, decode) in opened.items():
            crops = drawn_crops(asked.capabilities, count, options=options, **case)
            found = score(read_crops(asked, crops, decode)).to_dict()
            rows[name].append({**case, **found})
            _show({"engine": name, **case, **found})
    return rows


def _eval_folder(
    data: Path,
    asked: Engine,
    decode: DecodeConfig,
    thresholds: Sequence[float],
    layout: Layout,
    every: int,
    predictions: Path | None,
) -> dict[str, Any]:
    from mdiff_adapters.evaluation import omnidocbench as bench
    from mdiff_adapters.evaluation.curve import threshold_curve
    from mdiff_adapters.evaluation.reading import load_crops
    from mdiff_adapters.parser import DocumentParser

    if _is_labelled(data):
        crops = list(load_crops(data, tasks=asked.capabilities.tasks, every=every))
    else:
        pages = bench.load_pages(data)[::every]
        if predictions is not None:
            bench.check_names(pages)
        if layout is Layout.OWN:
            parsed = bench.parse_pages(DocumentParser(asked, decode=decode), pages)
            if predictions is not None:
                parsed = bench.write_predictions(parsed, predictions)
            means, by_page = bench.score_pages(parsed)
            _show({"threshold": decode.threshold, "pages": len(pages), **means})
            return {"metrics": means, "pages": by_page}
        crops = list(bench.true_crops(pages, asked.capabilities.tasks))
    if not crops:
        raise ConfigError(f"{data} has nothing that {asked.name} can be asked")
    rows = []
    for row in threshold_curve(asked, crops, thresholds, decode):
        rows.append(row)
        _show(row)
    return {"thresholds": rows}


def _show(values: Mapping[str, Any]) -> None:
    parts = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    ]
    typer.echo("  ".join(parts))


if __name__ == "__main__":
    typer.run(train_command)
