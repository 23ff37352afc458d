"""A small detector of handwritten digits on photographs."""
