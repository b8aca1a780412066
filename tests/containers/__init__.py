"""Tests with real containers, on the cluster of the kubeconfig in TF_DIST_TEST_CONTAINERS."""
