"""The tool `image_generation`: pictures of an image model."""
