"""A real API server, with all rights."""

from tests.deploy.conftest import admin, install, kubeconfig, kubectl

__all__ = ["admin", "install", "kubeconfig", "kubectl"]
