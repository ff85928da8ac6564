"""Load a folder in threads: one loader a file, one engine for all.

python examples/langchain_directory_loader.py folder
"""

import sys

from langchain_community.document_loaders import DirectoryLoader, PyPDFLoader

from langchain_mdiff import MDiffLoader

loaders = {"text layer": PyPDFLoader, "pixels": MDiffLoader}

# without mdiff: loader_cls = loaders["text layer"]
loader_cls = loaders["pixels"]

loader = DirectoryLoader(
    sys.argv[1], glob="**/*.pdf", loader_cls=loader_cls, use_multithreading=True
)
for document in sorted(loader.load(), key=lambda d: (d.metadata["source"], d.metadata["page"])):
    print(f"-- {document.metadata['source']}, page {document.metadata['page'] + 1}")
    print(document.page_content)
