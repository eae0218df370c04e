"""Transcripts: messages, reasoning and tool cards made from items, and the content that pages load on demand."""
