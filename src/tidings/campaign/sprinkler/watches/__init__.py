"""Demands on single steps: what no invariant over the trace shows, and a user can be told in one sentence.

Each was kept because it alone catches some mutants (docs/decisions/0015-what-watches-catch.md). A new one has a name
that says what went wrong, and a planted bug that it catches.
"""
