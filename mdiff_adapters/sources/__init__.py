"""Documents as page images: PDFs and images from paths, bytes, file objects and file systems."""

from mdiff_adapters.sources.base import DocumentSource, SourceLimits, parse_page_range
from mdiff_adapters.sources.opening import open_source
from mdiff_adapters.sources.sniffing import safe_stem

__all__ = ["DocumentSource", "SourceLimits", "open_source", "parse_page_range", "safe_stem"]
