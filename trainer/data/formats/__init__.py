"""Readers of dataset folders: one module for each format. `trainer.data.dataset` chooses the reader."""
