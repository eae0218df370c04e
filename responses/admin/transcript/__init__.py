"""What was said, as pages show it: messages, calls as cards, and what is loaded on demand."""
