"""Run by the Python of .venv-notebook: executes cells as a notebook.

    python execute_notebook.py NOTEBOOK < CELLS

CELLS is a JSON list of code, NOTEBOOK the file to write, with outputs.
"""

import json
import sys

import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(code) for code in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
try:
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
finally:
    nbformat.write(notebook, sys.argv[1])
