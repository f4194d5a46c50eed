"""Online serving: a bundle answers queries over HTTP. Runs without torch."""
