"""The face to Argo Workflows: steps built with Hera, and their launcher. Empty so far."""
