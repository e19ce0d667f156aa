"""The generated pages of the documentation, one file each; ``benchmarks/tables.py`` writes them."""
