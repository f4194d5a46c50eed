"""The documentation of Python's standard library:

`modules` reads docstrings, `names` gives them public names, `sentences` splits them.

The docstrings come from the running interpreter. The built-in sample dataset consists of their sentences.
"""
