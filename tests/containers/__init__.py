"""Tests with real containers, on a cluster that TF_DIST_TEST_CONTAINERS names."""
