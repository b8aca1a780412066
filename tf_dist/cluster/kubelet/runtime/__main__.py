"""Start the supervisor: ``python -I -S -E __main__.py CONFIG`` where CONFIG is a SupervisorConfig as JSON."""

import os
import sys


def main() -> None:
    """Find this package (``python -I`` has no path to it), then serve until the supervisor ends."""
    root = os.path.abspath(__file__)
    for _ in range(5):
        root = os.path.dirname(root)
    sys.path.append(root)
    from tf_dist.cluster.kubelet.runtime.supervisor import serve

    serve(sys.argv[1])


if __name__ == "__main__":
    main()
