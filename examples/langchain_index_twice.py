"""Index a file twice: the second time everything is skipped, because nothing has changed.

python examples/langchain_index_twice.py report.pdf
"""

import sys

from langchain_community.document_loaders import PyPDFLoader
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_mdiff import MDiffLoader

loaders = {"text layer": PyPDFLoader, "pixels": MDiffLoader}

# without mdiff: loader = loaders["text layer"](sys.argv[1])
loader = loaders["pixels"](sys.argv[1])

records = InMemoryRecordManager("example")
records.create_schema()
store = InMemoryVectorStore(DeterministicFakeEmbedding(size=32))
for run in ("first", "second"):
    counts = index(
        loader, records, store, cleanup="full", source_id_key="source", key_encoder="sha256"
    )
    print(f"{run} run: {counts['num_added']} added, {counts['num_skipped']} skipped")
