"""Prose about Python's standard library, read from the interpreter at hand: modules -> names -> sentences."""
