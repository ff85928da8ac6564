"""The whole network: image tower, projector, decoder; and how image features meet text tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mdiff_core.imaging import Patches
from mdiff_core.models.config import ModelConfig
from mdiff_core.models.sdar import Decoder
from mdiff_core.models.vision import Projector, VisionTower


class MinerUDiffusion(nn.Module):
    """MinerU-Diffusion as plain modules; weights come from :mod:`mdiff_core.models.loader`."""

    def __init__(self, config: ModelConfig, *, tied: bool | None = None) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionTower(config.vision, config.image)
        self.projector = Projector(
            config.vision.embed_dim, config.vision.spatial_merge_size, config.text.hidden_size
        )
        self.decoder = Decoder(
            config.text, tied=config.tie_word_embeddings if tied is None else tied
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.decoder.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.decoder.embed_tokens.weight.dtype

    def encode_images(self, images: Sequence[Patches]) -> list[Tensor]:
        """Return the (tokens, hidden) embeddings of each image; all images are one packed call."""
        if not images:
            return []
        device = self.device
        flat = [torch.from_numpy(image.pixels) for image in images]
        pixels = flat[0] if len(flat) == 1 else torch.cat(flat)
        if device.type == "cuda":
            pixels = pixels.pin_memory()
        grids = [(image.rows, image.cols) for image in images]
        merge = self.config.vision.spatial_merge_size**2
        features = self.projector(self.vision(pixels.to(device, non_blocking=True), grids))
        return list(features.split([rows * cols // merge for rows, cols in grids]))

    def embed(
        self, ids: Tensor, features: Tensor | None, in_prompt: Tensor | None = None
    ) -> Tensor:
        """Embed token ids and put image features where the image placeholders stand.

        Args:
            ids: (N,) token ids.
            features: (M, hidden) image features in order, M the number of placeholders; or None.
            in_prompt: (N,) bool, the ids of prompts; None where all are. A model may answer with
                the placeholder's id; that is a token like any other.

        Returns:
            (N, hidden).
        """
        embeds: Tensor = self.decoder.embed_tokens(ids)
        if features is not None:
            embeds = embeds.clone() if embeds.requires_grad else embeds
            is_image = ids == self.config.image_token_id
            if in_prompt is not None:
                is_image &= in_prompt
            embeds[is_image] = features.to(embeds.dtype)
        return embeds
