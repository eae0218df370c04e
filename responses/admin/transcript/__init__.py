"""Transcripts: items as messages, reasoning and tool cards, and the content that pages load on demand."""
