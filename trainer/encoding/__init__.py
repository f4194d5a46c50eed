"""Encoders: texts become unit vectors; loading, checkpoints, tokens and keys."""
