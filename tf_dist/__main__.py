"""``python -m tf_dist``: the command line, for a Python whose scripts are not on the PATH."""

from tf_dist.cli.main import main

main()
