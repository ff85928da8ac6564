"""Curves: error against parallelism by threshold, against shuffled words, against damage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mdiff_adapters.engines import Capabilities, DecodeConfig, Engine
from mdiff_adapters.errors import ConfigError, EngineUnavailableError
from mdiff_adapters.evaluation.reading import Crop, read_crops, score

__all__ = ["check_plot", "drawn_crops", "plot_shuffle", "plot_thresholds", "threshold_curve"]


def threshold_curve(
    engine: Engine, crops: Sequence[Crop], thresholds: Iterable[float], decode: DecodeConfig
) -> Iterator[dict[str, Any]]:
    """Read the same crops at several confidence thresholds.

    Args:
        engine: The engine.
        crops: The crops.
        thresholds: In [0, 1].
        decode: The other settings.

    Yields:
        For each threshold ``{"threshold": t, ...}`` with the values of
        :meth:`mdiff_adapters.evaluation.reading.Score.to_dict`.
    """
    for threshold in thresholds:
        found = score(read_crops(engine, crops, replace(decode, threshold=threshold)))
        yield {"threshold": threshold, **found.to_dict()}


def drawn_crops(
    unit: Capabilities,
    count: int,
    *,
    shuffle: float = 0.0,
    damage: str = "clean",
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> list[Crop]:
    """Draw text with its truth: prose, of which a share of the words stands in another order.

    The same seed gives the same words and fonts whatever the share and the damage, so only the
    order (what a language model could guess) or only the picture differs.

    Source: the Semantic Shuffle benchmark of MinerU-Diffusion (arXiv 2603.22458), which shuffles
    the words of real pages and renders them anew.

    Args:
        unit: Capabilities of the engine: lines for unit ``segment``, else paragraphs.
        count: Crops.
        shuffle: Share of the words that change places, in [0, 1].
        damage: Grade of damage: ``clean``, ``light``, ``medium`` or ``heavy``.
        seed: Seed.
        options: Options of the drawn source (fonts, corpus, sizes, ...).

    Returns:
        The crops. For unit ``segment`` a crop is a whole line, cut by whoever reads it.
    """
    from mdiff_core.training.data import build_source
    from mdiff_core.training.data.effects import GRADES

    kind = "lines" if unit.segment_px is not None else "paragraphs"
    settings = {
        "texts": {"prose": 1.0},
        **(options or {}),
        "shuffle": shuffle,
        "grades": [float(grade == damage) for grade in GRADES],
    }
    # Lines are drawn whole and cut when they are read, as real ones are.
    source = build_source(kind, settings, Capabilities())
    samples = (source.sample(seed, index) for index in range(count))
    return [Crop(f"{i}", sample.image, sample.text) for i, sample in enumerate(samples)]


def check_plot(path: Path) -> None:
    """Refuse what could not be plotted to, before anything is measured.

    Args:
        path: File; its ending gives the format.

    Raises:
        ConfigError: If there is no such format.
        EngineUnavailableError: If matplotlib is not installed.
    """
    figure, _ = _figure()
    known = figure.canvas.get_supported_filetypes()
    ending = path.suffix.removeprefix(".").lower()
    if ending and ending not in known:
        raise ConfigError(
            f"no plot can be written as {path.suffix!r}", hint=f"known: {', '.join(sorted(known))}"
        )


def plot_thresholds(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    metric: str = "character_error",
    label: str = "",
) -> None:
    """Plot error and tokens a forward by threshold.

    Args:
        rows: From :func:`threshold_curve`.
        path: File; its ending gives the format.
        metric: What is plotted against the tokens a forward.
        label: Name of the engine.

    Raises:
        EngineUnavailableError: If matplotlib is not installed.
    """
    figure, axes = _figure()
    x = [row["threshold"] for row in rows]
    axes.plot(x, [100 * row[metric] for row in rows], "o-", color="tab:red")
    axes.set_xlabel("confidence threshold")
    axes.set_ylabel(f"{metric.replace('_', ' ')}, %", color="tab:red")
    axes.set_ylim(bottom=0)
    right = axes.twinx()
    right.plot(x, [row["tokens_per_forward"] for row in rows], "s--", color="tab:blue")
    right.set_ylabel("tokens a forward", color="tab:blue")
    right.set_ylim(bottom=0)
    axes.set_title(label)
    figure.savefig(path)


def plot_shuffle(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], path: Path, *, metric: str = "character_error"
) -> None:
    """Plot error by share of shuffled words, one line an engine.

    Args:
        rows: By name of the engine, each with ``shuffle`` and the metric.
        path: File; its ending gives the format.
        metric: What is plotted.

    Raises:
        EngineUnavailableError: If matplotlib is not installed.
    """
    figure, axes = _figure()
    highest = 0.0
    for name, found in rows.items():
        x, y = [100 * row["shuffle"] for row in found], [100 * row[metric] for row in found]
        axes.plot(x, y, "o-", label=name)
        highest = max(highest, *y)
    axes.set_xlabel("words shuffled, %")
    axes.set_ylabel(f"{metric.replace('_', ' ')}, %")
    # From nothing: a line that is almost level is to look so.
    axes.set_ylim(0, 1.12 * highest or 1)
    axes.legend(loc="lower left")
    figure.savefig(path)


def _figure() -> tuple[Any, Any]:
    try:
        # Not pyplot: no window system, no state of the process.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EngineUnavailableError(
            "plots need matplotlib", hint='pip install "mdiff-adapters[eval]"'
        ) from error
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    return figure, figure.subplots()
