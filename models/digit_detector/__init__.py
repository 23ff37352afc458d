"""A small model that detects handwritten digits on photographs."""
