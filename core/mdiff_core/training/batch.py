"""From samples to tensors: tokens, masks, targets. Runs in the processes that draw the data.

A sequence is the prompt, clean blocks of the answer (context) and noisy ones (denoised). With the
form ``drawn`` there is one noisy block and the clean ones before it; with ``all`` every block is
noisy once and stands once more, clean, for those behind it (arXiv 2503.09573). A noisy token has
the position of its clean twin, so both forms show a block the same keys. Further noisy copies, with
other masks, follow behind the first and do not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mdiff_core.errors import CheckpointError
from mdiff_core.imaging import Patches, to_patches
from mdiff_core.models.config import ModelConfig
from mdiff_core.prompts import Codec
from mdiff_core.protocol import END_TOKENS
from mdiff_core.training.config import ObjectiveConfig
from mdiff_core.training.data.sample import Sample, generator

IGNORE = -100
"""Target of a position that carries no loss."""
PAD, CONTEXT, NOISY = 0, 1, 2
"""Kinds of positions; further noisy copies are ``NOISY + 1`` and so on."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Draw:
    """The random decisions about one sample.

    Attributes:
        masked: (blocks, L) which positions are masked.
        block: The block that the form ``drawn`` denoises.
        more: The same as ``masked`` for each further noisy copy.
    """

    masked: Bools
    block: int
    more: tuple[Bools, ...] = ()


def draw_masks(rng: np.random.Generator, num_blocks: int, config: ObjectiveConfig) -> Draw:
    """Draw mask share, masked positions and block of one sample.

    The share is uniform in (0, 1], one for all blocks of a copy, and each block has at least
    one masked position; with probability ``full_mask`` everything is masked.

    Args:
        rng: Random stream of the sample.
        num_blocks: Blocks of its answer.
        config: Settings.

    Returns:
        The draw.
    """
    masked = _draw_copy(rng, num_blocks, config)
    block = int(rng.integers(num_blocks))
    more = tuple(_draw_copy(rng, num_blocks, config) for _ in range(config.copies - 1))
    return Draw(masked, block, more)


def _draw_copy(rng: np.random.Generator, num_blocks: int, config: ObjectiveConfig) -> Bools:
    length = config.block_length
    full, runs = rng.random() < config.full_mask, rng.random() < config.mask_runs
    count = length if full else max(1, int(np.ceil(rng.random() * length)))
    masked = np.zeros((num_blocks, length), np.bool_)
    for row in masked:
        row[_runs(rng, length, count) if runs else rng.permutation(length)[:count]] = True
    return masked


def _runs(rng: np.random.Generator, length: int, count: int) -> Ints:
    """Return ``count`` positions in one to three runs."""
    num_runs = min(count, length - count + 1, int(rng.integers(1, 4)))
    cuts = np.sort(rng.choice(np.arange(1, count), num_runs - 1, replace=False))
    sizes = np.diff(np.concatenate([[0], cuts, [count]]))
    # Runs are separated by at least one free position; what is left over is spread at random.
    free = length - count - (num_runs - 1)
    places = np.sort(rng.choice(free + num_runs, num_runs, replace=False))
    gaps = np.diff(np.concatenate([[-1], places])) - 1
    positions, at = [], 0
    for i, (gap, size) in enumerate(zip(gaps, sizes, strict=True)):
        at += int(gap) + (1 if i else 0)
        positions.append(np.arange(at, at + size))
        at += int(size)
    return np.concatenate(positions)


@dataclass(frozen=True, slots=True)
class Example:
    """One sample as tokens.

    Attributes:
        patches: The prepared image.
        prompt: Prompt ids with image placeholders.
        answer: Answer ids in whole blocks: text, end token, filling.
        draw: What is masked.
        weight: Weight of its loss.
        image_targets: For each image token the id its features should name, or :data:`IGNORE`.
        guide: For each answer position the image token its character is drawn on, or -1.
    """

    patches: Patches
    prompt: Ints
    answer: Ints
    draw: Draw
    weight: float
    image_targets: Ints
    guide: Ints


@dataclass(slots=True)
class Batch:
    """A micro-batch; B samples of padded length S.

    Attributes:
        pixels: (P, 3 * p * p) uint8 patches of all images.
        grids: (rows, cols) in patches of each image.
        ids: (B, S) token ids, the mask token at masked positions.
        positions: (B, S) positions as in decoding.
        blocks: (B, S) block of each position; those of the prompt are negative.
        kinds: (B, S) :data:`PAD`, :data:`CONTEXT`, or :data:`NOISY` and its copies.
        targets: (B, S) the true id at masked positions, else :data:`IGNORE`.
        weights: (B,) fp32 weight of each sample.
        image_targets: (M,) ids that the image tokens should name, or :data:`IGNORE`.
        guide: (B, S) image token, counted in its own image, that a masked position should look
            at, or -1.
        num_masked: Masked positions.
        num_named: Image tokens with a target.
        num_guided: Positions with a guide.
        num_samples: B.
    """

    pixels: Tensor
    grids: list[tuple[int, int]]
    ids: Tensor
    positions: Tensor
    blocks: Tensor
    kinds: Tensor
    targets: Tensor
    weights: Tensor
    image_targets: Tensor
    guide: Tensor
    num_masked: int = field(init=False)
    num_named: int = field(init=False)
    num_guided: int = field(init=False)
    num_samples: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_masked = int((self.targets != IGNORE).sum())
        self.num_named = int((self.image_targets != IGNORE).sum())
        self.num_guided = int((self.guide >= 0).sum())
        self.num_samples = len(self.grids)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(
            self.pixels.to(device, non_blocking=True),
            self.grids,
            *(
                tensor.to(device, non_blocking=True)
                for tensor in (self.ids, self.positions, self.blocks, self.kinds, self.targets,
                               self.weights, self.image_targets, self.guide)
            ),
        )  # fmt: skip


class Encoder:
    """Turns samples into examples and examples into batches.

    Args:
        config: Of the checkpoint.
        codec: Its tokenizer and prompts.
        objective: Settings.
        seed: Seed of the masks.
    """

    def __init__(
        self, config: ModelConfig, codec: Codec, objective: ObjectiveConfig, seed: int
    ) -> None:
        self._config, self._codec, self._objective, self._seed = config, codec, objective, seed
        end, fill = map(codec.token_id, END_TOKENS)
        if end is None or fill is None:
            raise CheckpointError(f"training needs the tokens {' and '.join(END_TOKENS)}")
        self._end, self._fill = end, fill

    def encode(self, sample: Sample, index: int) -> Example:
        """Encode sample ``index`` of the stream; its masks depend on seed and index alone."""
        config, length = self._config, self._objective.block_length
        patches = to_patches(
            sample.image,
            patch_size=config.vision.patch_size,
            merge_size=config.vision.spatial_merge_size,
            min_pixels=config.image.min_pixels,
            max_pixels=config.image.max_pixels,
        )
        merge = config.vision.spatial_merge_size
        num_image = patches.rows * patches.cols // merge**2
        ids, spans = self._codec.encode_with_spans(sample.text)
        num_blocks = -(-(len(ids) + 1) // length)
        answer = np.full(num_blocks * length, self._fill, np.int64)
        answer[: len(ids)] = ids
        answer[len(ids)] = self._end
        named = np.full(num_image, IGNORE, np.int64)
        guide = np.full(len(answer), -1, np.int64)
        if sample.boxes is not None:
            self._locate(sample, patches, spans, answer, named, guide)
        weight = 1.0
        if sample.consistency is not None:
            weight += self._objective.beta * (1 - sample.consistency)
        rng = generator(self._seed, index, 3)
        return Example(
            patches=patches,
            prompt=np.array(self._codec.prompt_ids(sample.task, num_image), np.int64),
            answer=answer,
            draw=draw_masks(rng, num_blocks, self._objective),
            weight=weight,
            image_targets=named,
            guide=guide,
        )

    def _locate(
        self,
        sample: Sample,
        patches: Patches,
        spans: Sequence[tuple[int, int]],
        answer: Ints,
        named: Ints,
        guide: Ints,
    ) -> None:
        """Fill in which image token shows which character."""
        vision = self._config.vision
        side = vision.patch_size * vision.spatial_merge_size
        rows, cols = (n // vision.spatial_merge_size for n in (patches.rows, patches.cols))
        boxes = sample.boxes
        if boxes is None or not len(boxes):
            return
        # Boxes are px of the image as given; tokens are px of the image as resized.
        scale = np.array([cols * side / sample.image.width, rows * side / sample.image.height] * 2)
        scaled = boxes * scale / side
        centre_x = (scaled[:, 0] + scaled[:, 2]) / 2
        centre_y = (scaled[:, 1] + scaled[:, 3]) / 2
        col = np.clip(centre_x.astype(int), 0, cols - 1)
        row = np.clip(centre_y.astype(int), 0, rows - 1)
        for position, (start, _) in enumerate(spans):
            guide[position] = row[start] * cols + col[start]
        # Of a character of several tokens the last: the first is what accented letters share.
        token = {start: position for position, (start, _) in enumerate(spans)}
        grid = named.reshape(rows, cols)
        middle = np.arange(cols) + 0.5
        for char, box in enumerate(scaled):
            if char not in token:
                continue
            covered = (middle >= box[0]) & (middle < box[2])
            grid[row[char], covered] = answer[token[char]]

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Lay examples out as one micro-batch, in the form of the objective."""
        rows = [self._lay_out(example) for example in examples]
        longest = max(len(row[0]) for row in rows)

        def stack(column: int, fill: int) -> Tensor:
            out = np.full((len(rows), longest), fill, np.int64)
            for line, row in zip(out, rows, strict=True):
                line[: len(row[column])] = row[column]
            return torch.from_numpy(out)

        return Batch(
            pixels=torch.from_numpy(np.concatenate([e.patches.pixels for e in examples])),
            grids=[(e.patches.rows, e.patches.cols) for e in examples],
            ids=stack(0, self._fill),
            positions=stack(1, 0),
            blocks=stack(2, 0),
            kinds=stack(3, PAD),
            targets=stack(4, IGNORE),
            weights=torch.tensor([e.weight for e in examples], dtype=torch.float32),
            image_targets=torch.from_numpy(np.concatenate([e.image_targets for e in examples])),
            guide=stack(5, -1),
        )

    def _lay_out(self, example: Example) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        length, prompt = self._objective.block_length, len(example.prompt)
        num_blocks = len(example.answer) // length
        if self._objective.form == "drawn":
            noisy = np.array([example.draw.block])
        else:
            noisy = np.arange(num_blocks)
        # Only a later noisy block looks at a clean one.
        num_clean = int(noisy[-1]) * length
        at = (noisy[:, None] * length + np.arange(length)).ravel()
        draw = example.draw
        copies = (draw.masked, *draw.more)
        masked = np.concatenate([copy[noisy].ravel() for copy in copies])
        truth = np.tile(example.answer[at], len(copies))
        guided = np.tile(example.guide[at], len(copies))
        offsets = np.concatenate([np.arange(-prompt, num_clean), np.tile(at, len(copies))])
        num_context = prompt + num_clean
        ids = np.concatenate(
            [
                example.prompt,
                example.answer[:num_clean],
                np.where(masked, self._config.mask_token_id, truth),
            ]
        )
        kinds = np.concatenate(
            [np.full(num_context, CONTEXT), NOISY + np.repeat(np.arange(len(copies)), len(at))]
        )
        targets = np.full(len(ids), IGNORE, np.int64)
        targets[num_context:][masked] = truth[masked]
        guide = np.full(len(ids), -1, np.int64)
        guide[num_context:][masked] = guided[masked]
        return ids, offsets + prompt, offsets // length, kinds, targets, guide
