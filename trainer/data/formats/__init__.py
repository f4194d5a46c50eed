"""Readers of dataset folders: one module for each format. `recollect.trainer.data.dataset` chooses the reader."""
