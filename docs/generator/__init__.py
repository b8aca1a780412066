"""Reference pages of the documentation, made from the code: ``make reference`` writes them, a test compares them.

No list is kept by hand: what has no description in the code is an error.
"""
