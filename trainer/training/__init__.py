"""The training loop: batches, negatives, gradients, validation and the saved state."""
