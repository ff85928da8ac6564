"""One endless, deterministic stream of samples out of several sources.

Sample ``i`` depends on the seed and on ``i`` alone, so the position in the data is one integer: a
resumed run, another number of workers or of processes sees the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mdiff_core.errors import ConfigError
from mdiff_core.training.data.sample import Sample, SampleSource, generator


class SampleStream:
    """A weighted mixture of sources.

    Args:
        sources: The sources.
        weights: Share of each, relative to the others.
        seed: Seed of the stream.
        group: Consecutive samples that come from one source, so that a micro-batch of pictures of
            one kind needs no padding. A multiple of nothing else: groups start at 0.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        weights: Sequence[float],
        *,
        seed: int,
        group: int = 1,
    ) -> None:
        if not sources or len(sources) != len(weights):
            raise ConfigError("a stream needs sources and a weight for each")
        self.sources, self.seed, self.group = tuple(sources), seed, group
        self._shares = np.array(weights, dtype=float) / sum(weights)

    def source_of(self, index: int) -> int:
        """Return which source gives sample ``index``."""
        rng = generator(self.seed, index // self.group, 2)
        return int(rng.choice(len(self.sources), p=self._shares))

    def __getitem__(self, index: int) -> Sample:
        return self.sources[self.source_of(index)].sample(self.seed, index)
