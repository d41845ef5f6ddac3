"""A working toy to copy: the arithmetic-geometric mean inequality, with a run that produces its instance."""
