"""Training samples: drawn documents with exact labels, people's own folders, and their stream.

Loads no torch: samples are drawn in worker processes that only need numpy and Pillow.
"""

from mdiff_core.training.data.sample import Sample, SampleSource
from mdiff_core.training.data.sources import build_source, build_stream
from mdiff_core.training.data.stream import SampleStream

__all__ = ["Sample", "SampleSource", "SampleStream", "build_source", "build_stream"]
