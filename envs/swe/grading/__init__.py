"""Whether a patch solves a task: a clean sandbox, hidden tests, and results that the patch cannot easily fake."""
