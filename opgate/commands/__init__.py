"""The commands of `opgate` that have no room of their own."""
