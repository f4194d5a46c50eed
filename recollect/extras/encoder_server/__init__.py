"""Vectors from a server with OpenAI's route `/v1/embeddings`, such as vLLM, TEI, Infinity or Ollama."""
