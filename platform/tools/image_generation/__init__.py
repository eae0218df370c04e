"""Image generation: creates and edits images with an image model."""
