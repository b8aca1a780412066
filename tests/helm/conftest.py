"""A real API server, and a client with all permissions."""

from tests.deploy.conftest import admin, install, kubeconfig, kubectl

__all__ = ["admin", "install", "kubeconfig", "kubectl"]
