"""Data sets on disk, read into uint8 tensors: one reader a file, all in the layout of the official distribution."""
