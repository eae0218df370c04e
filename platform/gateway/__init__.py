"""Endpoints that forward requests: chat completions, Messages, legacy completions, embeddings, images and audio."""
