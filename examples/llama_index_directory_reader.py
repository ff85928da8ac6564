"""Read a folder with LlamaIndex: the directory reader stays, PDFs are read by their pixels.

python examples/llama_index_directory_reader.py folder
"""

import sys

from llama_index.core import SimpleDirectoryReader
from llama_index.readers.file import PDFReader

from llama_index.readers.mdiff import MDiffReader

readers = {"text layer": PDFReader, "pixels": MDiffReader}

# without mdiff: extractor = {".pdf": readers["text layer"]()}
extractor = {".pdf": readers["pixels"]()}

reader = SimpleDirectoryReader(sys.argv[1], file_extractor=extractor, required_exts=[".pdf"])
for document in reader.load_data():
    print(f"-- {document.metadata['file_name']}, page {document.metadata['page_label']}")
    print(document.text)
