"""The oracle: block diffusion in its plainest form, without cache, batch or shortcut.

Every fast path is tested against it. Each denoising step runs the whole sequence so far under the
block-causal mask; a block is always denoised to its end; the answer is cut afterwards.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mdiff_core.config import DecodeConfig
from mdiff_core.models.mineru import MinerUDiffusion
from mdiff_core.sampling import entropy, greedy
from mdiff_core.schedule import num_required
from mdiff_core.types import DecodeResult
from mdiff_core.unmasking import StepState, get_rule


def block_ends(length: int, prompt_length: int, block_length: int) -> Tensor:
    """Return for each position the end of its block: the first position it cannot see.

    Blocks of the prompt are aligned to its end (the first may be short), blocks of the answer start
    right after it.

    Args:
        length: Number of positions.
        prompt_length: Positions of the prompt.
        block_length: Positions a block.

    Returns:
        (length,) int64.
    """
    offset = torch.arange(length) - prompt_length
    return (
        prompt_length + (torch.div(offset, block_length, rounding_mode="floor") + 1) * block_length
    )


def block_causal_mask(length: int, prompt_length: int, block_length: int) -> Tensor:
    """Return the (length, length) bool mask, True where a query (row) may see a key (column)."""
    return torch.arange(length)[None, :] < block_ends(length, prompt_length, block_length)[:, None]


def forward_dense(model: MinerUDiffusion, embeds: Tensor, mask: Tensor) -> Tensor:
    """Run the decoder on one whole sequence under an explicit mask.

    Args:
        model: The network.
        embeds: (T, hidden).
        mask: (T, T) bool, True where a query may look.

    Returns:
        (T, V) logits.
    """
    scale = model.config.text.head_dim**-0.5
    group = model.config.text.num_attention_heads // model.config.text.num_key_value_heads

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    positions = torch.arange(embeds.shape[0], device=embeds.device)
    hidden = model.decoder(embeds, positions, attend)
    logits: Tensor = model.decoder.lm_head(hidden)
    return logits


@torch.inference_mode()
def decode_reference(
    model: MinerUDiffusion,
    prompt_ids: list[int],
    features: Tensor | None,
    config: DecodeConfig,
    *,
    max_tokens: int,
    end_ids: tuple[int, ...],
) -> DecodeResult:
    """Decode one request greedily.

    Args:
        model: The network.
        prompt_ids: Prompt with image placeholders.
        features: (M, hidden) image embeddings.
        config: ``temperature`` must be 0.
        max_tokens: Limit of tokens.
        end_ids: Ids that end an answer.

    Returns:
        The result without text; ``num_forwards`` counts what the reference runs: one prompt
        forward, and for each block its steps and one commit.
    """
    rule, needs_entropy = get_rule(config.rule)
    length, prompt = config.block_length, len(prompt_ids)
    mask_id = model.config.mask_token_id
    num_blocks = -(-max_tokens // length)
    ids, confidences, steps = list(prompt_ids), [0.0] * prompt, [0] * prompt
    step_count, num_forwards = 0, 1
    for _ in range(num_blocks):
        start = len(ids)
        ids += [mask_id] * length
        confidences += [0.0] * length
        steps += [0] * length
        masked = torch.ones(1, length, dtype=torch.bool)
        visible = block_causal_mask(len(ids), prompt, length).to(model.device)
        in_prompt = torch.arange(len(ids), device=model.device) < prompt
        step = 0
        while masked.any():
            embeds = model.embed(torch.tensor(ids, device=model.device), features, in_prompt)
            logits = forward_dense(model, embeds, visible)[start:].float()
            tokens, confidence = greedy(logits, mask_id)
            state = StepState(
                confidence=confidence.cpu()[None],
                entropy=entropy(logits).cpu()[None] if needs_entropy else None,
                masked=masked,
                num_required=torch.tensor([[num_required(step, length, config.denoising_steps)]]),
                threshold=torch.tensor([[float(config.threshold)]]),
                factor=torch.tensor([[float(config.factor)]]),
                entropy_bound=torch.tensor([[float(config.entropy_bound)]]),
            )
            step, step_count, num_forwards = step + 1, step_count + 1, num_forwards + 1
            chosen = rule(state)
            for i in chosen[0].nonzero()[:, 0].tolist():
                ids[start + i] = int(tokens[i])
                confidences[start + i] = float(confidence[i])
                steps[start + i] = step_count
            masked = masked & ~chosen
        num_forwards += 1
        if not config.ignore_end and any(i in end_ids for i in ids[start:]):
            break
    answer = ids[prompt : prompt + max_tokens]
    end = len(answer)
    if not config.ignore_end:
        end = next((i for i, token in enumerate(answer) if token in end_ids), end)
    kept = confidences[prompt : prompt + end]
    stopped = end < len(answer)
    return DecodeResult(
        token_ids=answer[:end],
        step_map=steps[prompt : prompt + end],
        finish_reason=("stop" if end else "empty") if stopped else "length",
        confidence=sum(kept) / len(kept) if kept else None,
        num_forwards=num_forwards,
        num_prompt_tokens=prompt,
    )
