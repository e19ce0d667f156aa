"""Read data sets from disk into uint8 tensors: one reader per file, in the layout of the official distribution."""
