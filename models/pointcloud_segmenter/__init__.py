"""The point cloud segmenter: a small Point Transformer that labels the points of rooms."""
