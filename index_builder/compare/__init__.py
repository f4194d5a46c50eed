"""Methods side by side: each trained on the same dataset with the same budget, measured alike, put on one table."""
