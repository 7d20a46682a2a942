"""From a fresh clone to something that runs; needs nothing but Python's standard library."""
