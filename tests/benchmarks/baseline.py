"""The decoding loop as the public reference runs it, for ratios on the same weights and dtype.

Batch 1; one prompt forward with the head on every row; each denoising step concatenates the cached
keys with its own; the head on all 32 rows; a separate commit forward for every block, the last one
too; the end looked for after the commit. Its sampler is patched to argmax with the mask banned,
as a comparison of equal tokens needs. Source: behaviour of generate_with_embeds in
github.com/opendatalab/MinerU-Diffusion @8d456f1. Weights are plain linears; query, key and value
are one product here and three there, which favours this baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mdiff_core import DecodeConfig
from mdiff_core.imaging import Patches
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.reference import block_causal_mask
from mdiff_core.schedule import num_required


@dataclass
class BaselineResult:
    token_ids: list[int]
    num_forwards: int
    num_head_rows: int


@torch.inference_mode()
def decode_baseline(
    model: MinerUDiffusion,
    patches: Patches,
    prompt_ids: list[int],
    config: DecodeConfig,
    *,
    max_tokens: int,
) -> BaselineResult:
    """Decode one request; ``max_tokens`` counts a scripted end token in its last place."""
    device, text = model.device, model.config.text
    group = text.num_attention_heads // text.num_key_value_heads
    mask_id, length = model.config.mask_token_id, config.block_length
    past: list[tuple[Tensor, Tensor] | None] = [None] * text.num_hidden_layers
    forwards = head_rows = 0

    def forward(embeds: Tensor, start: int, mask: Tensor | None, store: bool) -> Tensor:
        nonlocal forwards, head_rows

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            before = past[layer]
            if before is not None:
                k, v = torch.cat([before[0], k]), torch.cat([before[1], v])
            if store:
                past[layer] = (k, v)
            wide = [x.repeat_interleave(group, dim=1) for x in (k, v)]
            out = F.scaled_dot_product_attention(
                *(x.transpose(0, 1)[None] for x in (q, *wide)), attn_mask=mask
            )
            return out[0].transpose(0, 1)

        positions = torch.arange(start, start + len(embeds), device=device)
        logits: Tensor = model.decoder.lm_head(model.decoder(embeds, positions, attend))
        forwards, head_rows = forwards + 1, head_rows + len(embeds)
        return logits

    features = model.encode_images([patches])[0]
    prompt = len(prompt_ids)
    embeds = model.embed(torch.tensor(prompt_ids, device=device), features)
    forward(embeds, 0, block_causal_mask(prompt, prompt, length).to(device), store=True)
    mask_embed = model.decoder.embed_tokens.weight[mask_id]
    answer: list[int] = []
    while len(answer) < max_tokens:
        start = prompt + len(answer)
        block = mask_embed.expand(length, -1).clone()
        ids = torch.full((length,), mask_id, device=device)
        step = 0
        while True:
            masked = (block == mask_embed).all(-1)
            if masked.sum() == 0:
                forward(block, start, None, store=True)
                break
            logits = forward(block, start, None, store=False)
            logits[:, mask_id] = -torch.inf
            probabilities = logits.float().softmax(-1)
            confidence, tokens = probabilities.max(-1)
            confidence = torch.where(masked, confidence, -torch.inf)
            need = num_required(step, length, config.denoising_steps)
            above = confidence > config.threshold
            if config.rule == "static" or above.sum() < need:
                chosen = torch.zeros_like(masked)
                chosen[confidence.topk(min(need, int(masked.sum()))).indices] = True
            else:
                chosen = above
            ids[chosen] = tokens[chosen]
            block[chosen] = model.decoder.embed_tokens(tokens[chosen])
            step += 1
        answer += ids.tolist()
    return BaselineResult(answer[:max_tokens], forwards, head_rows)
