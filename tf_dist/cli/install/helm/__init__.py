"""The Helm chart, written from the manifests."""
