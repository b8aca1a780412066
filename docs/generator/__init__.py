"""Reference pages of the documentation, made from the code when the site is built (``make docs``).

A page names a block, ``<!-- generate: NAME -->``, and the hook of MkDocs puts the block's Markdown in its place. No
list is kept by hand: what has no description in the code is an error of the build.
"""
