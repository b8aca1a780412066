"""The client of any Kubernetes API server: kubeconfig, credentials, connections, retries, informers."""
