"""Answer a question from a scan, with the page and the box that the answer stands in.

python examples/llama_index_question.py report.pdf "Where is the quiet garden?"

The embedding counts words, so that the example needs no model and no network; put your own in its
place.
"""

import re
import sys
import zlib

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.node_parser.docling import DoclingNodeParser

from llama_index.readers.mdiff import MDiffReader


class WordCounts(BaseEmbedding):
    def _get_text_embedding(self, text: str) -> list[float]:
        counts = [0.0] * 512
        for word in re.findall(r"\w+", text.lower()):
            counts[zlib.crc32(word.encode()) % 512] += 1.0
        return counts

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


path, question = sys.argv[1:]
pipeline = IngestionPipeline(transformations=[DoclingNodeParser(), WordCounts()])
nodes = pipeline.run(documents=MDiffReader(export_type="docling_json").load_data(path))
index = VectorStoreIndex(nodes, embed_model=WordCounts())

[found] = index.as_retriever(similarity_top_k=1).retrieve(question)
place = found.node.metadata["doc_items"][0]["prov"][0]
print(found.node.text)
print(f"page {place['page_no']}, box {place['bbox']}")
