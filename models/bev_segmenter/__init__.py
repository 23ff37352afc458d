"""The bird's-eye segmenter: four cameras to a map of what is occupied, by Lift-Splat on BevPoolV2."""
