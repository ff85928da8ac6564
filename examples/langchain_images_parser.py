"""Read the pictures in a PDF: the loader and the text layer stay, the pictures get text.

python examples/langchain_images_parser.py report.pdf
"""

import sys

from langchain_community.document_loaders import PyMuPDFLoader

from langchain_mdiff import MDiffImageParser

# without mdiff: loader = PyMuPDFLoader(sys.argv[1], images_inner_format="text")
loader = PyMuPDFLoader(sys.argv[1], images_inner_format="text", images_parser=MDiffImageParser())

for document in loader.lazy_load():
    print(f"-- page {document.metadata['page'] + 1}\n{document.page_content}")
