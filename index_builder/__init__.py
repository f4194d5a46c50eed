"""The index builder turns a trained checkpoint and its memory into a published bundle.

Only this package imports both `trainer` and `service`.
"""
