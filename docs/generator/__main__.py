"""``python -m docs.generator``: write the blocks of the reference pages anew."""

from docs.generator.blocks import filled, pages

for path in pages():
    path.write_text(filled(path.read_text()))
