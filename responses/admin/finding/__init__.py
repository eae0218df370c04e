"""From an id, a word or a text to the page that has it."""
