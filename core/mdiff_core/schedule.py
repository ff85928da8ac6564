"""How many positions each denoising step must confirm. Loads no torch."""

from __future__ import annotations


def num_required(step: int, block_length: int, denoising_steps: int) -> int:
    """Return the minimum of confirmations in a step of a block (0-based), at least 1."""
    base, extra = divmod(block_length, denoising_steps)
    return max(1, base + (step < extra))
