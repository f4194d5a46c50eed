"""Static encoders: a text vector is a weighted sum of token vectors, without a transformer."""
