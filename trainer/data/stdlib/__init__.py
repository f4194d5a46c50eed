"""The documentation of Python's standard library: `modules` reads it, `names` names it, `sentences` splits it.

It is read from the running interpreter and is the text of the built-in sample dataset.
"""
