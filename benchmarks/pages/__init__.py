"""The values of the generated pages, one file per page; the sentences are in benchmarks/templates."""
