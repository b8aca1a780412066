"""A real API server, with all rights."""

from tests.deploy.conftest import admin, kubeconfig, kubectl

__all__ = ["admin", "kubeconfig", "kubectl"]
