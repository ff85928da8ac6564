"""What printing, paper and scanners do to text: one small function an effect, and grades of damage.

Every effect takes grey values and a random stream and returns new grey values of the same size;
only :func:`skew` moves anything, and it moves the character boxes along. Plain numpy and Pillow:
2 ms a line leave no room for an augmentation framework, and the boxes must stay exact.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFilter

from mdiff_core.training.data.sample import Boxes, Gray, to_gray

Rng = np.random.Generator

GRADES = ("clean", "light", "medium", "heavy")
"""Grades of damage, from a born-digital page to a bad photocopy."""


class Effect(NamedTuple):
    """How likely an effect is at each grade, and ``apply(gray, rng, strength, line_px)``.

    The strength is in [0, 1], ``line_px`` the height of a text line: what is a hair on a title is a
    bar through small print.
    """

    name: str
    chance: tuple[float, float, float, float]
    apply: Callable[[Gray, Rng, float, float], Gray]


def paper_level(gray: Gray) -> int:
    """Return the grey value of the paper: the median, since paper covers most of any crop."""
    return round(float(np.median(gray)))


def underline(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Draw a line under the text, or through its descenders."""
    height, width = gray.shape
    out: Gray = gray.copy()
    row = min(height - 1, round(height - line_px * float(rng.uniform(0.03, 0.22))))
    thick = max(1, round(line_px * 0.04 * (0.5 + strength)))
    start = round(width * float(rng.uniform(0, 0.3)))
    out[row : row + thick, start : round(width * float(rng.uniform(0.6, 1.0)))] = _ink(gray)
    return out


def rules(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Draw parts of table rules or of a frame along the borders."""
    height, width = gray.shape
    out: Gray = gray.copy()
    thick = max(1, round(line_px * 0.05 * (0.3 + strength)))
    sides = rng.random(4) < 0.45
    if sides[0]:
        out[:thick] = _ink(gray)
    if sides[1]:
        out[height - thick :] = _ink(gray)
    if sides[2]:
        out[:, :thick] = _ink(gray)
    if sides[3]:
        out[:, width - thick :] = _ink(gray)
    return out


def bleed_through(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Let print of the back side shine through: the text itself, mirrored, shifted and pale."""
    paper = paper_level(gray)
    back = np.roll(gray[:, ::-1], round(line_px * float(rng.uniform(-0.5, 0.5))), axis=0)
    shine = (back.astype(np.float32) - paper) * (0.1 + 0.25 * strength * float(rng.random()))
    return to_gray(gray + shine)


def ink_spread(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Thicken or thin the strokes."""
    darker = rng.random() < 0.5
    image = Image.fromarray(gray)
    spread = image.filter(ImageFilter.MinFilter(3) if darker else ImageFilter.MaxFilter(3))
    # A whole pixel is much on small print; a blend is a fraction of one.
    share = 0.2 + 0.6 * strength * float(rng.random())
    return to_gray(gray + (np.asarray(spread, np.float32) - gray) * share)


def shadow(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Darken along a slope, as at the fold of a book or under a lamp."""
    height, width = gray.shape
    angle = float(rng.uniform(0, 2 * math.pi))
    x = np.linspace(-1, 1, width, dtype=np.float32) * math.cos(angle)
    y = np.linspace(-1, 1, height, dtype=np.float32) * math.sin(angle)
    slope = np.clip((x[None] + y[:, None] + 1) / 2, 0, 1)
    return to_gray(gray * (1 - (0.1 + 0.45 * strength * float(rng.random())) * slope))


def blur(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Blur as an unsharp scan does."""
    radius = float(rng.uniform(0.2, 0.4 + 0.9 * strength)) * line_px / 32
    blurred = Image.fromarray(gray).filter(ImageFilter.GaussianBlur(radius))
    return np.asarray(blurred)


def low_resolution(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Scale down and up again, as a 75 to 150 dpi scan."""
    height, width = gray.shape
    scale = float(rng.uniform(20 - 9 * strength, 24 - 6 * strength)) / line_px
    if scale >= 1:
        return gray
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    image = Image.fromarray(gray).resize(size, Image.Resampling.BOX)
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def noise(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Add grain, and with strength a few black and white specks."""
    out = gray + rng.normal(0, 2 + 16 * strength * rng.random(), gray.shape)
    if rng.random() < strength * 0.5:
        specks = rng.random(gray.shape)
        share = 0.004 * strength
        out[specks < share], out[specks > 1 - share] = 0, 255
    return to_gray(out)


def bilevel(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Threshold to black and white, as fax and old scanners do."""
    paper, ink = float(paper_level(gray)), float(_ink(gray))
    cut = ink + (paper - ink) * float(rng.uniform(0.5 - 0.15 * strength, 0.5 + 0.2 * strength))
    return to_gray(np.where(gray > cut, 255, 0))


def ragged(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Threshold a soft and grainy picture: strokes with ragged edges, bridged or broken.

    The grain is wider than a pixel, as that of coarse paper seen by a scanner.
    """
    soft = blur(gray, rng, strength, line_px)
    height, width = soft.shape
    cell = line_px * float(rng.uniform(0.03, 0.09))
    size = (max(1, round(width / cell)), max(1, round(height / cell)))
    levels = float(rng.uniform(10, 20 + 50 * strength))
    coarse = rng.normal(0, levels, size[::-1]).astype(np.float32)
    grain = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return bilevel(to_gray(soft + np.asarray(grain)), rng, strength, line_px)


def jpeg(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """Compress as JPEG."""
    stream = io.BytesIO()
    quality = int(rng.integers(round(75 - 50 * strength), 92))
    Image.fromarray(gray).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream))


def inverse(gray: Gray, rng: Rng, strength: float, line_px: float) -> Gray:
    """White on black."""
    return 255 - gray


def skew(gray: Gray, boxes: Boxes, degrees: float) -> tuple[Gray, Boxes]:
    """Rotate about the centre, size kept, paper filled in.

    Args:
        gray: Grey values.
        boxes: (N, 4) character boxes in px.
        degrees: Counter-clockwise.

    Returns:
        The turned picture, and the boxes moved to where their centres went.
    """
    height, width = gray.shape
    turned = Image.fromarray(gray).rotate(
        degrees, Image.Resampling.BICUBIC, fillcolor=paper_level(gray)
    )
    angle = math.radians(degrees)
    x = (boxes[:, 0] + boxes[:, 2]) / 2 - width / 2
    y = (boxes[:, 1] + boxes[:, 3]) / 2 - height / 2
    moved_x = x * math.cos(angle) + y * math.sin(angle) - x
    moved_y = -x * math.sin(angle) + y * math.cos(angle) - y
    shift = np.stack([moved_x, moved_y, moved_x, moved_y], axis=1).astype(np.float32)
    return np.asarray(turned), boxes + shift


# In the order in which they happen to a page: print, paper, optics, sensor, file.
EFFECTS: tuple[Effect, ...] = (
    Effect("underline", (0.02, 0.03, 0.04, 0.05), underline),
    Effect("rules", (0.03, 0.05, 0.08, 0.1), rules),
    Effect("bleed_through", (0.0, 0.05, 0.15, 0.3), bleed_through),
    Effect("ink_spread", (0.1, 0.25, 0.35, 0.5), ink_spread),
    Effect("shadow", (0.0, 0.1, 0.25, 0.4), shadow),
    Effect("blur", (0.2, 0.4, 0.5, 0.5), blur),
    Effect("low_resolution", (0.0, 0.08, 0.25, 0.4), low_resolution),
    Effect("noise", (0.05, 0.3, 0.5, 0.7), noise),
    Effect("bilevel", (0.0, 0.05, 0.2, 0.3), bilevel),
    Effect("ragged", (0.0, 0.04, 0.12, 0.2), ragged),
    Effect("jpeg", (0.1, 0.3, 0.4, 0.5), jpeg),
    Effect("inverse", (0.04, 0.05, 0.05, 0.05), inverse),
)
MAX_SKEW_DEGREES = (0.0, 0.4, 0.9, 1.6)


def damage(
    gray: Gray, boxes: Boxes, rng: Rng, grade: int, line_px: float
) -> tuple[Gray, Boxes, list[str]]:
    """Damage a crop.

    Args:
        gray: Grey values, height x width.
        boxes: (N, 4) character boxes in px.
        rng: Random stream.
        grade: Index into :data:`GRADES`.
        line_px: Height of a text line in px.

    Returns:
        Grey values of the same size, the boxes, and the names of the effects that were applied.
    """
    applied = []
    limit = MAX_SKEW_DEGREES[grade]
    if limit:
        # A long line leaves its crop at a small angle already.
        limit = min(limit, math.degrees(math.atan(0.35 * line_px / gray.shape[1])))
        gray, boxes = skew(gray, boxes, float(rng.uniform(-limit, limit)))
        applied.append("skew")
    for effect in EFFECTS:
        if rng.random() < effect.chance[grade]:
            gray = effect.apply(gray, rng, grade / (len(GRADES) - 1), line_px)
            applied.append(effect.name)
    return gray, boxes, applied


def _ink(gray: Gray) -> int:
    """Return the grey value farthest from the paper: that of full ink."""
    paper = paper_level(gray)
    low, high = int(gray.min()), int(gray.max())
    return low if paper - low >= high - paper else high
