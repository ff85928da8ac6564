"""Parse every PDF under a folder: GenericLoader finds the files, our parser reads them.

python examples/langchain_generic_loader.py folder
"""

import sys

from langchain_community.document_loaders.generic import GenericLoader
from langchain_community.document_loaders.parsers import PyPDFParser

from langchain_mdiff import MDiffBlobParser

parsers = {"text layer": PyPDFParser, "pixels": MDiffBlobParser}

# without mdiff: parser = parsers["text layer"]()
parser = parsers["pixels"]()

loader = GenericLoader.from_filesystem(sys.argv[1], glob="**/*", suffixes=[".pdf"], parser=parser)
for document in loader.lazy_load():
    print(f"-- {document.metadata['source']}, page {document.metadata['page'] + 1}")
    print(document.page_content)
