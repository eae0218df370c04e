"""Endpoints that call an upstream without a run: embeddings, moderations, images, token counts, compaction."""
